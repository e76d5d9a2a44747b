"""Which layer of a branch is the last: attention of one weight, shortcuts and gates among layers.

A wrong last layer is silent. Fixup sets it to 0, and a shortcut of zeros cuts the skip path; keys
and queries of zeros, which a product joins, never get a gradient.
"""

import numpy as np
import pytest

from nf_resnets import init, roles
from nf_resnets.roles import Rules


def _layers(shapes, **options):
    """The layers of two blocks in the order that they are found in, or the error."""
    tree = {f"Block_{k}": {name: {"kernel": np.ones(shape)} for name, shape in block.items()}
            for k, block in enumerate(shapes)}  # fmt: skip
    rules = Rules(branch=r"Block_(\d+)/(?:.*/)?(\w+)/kernel", **options)
    found = [leaf for leaf in roles.assign(tree, rules).leaves if leaf.branches == (1,)]
    return [leaf.path.split("/")[1] for leaf in sorted(found, key=lambda leaf: leaf.layer)]


@pytest.mark.parametrize(
    "shapes",
    [
        {"qkv": (16, 48), "proj": (16, 16)},
        {"to_qkv": (16, 48), "to_out": (16, 16)},
        {"Wqkv": (16, 48), "Wo": (16, 16)},
        {"c_attn": (16, 48), "c_proj": (16, 16)},
        {"to_q": (16, 16), "to_kv": (16, 32), "to_out": (16, 16)},
        dict.fromkeys(("query_conv", "key_conv", "value_conv", "out_conv"), (1, 1, 16, 16)),
    ],
    ids=lambda shapes: "-".join(shapes),
)
def test_attention_ends_in_its_output(shapes):
    assert _layers([shapes] * 2) == list(shapes)


# Flax numbers what a block makes: the projection of its first block has the last number, or none.
_LAST = {"Conv_0": (3, 3, 16, 32), "Conv_1": (3, 3, 32, 32), "Conv_2": (1, 1, 16, 32)}
_FIRST = {"Conv_0": (1, 1, 16, 32), "Conv_1": (3, 3, 16, 32), "Conv_2": (3, 3, 32, 32)}
_WIDER = {
    "Conv_0": (1, 1, 16, 16), "Conv_1": (3, 3, 16, 16), "Conv_2": (1, 1, 16, 64),
    "Conv_3": (1, 1, 16, 64),
}  # fmt: skip
_ALIKE = {"Conv_0": (3, 3, 32, 32), "Conv_1": (3, 3, 32, 32), "Conv_2": (1, 1, 32, 32)}
_DENSE = {"Dense_0": (8, 32), "Dense_1": (32, 16), "Dense_2": (8, 16)}
_PLAIN = {"Conv_0": (3, 3, 32, 32), "Conv_1": (3, 3, 32, 32)}


@pytest.mark.parametrize(
    ("shapes", "leaf"),
    [(_LAST, "Conv_2"), (_FIRST, "Conv_0"), (_WIDER, "Conv_3"), (_ALIKE, "Conv_2"),
     (_DENSE, "Dense_2")],
    ids=["last", "first", "bottleneck", "of equal widths", "dense"],
)  # fmt: skip
def test_a_shortcut_among_the_layers_is_refused(shapes, leaf):
    with pytest.raises(ValueError, match=f"leaf 'Block_0/{leaf}/kernel'.*rules.shortcut"):
        _layers([shapes, _PLAIN])
    assert _layers([shapes, _PLAIN], order=(*shapes, *_PLAIN)) == list(shapes)


def test_branches_of_unequal_length_are_no_shortcuts():
    inverted = {"conv_1": (1, 1, 8, 48), "conv_2": (3, 3, 1, 48), "conv_3": (1, 1, 48, 8)}
    first = {"conv_1": (3, 3, 1, 8), "conv_2": (1, 1, 8, 8)}
    dense = {f"fc_{j}": (8, 8) for j in (1, 2, 3)}
    for longer, shorter in ((inverted, first), (dense, {"fc_1": (8, 8), "fc_2": (8, 8)})):
        assert _layers([longer, shorter]) == list(longer)


@pytest.mark.parametrize("name", ["se", "SEBlock_0", "squeeze_excite", "SqueezeAndExcitation_1"])
def test_a_gate_among_the_layers_is_refused(name):
    block = {"conv_1": (3, 3, 8, 8), f"{name}/fc_2": (8, 2), f"{name}/fc_3": (2, 8)}
    with pytest.raises(ValueError, match=rf"leaf 'Block_0/{name}/fc_2/kernel'.*gate.*rules.keep"):
        _layers([block] * 2)


def test_a_name_that_no_group_finds_is_refused():
    with pytest.raises(ValueError, match=r"rules.order names 'Conv_5'.*'0', '1', 'Conv_0'"):
        _layers([_PLAIN] * 2, order=("Conv_1", "Conv_5"))
    # Ready rules serve many networks.
    tree = {f"ResNetBlock_{k}": {f"Conv_{j}": {"kernel": np.ones((3, 3, 4, 4))} for j in (0, 1)}
            for k in (0, 1)}  # fmt: skip
    assert roles.assign(tree, init.rules.flax_resnet()).num_branches == 2


def test_names_that_are_one_text_are_refused():
    with pytest.raises(TypeError, match="rules.order='21' found; expected a tuple of texts"):
        Rules(branch=r"Block_(\d+)/Conv_(\d+)", order="21")
    assert Rules(branch=r"(\d+)", order=["2", "1"]).order == ("2", "1")


def test_an_expression_that_names_no_branches_is_told_of():
    tree = {f"Dense_{j}": {"kernel": np.ones((4, 4))} for j in range(8)}
    with pytest.raises(ValueError, match="4 given.*the groups before the last one.*one group"):
        init.fixup(tree, 4, rules=Rules(branch=r"Dense_(\d+)/kernel"))
