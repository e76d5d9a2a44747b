"""The layout of weights: from the container, from the shapes where they tell, or refused."""

import dataclasses

import jax
import numpy as np
import pytest

from nf_resnets import init, optim, roles
from nf_resnets.init import Rules
from nf_resnets.roles import Leaf, Role
from tests.trees import equinox_tree, haiku_tree, linen_tree, nnx_tree
from tests.trees.network import by_path

KEY = jax.random.key(0)
BRANCH = r"block_(\d+)/conv_(\d+)"


def test_equinox_layers_need_no_layout():
    net = equinox_tree.network()
    unsaid = dataclasses.replace(net.rules, layout=None)
    expected = init.fixup(net.params, net.branches, key=KEY, rules=net.rules)
    found = init.fixup(net.params, net.branches, key=KEY, rules=unsaid)
    for path, leaf in by_path(found).items():
        np.testing.assert_array_equal(leaf, by_path(expected)[path], err_msg=path)
    with pytest.raises(ValueError, match=r"held by Equinox's Conv2d.*'HWIO'; expected 'OIHW'"):
        roles.assign(net.params, dataclasses.replace(net.rules, layout="HWIO"))


@pytest.mark.parametrize("container", ["list", "dict", "partition", "eval_shape"])
def test_equinox_layers_in_any_container(container):
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    layers = [eqx.nn.Linear(4, 8, key=KEY), eqx.nn.Linear(8, 4, use_bias=False, key=KEY)]
    if container == "dict":
        layers = {"a": layers[0], "b": (layers[1],)}
    elif container == "partition":
        layers, _ = eqx.partition(layers, eqx.is_array)
    elif container == "eval_shape":
        layers = jax.eval_shape(lambda tree: tree, eqx.filter(layers, eqx.is_array))
    leaves = [leaf for leaf in roles.assign(layers, Rules(stem=".")).leaves if leaf.weight]
    assert [roles.fans(leaf) for leaf in leaves] == [(4, 8), (8, 4)]


def test_equinox_layers_made_by_vmap_are_stacked():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    make = eqx.filter_vmap(lambda key: eqx.nn.Conv1d(4, 8, 3, key=key))
    layer = make(jax.random.split(KEY, 5))
    with pytest.raises(
        ValueError, match="has 4 axes, of which Equinox's Conv1d has 3; expected ru"
    ):
        roles.assign({"block_1": {"conv_1": layer}}, Rules(branch=BRANCH))
    stacked = Rules(branch=BRANCH, stacked="^block_1/")
    leaves = roles.assign({"block_1": {"conv_1": layer}}, stacked).leaves
    assert [roles.fans(leaf) for leaf in leaves if leaf.weight] == [(12, 24)]


def test_an_equinox_module_of_the_user_s_own_says_its_layout():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    class Dense(eqx.Module):
        kernel: jax.Array

    for shape, fans in (((3, 3, 16, 32), (144, 288)), ((32, 16, 3, 3), (144, 288))):
        leaf = roles.assign([Dense(np.ones(shape))], Rules(stem="kernel")).leaves[0]
        assert roles.fans(leaf) == fans  # the shapes tell
    with pytest.raises(ValueError, match=r"may be \[..., C_in, C_out\] or .*expected rules.layout"):
        init.he([Dense(np.ones((8, 4)))], KEY, rules=Rules(stem="kernel"))


def test_a_weight_elsewhere_says_its_layout():
    """As PyTorch calls it. Without drawing there is nothing to know."""
    tree = {f"block_{b}": {f"conv_{j}": {"weight": np.ones((4, 4, 3, 3))} for j in (1, 2)}
            for b in (1, 2)}  # fmt: skip
    rules = Rules(branch=BRANCH)
    init.fixup(tree, 2, rules=rules)
    for act in (
        lambda: init.fixup(tree, 2, key=KEY, rules=rules),
        lambda: init.orthogonal(tree, KEY, rules=rules),
        lambda: optim.adaptive_clip(0.1, rules=rules).update(tree, optim.sgd, tree),
    ):
        with pytest.raises(ValueError, match=r"'block_1/conv_1/weight' \[4, 4, 3, 3\] may be"):
            act()
    stem = {"conv1": {"weight": np.ones((64, 3, 7, 7))}}
    for extra in (stem, {"conv1": {"weight": np.ones((8, 4, 1, 1)), "bias": np.ones(8)}}):
        leaves = roles.assign(tree | extra, Rules(branch=BRANCH, stem="^conv1")).leaves
        assert {leaf.axes for leaf in leaves if leaf.weight} == {"OIHW"}


@pytest.mark.parametrize(
    ("kernel", "bias"),
    [
        ((64, 3, 7, 7), None),
        ((8, 4, 3, 3), None),
        ((64, 64, 3, 3), None),
        ((256, 64, 1, 1), None),
        ((16, 1, 5, 5), None),
        ((10, 64), 10),
        ((64, 3, 7), 64),
        ((16, 8, 3, 3, 3), None),
    ],
)
@pytest.mark.parametrize("stacked", [False, True])
def test_a_kernel_that_cannot_be_what_the_rules_say_is_refused(kernel, bias, stacked):
    """Both ways round: the outputs first where they should be last, and last for first."""
    for layout in ("HWIO", "OIHW"):
        shape = kernel
        if layout == "OIHW":
            shape = (*kernel[2:], kernel[1], kernel[0])
        lead = (7,) if stacked else ()
        layer = {"kernel": np.ones(lead + shape)}
        if bias is not None:
            layer["bias"] = np.ones((*lead, bias))
        rules = Rules(stem="^conv", layout=layout, stacked="^conv" if stacked else None)
        with pytest.raises(ValueError, match=rf"'conv/kernel' .* layout '{layout}'.*; expected"):
            roles.assign({"conv": layer}, rules)
        if layout == "HWIO":  # by default, too
            with pytest.raises(ValueError, match=r"expected rules\.layout='OIHW'"):
                roles.assign({"conv": layer}, dataclasses.replace(rules, layout=None))
        other = {"HWIO": "OIHW", "OIHW": "HWIO"}[layout]
        roles.assign({"conv": layer}, dataclasses.replace(rules, layout=other))
        words = {2: ("IO", "OI"), 3: ("WIO", "OIW"), 4: ("HWIO", "OIHW"), 5: ("DHWIO", "OIDHW")}
        meant = words[len(kernel)][layout == "OIHW"]
        roles.assign({"conv": layer}, dataclasses.replace(rules, axes={"kernel": meant}))


HWIO = {
    "plain": [(3, 3, 16, 16), (3, 3, 16, 16)],
    "narrow": [(3, 3, 2, 2), (3, 3, 2, 2)],
    "one channel": [(5, 5, 1, 1), (3, 3, 1, 1)],
    "bottleneck": [(1, 1, 64, 16), (3, 3, 16, 16), (1, 1, 16, 64)],
    "depthwise": [(7, 7, 1, 96), (1, 1, 96, 384), (1, 1, 384, 96)],
    "grouped": [(1, 1, 64, 128), (3, 3, 4, 128), (1, 1, 128, 64)],
    "asymmetric": [(1, 7, 64, 48), (7, 1, 48, 64)],
    "dense connections": [(3, 3, 64, 32), (3, 3, 96, 32)],
    "along time": [(31, 64, 64), (3, 64, 64)],
    "feed-forward": [(12, 20), (20, 12)],
    "gated": [(12, 40), (20, 12)],
    "fused attention": [(12, 36), (12, 12)],
    "in space": [(1, 3, 3, 8, 8), (3, 1, 1, 8, 8)],
    "patches": [(16, 16, 3, 96), (1, 1, 96, 96)],
}


@pytest.mark.parametrize("name", HWIO)
def test_no_tree_of_the_right_layout_is_refused(name):
    for layout, reorder in (
        ("HWIO", lambda shape: shape),
        ("OIHW", lambda shape: (shape[-1], shape[-2], *shape[:-2])),
    ):
        tree = {
            "block_1": {},
            "head": {"kernel": np.ones((10, 12) if layout == "OIHW" else (12, 10))},
        }
        for j, shape in enumerate(HWIO[name], start=1):
            layer = {"kernel": np.ones(reorder(shape)), "bias": np.ones(shape[-1])}
            tree["block_1"][f"conv_{j}"] = layer
        for head in ("^head/", None):
            given = tree if head else {"block_1": tree["block_1"]}
            rules = Rules(branch=BRANCH, head=head, layout=layout)
            leaves = roles.assign(given, rules).leaves
            for leaf in leaves:
                if leaf.weight and "conv" in leaf.path:
                    *taps, c_in, c_out = HWIO[name][leaf.layer - 1]
                    taps = int(np.prod(taps))
                    split = name in ("depthwise", "grouped") and taps > 1  # into groups alike
                    assert roles.fans(leaf) == (taps * c_in, taps * (c_in if split else c_out))


def test_layers_that_do_not_fit_one_another():
    """Dense layers without bias vectors: a branch fits from behind too, and the head tells."""
    block = {"conv_1": np.ones((20, 12)), "conv_2": np.ones((12, 20))}  # [out, in]
    tree = {"block_1": block, "block_2": block, "head": np.ones((7, 12))}
    rules = Rules(branch=BRANCH, head="^head")
    match = r"'block_2/conv_2' gives 20 channels and 'head' takes 7.*expected rules.layout='OIHW'"
    with pytest.raises(ValueError, match=match):
        roles.assign(tree, rules)
    roles.assign(tree, dataclasses.replace(rules, layout="OIHW"))
    del tree["head"]
    tree["table"] = np.ones((7, 12))
    with pytest.raises(
        ValueError, match=r"'table' gives 12 channels and 'block_1/conv_1' takes 20"
    ):
        roles.assign(tree, Rules(branch=BRANCH, embedding="table"))


@pytest.mark.parametrize(
    ("shape", "axes"), [((20, 3, 3, 8, 8), "WWWIO"), ((20, 8, 8), "DIO")], ids=["space", "line"]
)
def test_a_stack_taken_for_a_convolution_is_not_drawn(shape, axes):
    tree = {"block_1": {"conv_1": np.ones(shape)}}
    match = f"looks stacked over 20 branches; expected rules.stacked.*'{axes}'"
    with pytest.raises(ValueError, match=match):
        init.he(tree, KEY, rules=Rules(branch=BRANCH))
    init.he(tree, KEY, rules=Rules(branch=BRANCH, axes={"conv": axes}))


@pytest.mark.parametrize("bias", [(20, 8), (1,), ()])
def test_no_bias_but_one_of_all_outputs_makes_a_stack_a_convolution(bias):
    layer = {"kernel": np.ones((20, 8, 8)), "bias": np.ones(bias)}
    with pytest.raises(ValueError, match="expected rules.stacked|rules.stacked to match"):
        init.he({"block_1": {"conv_1": layer}}, KEY, rules=Rules(branch=BRANCH))


def test_a_depthwise_convolution_of_many_taps_is_no_stack():
    leaf = Leaf("conv", Role.BRANCH, (31, 1, 8), weight=True, axes="WIO", groups=8)
    assert roles.fans(leaf) == (31, 31)


@pytest.mark.parametrize("make", [linen_tree, nnx_tree, haiku_tree])
def test_other_containers_have_their_outputs_last(make):
    net = make.network()
    leaves = roles.assign(net.params, net.rules).leaves
    assert {leaf.axes for leaf in leaves if leaf.weight} <= {"HWIO", "IO"}


def test_what_is_kept_in_an_equinox_layer_has_its_outputs_first():
    """Clipping by units asks for them."""
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")
    gate = eqx.filter_eval_shape(eqx.nn.Linear, 8, 4, key=jax.random.key(0))
    tree = {"gate": gate, "other": np.ones((8, 4)), "block_1": {"fc_1": np.ones((8, 8))}}
    found = roles.assign(tree, Rules(branch=r"block_(\d)/fc_(\d)", keep="^gate|^other"))
    assert {leaf.path: leaf.axes for leaf in found.leaves if leaf.weight} == {
        "block_1/fc_1": "IO", "gate/weight": "OI", "other": "IO"
    }  # fmt: skip
