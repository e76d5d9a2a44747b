"""Another head on a trained network, and the leaves that stay as they are."""

import jax
import numpy as np
import optax
import pytest

from nf_resnets import optim
from nf_resnets.trained.transfer import label_tree, partly, transfer
from tests.trained.networks import assert_same, network, takes

KEY = jax.random.key(3)


@pytest.mark.parametrize("scheme", ["fixup", "batchnorm", "rescalenet"])
def test_only_the_head_is_new(scheme):
    old = network(scheme)
    new = transfer(old, inputs=takes(classes=4), key=KEY)
    assert new.model == old.model.clone(num_classes=4)
    head = new.variables["params"]["head"]
    assert head["kernel"].shape == (16, 4) and head["bias"].shape == (4,)
    assert_same(
        {**new.variables, "params": {**new.variables["params"], "head": None}},
        {**old.variables, "params": {**old.variables["params"], "head": None}},
    )
    # Rule 1 of Fixup.
    assert head["kernel"].any() == (scheme != "fixup") and not head["bias"].any()


def learning(params, learn):
    flat = jax.tree_util.tree_leaves_with_path(label_tree(params, learn))
    return {"/".join(key.key for key in path) for path, label in flat if label == "learns"}


def test_what_learns():
    params = network("fixup").variables["params"]
    every = learning(params, "all")
    assert len(every) == len(jax.tree.leaves(params))
    assert learning(params, "head") == {"head/kernel", "head/bias"}
    small = learning(params, "small")
    assert small == {name for name in every if "bias" in name or "multiplier" in name} | {
        "head/kernel"
    }
    normalized = learning(network("batchnorm").variables["params"], "small")
    assert any(name.endswith("scale") for name in normalized)
    assert not any("conv" in name for name in normalized)
    # The bias vectors of plain convolutions are small, their kernels are not.
    plain = learning(network("plain").variables["params"], "small")
    assert "stage_1/first/conv_1/bias" in plain and "stage_1/first/conv_1/kernel" not in plain


def test_another_word_is_no_head():
    with pytest.raises(ValueError, match="learn='heads' found; expected one of all, small, head"):
        label_tree(network().variables["params"], "heads")


@pytest.mark.parametrize("learn", ["head", "small"])
def test_what_stays_does_not_move_nor_decay(learn):
    params = network("fixup").variables["params"]
    grads = jax.tree.map(np.ones_like, params)
    rule = partly(optim.sgd(0.1, weight_decay=0.5), learn)
    state = rule.init(params)
    moved = params
    for _ in range(2):
        updates, state = rule.update(grads, state, moved)
        moved = optax.apply_updates(moved, updates)
    names = learning(params, learn)
    flat = jax.tree_util.tree_leaves_with_path(params)
    for (path, before), after in zip(flat, jax.tree.leaves(moved), strict=True):
        stays = "/".join(key.key for key in path) not in names
        assert np.array_equal(before, after) == stays, path
