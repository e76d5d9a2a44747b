"""Each initialiser, leaf by leaf, on networks of other libraries, a scanned one and our own.

What a leaf must become is looked up by what ``tests/trees.py`` says it is by hand, and computed
here from the papers' formulas, not by the library.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models
from nf_resnets.init import Rules
from tests import trees
from tests.trees import by_path, filled

OURS = {"CifarResNet": (models.CifarResNet, 20), "WideResNet": (models.WideResNet, 22)}
WEIGHTS = ("inner", "last", "stem", "shortcut", "head")
BIASES = ("inner_bias", "last_bias", "bias", "head_bias")


@functools.cache
def _network(name, scheme="fixup"):
    return trees.ours(*OURS[name], scheme) if name in OURS else getattr(trees, name)()


every_network = pytest.mark.parametrize("name", ["equinox", "stacked", *OURS])


def _fixup_by_hand(kind, value, inner_factor):
    """Fixup's rules 1 to 3 on one leaf; ``inner_factor = L**(-1/(2m-2))``."""
    if kind in ("last", "last_bias", "head", "head_bias", "scalar_bias"):
        return np.zeros_like(value)
    if kind == "multiplier":
        return np.ones_like(value)
    if kind == "inner":
        return np.float32(inner_factor) * np.asarray(value)
    return np.asarray(value)


@every_network
def test_fixup_leaf_by_leaf(name):
    net = _network(name)
    result = by_path(init.fixup(net.params, depth=net.branches, rules=net.rules))
    for path, value in by_path(net.params).items():
        expected = _fixup_by_hand(net.kinds[path], value, net.branches**-0.5)
        # Bit for bit: one float32 product, whose correctly rounded value both sides return.
        np.testing.assert_array_equal(result[path], expected, err_msg=path, strict=True)


@pytest.mark.every(6)
@every_network
def test_fixup_with_a_key_is_he_fan_out_then_the_same_rules(name):
    net, key = _network(name), jax.random.key(3)
    drawn = by_path(init.he(net.params, key, mode="fan_out", rules=net.rules))
    result = init.fixup(net.params, depth=net.branches, key=key, rules=net.rules)
    for path, value in by_path(result).items():
        expected = _fixup_by_hand(net.kinds[path], drawn[path], net.branches**-0.5)
        np.testing.assert_array_equal(value, expected, err_msg=path)


@pytest.mark.parametrize("alpha", [0.0, 0.25])
@every_network
def test_skipinit_leaf_by_leaf(name, alpha):
    net = _network(name, "skipinit")
    result = by_path(init.skipinit(net.params, net.branches, alpha=alpha, rules=net.rules))
    for path, value in by_path(net.params).items():
        expected = np.full_like(value, alpha) if net.kinds[path] == "alpha" else value
        np.testing.assert_array_equal(result[path], expected, err_msg=path)


@pytest.mark.every(2)
@every_network
def test_he_draws_weights_zeroes_biases_and_keeps_the_rest(name):
    """As xavier and orthogonal do: they differ in what they draw."""
    net = _network(name)
    result = by_path(init.he(net.params, jax.random.key(5), rules=net.rules))
    for path, value in by_path(net.params).items():
        if net.kinds[path] in WEIGHTS:
            assert not np.any(np.asarray(result[path]) == np.asarray(value)), path
            assert np.all(np.isfinite(result[path])), path
        elif net.kinds[path] in BIASES:
            assert not np.any(result[path]), path
        else:
            np.testing.assert_array_equal(result[path], value, err_msg=path)
    drawn = [np.asarray(result[p]).tobytes() for p in result if net.kinds[p] in WEIGHTS]
    assert len(set(drawn)) == len(drawn), "two layers were drawn alike"


def test_branches_of_two_to_eleven_layers_side_by_side():
    layers = (2, 3, 4, 11)  # conv_11 is the last of eleven, not conv_9
    tree = {
        f"block_{block}": {f"conv_{j}": jnp.ones((1, 1, 4, 4)) for j in range(1, m + 1)}
        for block, m in enumerate(layers)
    }
    tree, rules = filled(tree), Rules(branch=r"block_(\d+)/conv_(\d+)")
    result = init.fixup(tree, depth=4, rules=rules)
    for block, m in enumerate(layers):
        before, after = tree[f"block_{block}"], result[f"block_{block}"]
        assert not np.any(after[f"conv_{m}"])
        for j in range(1, m):
            factor = np.float32(4 ** (-1 / (2 * m - 2)))
            np.testing.assert_array_equal(after[f"conv_{j}"], factor * before[f"conv_{j}"])


def test_linen_variables_with_their_wrapper_and_statistics():
    net = _network("WideResNet")
    wrapped = {"params": net.params, "batch_stats": {"norm_head": {"mean": jnp.ones(3)}}}
    result = init.fixup(wrapped, depth=net.branches)
    plain = init.fixup(net.params, depth=net.branches)
    assert jax.tree.all(jax.tree.map(np.array_equal, result["params"], plain))
    np.testing.assert_array_equal(result["batch_stats"]["norm_head"]["mean"], 1)
