"""The role map: what is a branch, in which order, under which names."""

import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import roles
from nf_resnets.roles import Rules
from tests import trees

WEIGHT = jnp.ones((3, 3, 2, 2))


def _blocks(*names, layers=("conv_1", "conv_2")):
    return {name: dict.fromkeys(layers, WEIGHT) for name in names}


ROW = [f"block_{n}" for n in range(1, 13)]
PADDED = ["block_008", "block_009", "block_010"]
HAIKU = r"^block(?:_(\d+))?/conv2_d(?:_(\d+))?$"  # Haiku numbers from the second on
STAGES = {f"stage{s}": _blocks("block_10", "block_2") for s in (10, 9)}


@pytest.mark.parametrize(
    ("tree", "pattern", "names"),
    [
        (_blocks(*ROW), r"block_(\d+)/conv_(\d+)", ROW),
        (_blocks(*ROW), r"(?P<block>block_\d+)/(?P<layer>conv_\d+)", ROW),
        (_blocks(*PADDED), r"block_(\d+)/conv_(\d+)", PADDED),
        (
            _blocks("block_1", "block", "block_10", layers=("conv2_d_1", "conv2_d")),
            HAIKU,
            ["block", "block_1", "block_10"],
        ),
        (
            STAGES,
            r"stage(\d+)/block_(\d+)/conv_(\d+)",
            [f"stage{s}/block_{b}" for s in (9, 10) for b in (2, 10)],
        ),
    ],
)
def test_the_groups_order_the_branches(tree, pattern, names):
    """Digits as numbers, a group that took no part first, the outer group before the inner."""
    branches = roles.assign(tree, Rules(pattern)).branches
    assert [branch.name for branch in branches] == names


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        (r"(b)/(conv\d+)", [f"conv{n}" for n in range(1, 12)]),
        (r"^(b)/conv2_d(?:_(\d+))?$", ["conv2_d", "conv2_d_1", "conv2_d_10"]),
    ],
)
def test_the_last_group_orders_the_layers(pattern, layers):
    leaves = roles.assign(_blocks("b", layers=layers[::-1]), Rules(pattern)).leaves
    found = {leaf.path: leaf.layer for leaf in leaves}
    assert found == {f"b/{name}": j for j, name in enumerate(layers, 1)}


def test_two_thousand_blocks_one_by_one():
    one = jax.ShapeDtypeStruct((3, 3, 4, 4), jnp.float32)
    tree = {f"block_{b}": {"conv_1": one, "conv_2": one} for b in range(2000)}
    start = time.process_time()
    role_map = roles.assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
    # Some 60 ms; a square in their number would take minutes.
    assert time.process_time() - start < 10
    assert [branch.name for branch in role_map.branches] == [f"block_{b}" for b in range(2000)]


def _scanned(*names):
    twelve = jax.ShapeDtypeStruct((12, 3, 3, 4, 4), jnp.float32)
    return {name: {"conv_1": twelve, "conv_2": twelve} for name in names}


@pytest.mark.parametrize("stacked", ["stage", r"stage_\d", r"(stage_\d+)/"])
def test_two_scans_of_equal_length_are_one_after_the_other(stacked):
    """However short the expression is: interleaved, k would be wrong by up to a factor of two."""
    tree = _scanned("stage_1", "stage_10", "stage_2")
    rules = Rules(branch=r"(stage_\d+)/conv_(\d)", stacked=stacked)
    expected = [f"stage_{s}[{index}]" for s in (1, 2, 10) for index in range(12)]
    assert [branch.name for branch in roles.assign(tree, rules).branches] == expected


def test_words_that_name_layers_are_ordered_by_the_rules_alone():
    names = ("q", "k", "v", "o")
    tree, rules = _blocks("b_1", "b_2", layers=names), Rules(r"b_(\d)/(\w+)$", order=names)
    found = {leaf.path: leaf.layer for leaf in roles.assign(tree, rules).leaves}
    assert [found[f"b_2/{name}"] for name in names] == [1, 2, 3, 4]
    for wrong in ((), names[1:]):
        with pytest.raises(ValueError, match="branch 'b_1' are told apart by words; .*rules.order"):
            roles.assign(tree, dataclasses.replace(rules, order=wrong))


@pytest.mark.parametrize(("stacked", "turns"), [("^net/", True), (r"^net/(\w+)/", False)])
def test_the_groups_of_stacked_say_what_one_scan_is(stacked, turns):
    tree = {"net": _scanned("attn", "mlp")}
    found = roles.assign(tree, Rules(branch=r"(attn|mlp)/conv_(\d)", stacked=stacked)).branches
    second = "net/mlp[0]" if turns else "net/attn[1]"
    assert [branch.name for branch in found[:2]] == ["net/attn[0]", second]


@pytest.mark.parametrize(
    ("layout", "axes", "kernel", "bias", "outputs"),
    [
        (None, None, (2, 2, 4, 8), 8, 8),
        ("OIHW", None, (8, 4, 2, 2), 8, 8),
        (None, "HWOI", (4, 4, 8, 32), 8, 8),  # Flax's transpose_kernel, Haiku's Conv2DTranspose
        (None, "IOO", (16, 4, 3), 12, 12),
        (None, "NIO", (5, 4, 3), 15, 3),
        (None, "HWIN", (3, 3, 1, 6), 6, 1),
    ],
)
def test_what_a_bias_has_the_weight_must_give(layout, axes, kernel, bias, outputs):
    tree = {"up": {"kernel": np.ones(kernel), "bias": np.ones(bias)}}
    rules = Rules(stem="^up/", layout=layout, axes={"kernel": axes} if axes else ())
    of_bias, weight = roles.assign(tree, rules).leaves
    assert (weight.length("O"), of_bias.weight) == (outputs, False)
    tree["up"]["bias"] = np.ones(bias + 1)
    with pytest.raises(ValueError, match=r"'up/bias' .* outputs by its axes .* rules\.axes"):
        roles.assign(tree, rules)


def test_axes_that_only_rules_can_say_are_asked_for():
    pair = {"conv_1": np.ones((64, 64, 3, 3)), "conv_2": np.ones((64, 64, 3, 3))}
    rules = Rules(branch=r"(b)/conv_(\d)")
    with pytest.raises(ValueError, match="64 x 64 taps .* rules.layout='OIHW'"):
        roles.assign({"b": pair}, rules)
    assert roles.assign({"b": pair}, dataclasses.replace(rules, layout="OIHW")).leaves[0].axes
    thin = {"conv_1": np.ones((3, 3, 1, 8)), "conv_2": np.ones((1, 1, 8, 8))}
    with pytest.raises(ValueError, match="takes one channel; .* depthwise, 'HWIN', or not, 'HWIO'"):
        roles.assign({"b": thin}, rules)
    said = roles.assign({"b": thin}, dataclasses.replace(rules, axes={"conv_1": "HWIN"})).leaves
    assert roles.fans(said[0]) == (9, 9)


def test_a_bias_of_the_heads_is_one_and_a_factor_called_b_is_not():
    tree = {"q": {"kernel": np.ones((6, 2, 3)), "bias": np.ones((2, 3))}, "b": np.ones((4, 5))}
    leaves = roles.assign(tree, Rules(stem="^q/", head="^b", axes={"kernel": "IOO"})).leaves
    assert [leaf.weight for leaf in leaves] == [True, False, True]


def test_a_part_of_a_tree_has_the_roles_of_the_whole():
    """As optax.masked passes it on."""
    net = trees.stacked()
    whole = roles.assign(net.params, net.rules)
    part = {**net.params, "in": optax.MaskedNode(), "out": {**net.params["out"], "w": None}}
    of_map, of_rules = (roles.assign(part, given, part=True) for given in (whole, net.rules))
    kept = {leaf.path for leaf in whole.leaves} - {"in/w", "out/w"}
    assert {leaf.path for leaf in of_map.leaves} == {leaf.path for leaf in of_rules.leaves} == kept
    assert of_map.leaves == tuple(leaf for leaf in whole.leaves if leaf.path in kept)
    assert [leaf.role for leaf in of_map.leaves] == [leaf.role for leaf in of_rules.leaves]
    with pytest.raises(ValueError, match="'other' .* none of the tree that the roles"):
        roles.assign({"other": np.ones(2)}, whole, part=True)


def test_what_lies_beside_a_branch_is_told_by_its_path():
    block = {"attn": {f"w_{j}": WEIGHT for j in (1, 2)}, "mlp": {f"w_{j}": WEIGHT for j in (1, 2)}}
    block["attn"]["alpha"] = block["ln"] = block["mlp"]["b_2"] = np.ones(2)
    tree = {"net": {"h_1": block, "h_2": block, "ln_f": np.ones(2)}}
    role_map = roles.assign(tree, Rules(branch=r"h_(\d)/(attn|mlp)/w_(\d)"))
    paths = [leaf.path.removeprefix("net/") for leaf in role_map.leaves]
    beside = dict(zip(paths, role_map.beside, strict=True))
    assert (beside["h_2/attn/alpha"], beside["h_2/mlp/b_2"]) == ((3,), (4,))
    assert (beside["h_1/ln"], beside["h_2/ln"], beside["ln_f"]) == ((1, 2), (3, 4), ())
