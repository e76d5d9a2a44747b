"""Convolutions in groups: how many the network shows, and what is drawn for each of them."""

import jax
import numpy as np
import pytest

from nf_resnets import init, roles
from nf_resnets.roles import Rules

RESNEXT = {"Conv_0": (1, 1, 16, 8), "Conv_1": (3, 3, 2, 8), "Conv_2": (1, 1, 8, 16)}
MOBILE = {"Conv_0": (1, 1, 8, 48), "Conv_1": (3, 3, 1, 48), "Conv_2": (1, 1, 48, 8)}
PLAIN = {"Conv_0": (3, 3, 8, 8), "Conv_1": (3, 3, 8, 8)}
RES2NET = {"Conv_0": (1, 1, 16, 8), "Conv_1": (3, 3, 2, 2), "Conv_2": (1, 1, 8, 16)}
BESIDE = {"Conv_0": (1, 1, 8, 16), "Conv_1": (3, 3, 8, 16), "Conv_2": (3, 3, 16, 16)}


def _tree(block, stem=()):
    tree = {f"Block_{k}": {name: np.ones(shape, "f4") for name, shape in block.items()}
            for k in (0, 1)}  # fmt: skip
    return tree | {name: np.ones(shape, "f4") for name, shape in dict(stem).items()}


def _rules(**options):
    return Rules(
        branch=r"Block_([01])/(\w+)", stem="stem|Block_2", optional=("stem", "order"), **options
    )


@pytest.mark.parametrize(
    ("block", "stem", "groups"),
    [(RESNEXT, {"stem": (3, 3, 3, 16)}, {"Block_0/Conv_1": 4}),
     (MOBILE, {"stem": (3, 3, 3, 8), "stem_dw": (3, 3, 1, 8)},
      {"Block_0/Conv_1": 48, "stem_dw": 8}),
     (MOBILE, {"stem": (3, 3, 1, 8), "Block_2/Conv_1": (3, 3, 1, 48)},
      {"Block_0/Conv_1": 48, "Block_2/Conv_1": 48}),
     (PLAIN, {"stem": (3, 3, 1, 8), "stem_2": (3, 3, 8, 8)}, {}),
     (RES2NET, {}, {})],
    ids=["ResNeXt", "MobileNet", "of grey images", "grey images", "Res2Net"],
)  # fmt: skip
def test_groups(block, stem, groups):
    leaves = roles.assign(_tree(block, stem), _rules()).leaves
    own = [leaf for leaf in leaves if not leaf.path.startswith("Block_1")]
    assert {leaf.path: leaf.groups for leaf in own if leaf.groups > 1} == groups
    for leaf in own:
        taps, given = np.prod(leaf.shape[:-2]), leaf.shape[-1]
        fans = taps * leaf.shape[-2], taps * given // groups.get(leaf.path, 1)
        assert roles.fans(leaf) == fans, leaf.path


def test_a_layer_beside_the_one_before_has_no_groups():
    leaves = roles.assign(_tree(BESIDE), _rules(order=("Conv_0", "Conv_1", "Conv_2"))).leaves
    assert {leaf.groups for leaf in leaves} == {1}


@pytest.mark.parametrize(("shortcut", "fans"), [((1, 1, 1, 8), (9, 72)), ((1, 1, 8, 8), (9, 9))])
def test_a_first_block_may_take_grey_images(shortcut, fans):
    """Its shortcut says what it takes; a depthwise kernel of a later block stays one."""
    tree = {
        "Block_0": {"Conv_0": (3, 3, 1, 8), "Conv_1": (3, 3, 8, 8), "short": shortcut},
        "Block_1": {"Conv_0": (3, 3, 1, 8), "Conv_1": (1, 1, 8, 8)},
    }
    tree = {name: {key: np.ones(at, "f4") for key, at in block.items()}
            for name, block in tree.items()}  # fmt: skip
    rules = Rules(branch=r"Block_(\d)/(Conv_\d)", shortcut="short")
    leaves = {leaf.path: leaf for leaf in roles.assign(tree, rules).leaves}
    assert roles.fans(leaves["Block_0/Conv_0"]) == fans
    assert roles.fans(leaves["Block_1/Conv_0"]) == (9, 9)


def test_kernels_of_one_shape_have_the_same_groups():
    """ResNeXt-29's: its first block takes as many channels as a group of its second layer."""
    first = {"Conv_0": (1, 1, 2, 8), "Conv_1": (3, 3, 2, 8), "Conv_2": (1, 1, 8, 16)}
    tree = {name: {key: np.ones(shape, "f4") for key, shape in block.items()}
            for name, block in (("Block_0", first), ("Block_1", RESNEXT))}  # fmt: skip
    leaves = roles.assign(tree, _rules()).leaves
    assert [leaf.groups for leaf in leaves] == [1, 4, 1] * 2


def test_which_kernel_of_one_channel_takes_grey_images_is_asked():
    tree = _tree(MOBILE, {"stem": (3, 3, 1, 8), "stem_dw": (3, 3, 1, 48)})
    with pytest.raises(ValueError, match="'stem' .* and 'stem_dw' .* rules.axes .* 'HWIN'"):
        roles.assign(tree, _rules())
    leaves = {leaf.path: leaf for leaf in roles.assign(tree, _rules(axes={"_dw": "HWIN"})).leaves}
    assert (roles.fans(leaves["stem"]), roles.fans(leaves["stem_dw"])) == ((9, 72), (9, 9))


def test_each_group_is_drawn_as_a_layer_of_its_own():
    # Orthonormal columns to the roundings of float32; one matrix [9, 48] could not have so many.
    for shapes, groups in ((RESNEXT, 4), (MOBILE, 48)):
        tree = init.orthogonal(_tree(shapes), jax.random.key(0), rules=_rules())
        kernel = np.asarray(tree["Block_0"]["Conv_1"])
        for of_group in np.split(kernel.reshape(-1, kernel.shape[-1]), groups, axis=1):
            gram = of_group.T @ of_group
            np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)
