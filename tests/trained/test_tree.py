"""Leaves by name and back."""

import flax.core
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.trained.tree import flatten, refuse_other_leaves, unflatten


def test_there_and_back():
    tree = {"b": {"c": np.arange(3), "a": np.float32(1)}, "a": {"x": {"y": np.zeros((2, 0))}}}
    flat = flatten(tree)
    assert list(flat) == ["a/x/y", "b/a", "b/c"]
    back = unflatten(flat)
    assert back.keys() == tree.keys() and back["b"].keys() == tree["b"].keys()
    assert back["b"]["a"].shape == () and back["a"]["x"]["y"].shape == (2, 0)


def test_frozen_dicts_and_arrays_of_jax_are_taken():
    flat = flatten(flax.core.freeze({"a": {"b": jnp.ones(2, jnp.bfloat16)}}))
    assert flat["a/b"].dtype.name == "bfloat16"


def test_empty_dicts_leave_no_trace():
    assert flatten({"params": {"w": np.ones(1)}, "batch_stats": {}}).keys() == {"params/w"}


@pytest.mark.parametrize("bad", [None, [1.0], object(), np.array("a"), np.ones(1, complex)])
def test_what_has_no_numbers_is_refused(bad):
    with pytest.raises(ValueError, match="leaf 'a/1' is of .*; expected an array of real numbers"):
        flatten({"a": {1: bad}})


def test_the_first_difference_is_named():
    one = {"a": np.ones(2), "b": np.ones(3)}
    refuse_other_leaves(one, {"a": np.ones(2, np.float16), "b": np.ones(3)})
    with pytest.raises(ValueError, match=r"leaf 'b' \[3\] is missing"):
        refuse_other_leaves({"a": np.ones(2)}, one)
    with pytest.raises(ValueError, match=r"leaf 'a' has shape \[1\]; expected \[2\]"):
        refuse_other_leaves({**one, "a": np.ones(1)}, one)
