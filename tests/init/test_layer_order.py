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
_TAPS = {"Conv_0": (3, 3, 16, 32), "Conv_1": (3, 3, 16, 32), "Conv_2": (3, 3, 32, 32)}
_TWO = {"Conv_0": (3, 3, 16, 32), "Conv_1": (3, 3, 32, 32), "Conv_2": (2, 2, 16, 32)}
_DENSE = {"Dense_0": (8, 32), "Dense_1": (32, 16), "Dense_2": (8, 16)}
_PLAIN = {"Conv_0": (3, 3, 32, 32), "Conv_1": (3, 3, 32, 32)}


@pytest.mark.parametrize(
    ("shapes", "leaf"),
    [(_LAST, "Conv_2"), (_FIRST, "Conv_0"), (_WIDER, "Conv_3"), (_ALIKE, "Conv_2"),
     (_DENSE, "Dense_2"), (_TAPS, "Conv_0"), (_TWO, "Conv_2")],
    ids=["last", "first", "bottleneck", "of equal widths", "dense", "first, 3x3", "last, 2x2"],
)  # fmt: skip
def test_a_shortcut_among_the_layers_is_refused(shapes, leaf):
    with pytest.raises(ValueError, match=f"leaf 'Block_0/{leaf}/kernel'.*rules.shortcut"):
        _layers([shapes, _PLAIN])
    assert _layers([shapes, _PLAIN], order=(*shapes, *_PLAIN)) == list(shapes)


def test_branches_of_unequal_length_are_no_shortcuts():
    inverted = {"conv_1": (1, 1, 8, 48), "conv_2": (3, 3, 1, 48), "conv_3": (1, 1, 48, 8)}
    first = {"conv_1": (3, 3, 1, 8), "conv_2": (1, 1, 8, 8)}
    dense = {f"fc_{j}": (8, 8) for j in (1, 2, 3)}
    gated = {"a_gate": (3, 3, 8, 16), "b_conv": (3, 3, 8, 16), "c_conv": (3, 3, 16, 16)}
    for longer, shorter in (
        (inverted, first), (dense, {"fc_1": (8, 8), "fc_2": (8, 8)}), (gated, gated),
    ):  # fmt: skip
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


CONV = (3, 3, 8, 8)


@pytest.mark.parametrize(
    "block",
    [{"Conv_0": CONV, "Conv_1": CONV, "Dense_0": (8, 2), "Dense_1": (2, 8)},
     {"Conv_0": CONV, "Conv_1": (1, 1, 8, 2), "Conv_2": (1, 1, 2, 8)},
     {"c1_expand": (1, 1, 4, 8), "c2_depthwise": (3, 3, 1, 8), "c3_fc": (8, 2), "c4_fc": (2, 8),
      "c5_project": (1, 1, 8, 4)}],
    ids=["dense", "pointwise", "inside"],
)  # fmt: skip
def test_a_gate_without_a_name_is_refused(block):
    with pytest.raises(ValueError, match="squeeze and restore .* rules.keep to do, or rules.order"):
        _layers([block] * 2)
    assert _layers([block] * 2, order=tuple(block)) == list(block)


def test_a_bottleneck_and_an_expansion_are_no_gates():
    for block in (
        {"conv_1": (1, 1, 8, 2), "conv_2": (3, 3, 2, 2), "conv_3": (1, 1, 2, 8)},
        {"conv_1": (7, 7, 1, 8), "dense_1": (8, 32), "dense_2": (32, 8)},
        {"dense_1": (8, 2), "dense_2": (2, 8)},
    ):
        assert _layers([block] * 2) == list(block)


def test_a_depthwise_block_that_changes_the_width_needs_a_shortcut():
    """EfficientNet's have none: with a last layer of zeros nothing passes them."""
    names = ("Conv_0", "Conv_1", "Conv_2")
    wider, own = (
        dict(zip(names, ((1, 1, 8, 48), (3, 3, 1, 48), (1, 1, 48, width)), strict=True))
        for width in (16, 8)
    )
    with pytest.raises(ValueError, match="'Block_1' has a depthwise kernel, takes 8 .* gives 16"):
        _layers([own, wider])
    first = {"Conv_0": (3, 3, 1, 8), "Conv_1": (1, 1, 8, 16)}  # without expansion
    with pytest.raises(ValueError, match="takes 8 channels, gives 16 .* expected .* rules.stem"):
        _layers([first, own])
    assert _layers([own, wider], optional=("shortcut",)) == list(names)
    tree = {"Block_0": {name: np.ones(shape) for name, shape in wider.items()},
            "Block_0_shortcut": np.ones((1, 1, 8, 16))}  # fmt: skip
    roles.assign(tree, Rules(branch=r"Block_(\d+)/Conv_(\d+)", shortcut="shortcut"))


def test_an_order_in_which_layers_do_not_fit_is_refused():
    """EfficientNet's names: the letters put the depthwise kernel before the expansion."""
    block = {"conv_exp": (1, 1, 8, 32), "conv_dw": (3, 3, 1, 32), "conv_pwl": (1, 1, 32, 8)}
    with pytest.raises(ValueError, match="Block_0/conv_dw.* do not take what .* rules.order"):
        _layers([block] * 2)
    assert _layers([block] * 2, order=tuple(block)) == list(block)


MLP = {"Dense_0": (8, 32), "Dense_1": (32, 8)}
FLAX = {
    "Dense_0": (32, 8),
    "Dense_1": (8, 32),
}  # Dense(8)(gelu(Dense(32)(x))): the outer one is first
ATTENTION = dict.fromkeys(("k", "out", "q", "v"), (8, 8))


@pytest.mark.parametrize(
    ("blocks", "match"),
    [([FLAX] * 2, "'Block_0/Dense_0/kernel', which takes 32 .* neither is a width"),
     ([{**FLAX, "Dense_2": (8, 32)}] * 2, "Dense_2/kernel, .* in another one they do"),
     ([{"w1": (8, 32), "w2": (32, 8), "w3": (8, 32)}] * 2, "w3/kernel, .* in another one they do"),
     ([dict.fromkeys(("Conv_0", "Conv_1"), (3, 3, 4, 4)), {"Conv_0": CONV, "Conv_1": (3, 3, 4, 8)},
       {"Conv_0": CONV, "Conv_1": CONV}], "Block_1/Conv_0.* in another one"),
     ([{**ATTENTION, **MLP}] * 2, "6 layers, Dense_0.* and q, k, v among them are an attention's"),
     ([{"qkv": (8, 24), "proj": (8, 8), **MLP}] * 2, "4 layers, .* and qkv among them"),
     ([{f"linear_{name}": (8, 8) for name in ("q", "k", "v", "out", "pos")}] * 2,
      "linear_out/kernel' is the last layer .* linear_k, linear_out, .* it is not"),
     ([{"c1": (1, 1, c, 16), "c2": (3, 3, 16, 4)} for c in (8, 12)], "gives 4, .* 12, .*DenseNet")],
    ids=["nested", "nested gate", "gate last", "nested convolutions", "attention and feed-forward",
         "fused", "output by name", "dense connections"],
)  # fmt: skip
def test_branches_that_are_none_in_this_order_are_refused(blocks, match):
    tree = {f"Block_{k}": {name: {"kernel": np.ones(shape)} for name, shape in block.items()}
            for k, block in enumerate(blocks)} | {"head": np.ones((8, 4))}  # fmt: skip
    with pytest.raises(ValueError, match=match):
        roles.assign(tree, Rules(branch=r"Block_(\d+)/(\w+)/kernel", head="head"))


@pytest.mark.parametrize(
    "block",
    [{"Dense_0": (16, 5), "Dense_1": (5, 16), "Dense_2": (8, 32), "Dense_3": (32, 8)},
     {"Dense_0": (12, 12), "Dense_1": (8, 32), "Dense_2": (32, 8)},
     {"Dense_0": (8, 32), "Dense_1": (32, 8), "Dense_2": (12, 12)}],
    ids=["MLP-Mixer", "ResMLP", "tokens last"],
)  # fmt: skip
def test_two_branches_of_one_module_are_refused(block):
    """One mixes tokens and one channels: both must end in zeros, and both count."""
    with pytest.raises(ValueError, match=r"first \d take and give .* on \d+, as two branches do"):
        _layers([block] * 2)
    assert _layers([block] * 2, order=tuple(block)) == list(block)


def test_two_branches_of_one_module_are_told_apart():
    block = {"Dense_0": (16, 5), "Dense_1": (5, 16), "Dense_2": (8, 32), "Dense_3": (32, 8)}
    tree = {f"Block_{k}": {name: np.ones(shape) for name, shape in block.items()} for k in (0, 1)}
    found = roles.assign(tree, Rules(branch=r"Block_(\d+)/(Dense_(?=[23]))?(?:Dense_)?(\d)"))
    last = [leaf.path for leaf in found.leaves if leaf.layer == leaf.m == 2]
    assert last == [f"Block_{k}/Dense_{j}" for k in (0, 1) for j in (1, 3)]


def test_a_layer_that_feeds_the_output_is_refused():
    """WaveNet's: set to 0 as the last one, it would cut the output off."""
    block = {"Conv_0": (2, 8, 16), "Conv_1": (1, 8, 8), "Conv_2": (1, 8, 24)}
    with pytest.raises(ValueError, match="takes 8 channels, its last layer 'Block_0/Conv_2"):
        _layers([block] * 2)
    assert _layers([block] * 2, order=tuple(block)) == list(block)


PLAIN = {"Conv_0": (3, 3, 8, 8), "Conv_1": (3, 3, 8, 8)}


@pytest.mark.parametrize("embedded", [32, 50])
def test_the_layer_of_a_time_embedding_is_refused_in_a_branch(embedded):
    """By its name it would be the last one, and become 0 in place of the convolution."""
    block = {**PLAIN, "Dense_0": (embedded, 8)}
    with pytest.raises(ValueError, match=f"Dense_0/kernel' .* takes {embedded} channels, which no"):
        _layers([block] * 2)
    assert _layers([block] * 2, order=("Conv_0", "Dense_0", "Conv_1")) == [
        "Conv_0", "Dense_0", "Conv_1"
    ]  # fmt: skip


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_shortcut_is_refused_wherever_it_is_constructed(place):
    layers = [(3, 3, 8, 16), (3, 3, 16, 16)]
    layers.insert(place, (1, 1, 8, 16))
    wider = {f"Conv_{j}": shape for j, shape in enumerate(layers)}
    with pytest.raises(ValueError, match=f"Conv_{place}/kernel' .* as a shortcut beside the other"):
        _layers([PLAIN, wider])


@pytest.mark.parametrize(
    "block",
    [{"Conv_0": (7, 7, 1, 8), "Dense_0": (8, 32), "Dense_1": (32, 8)},
     {"Conv_0": (7, 7, 1, 8), "Dense_0": (8, 64), "Dense_1": (32, 8)},
     {"Conv_0": (3, 3, 8, 8), "Conv_1": (3, 3, 8, 16)},
     {"Conv_0": (3, 3, 8, 24), "Conv_1": (3, 3, 24, 24)},
     {"Dense_0": (8, 64), "Dense_1": (12, 12), "Dense_2": (32, 8)},
     {"Conv_0": (3, 3, 8, 8), "Conv_1": (1, 1, 8, 8), "Conv_2": (3, 3, 8, 8)}],
    ids=["ConvNeXt", "gated", "gated at the end", "towers", "tokens inside", "pointwise between"],
)  # fmt: skip
def test_pointwise_layers_of_a_branch_are_not_refused(block):
    assert _layers([block] * 2) == list(block)


@pytest.mark.parametrize(
    "names",
    ["c_q c_k c_v c_proj", "queries keys values projection", "w_qs w_ks w_vs fc",
     "attn_q attn_k attn_v attn_proj", "query_w key_w value_w dense_w", "to_q k_proj value o"],
)  # fmt: skip
def test_what_else_is_in_the_names_of_an_attention_does_not_matter(names):
    """The order of the letters would set the values to 0 in place of the output."""
    in_order = names.split()
    assert _layers([dict.fromkeys(sorted(in_order), (8, 8))] * 2) == in_order


def test_an_attention_among_layers_of_equal_last_names_is_refused():
    """BERT's: an expression for a whole layer finds three that are called dense."""
    names = ("self/query", "self/key", "self/value", "output/dense", "mlp/dense", "last/dense")
    tree = {f"layer/{k}/{name}/weight": np.ones((8, 8), "f4") for k in (0, 1) for name in names}
    with pytest.raises(ValueError, match="6 layers, .* an attention's, which with its output is a"):
        init.fixup(tree, 2, rules=Rules(branch=r"layer/(\d)/(.+)/weight", layout="HWIO"))


def test_a_gate_that_halves_its_channels_is_in_order():
    """NAFNet's, in a network in which 16 is a width, too."""
    gated = {"conv_0": (1, 1, 8, 16), "conv_1": (3, 3, 1, 16), "conv_2": (1, 1, 8, 8)}
    wider = {"conv_0": (3, 3, 16, 16), "conv_1": (3, 3, 16, 16)}
    assert _layers([gated, gated, wider]) == list(gated)


@pytest.mark.parametrize(
    "block",
    [MLP, {"Dense_0": (8, 32), "Dense_1": (8, 32), "Dense_2": (32, 8)},
     dict.fromkeys(("k", "q", "v"), (8, 8)), {"Conv_0": (3, 3, 8, 16), "Conv_1": (3, 3, 16, 16)}],
    ids=["feed-forward", "gate", "attention without an output", "wider"],
)  # fmt: skip
def test_branches_in_order_are_not_refused(block):
    assert _layers([block] * 2) == list(block)


@pytest.mark.parametrize(
    ("names", "said"),
    [(("one", "three", "two"), True), (("post", "pre"), True), (("Conv_0", "Conv_1"), False),
     (("key", "out", "query", "value"), False)],
    ids=["numbers in letters", "before and after", "numbered", "attention"],
)  # fmt: skip
def test_an_order_by_letters_alone_is_said(names, said):
    tree = {f"Block_{k}": {name: np.ones((8, 8), "f4") for name in names} for k in (0, 1)}
    rules = Rules(branch=r"Block_(\d+)/(\w+)")
    found = init.describe(tree, 2, rules=rules)
    assert found.by_name == ((names,) if said else ())
    line = f"layers in the order of their names: {', '.join(names)} (rules.order for another)"
    assert (line in str(found)) == said
    ordered = Rules(branch=r"Block_(\d+)/(\w+)", order=names[::-1])
    assert init.describe(tree, 2, rules=ordered).by_name == ()


def test_a_text_of_two_groups_is_no_order():
    """It would turn round the blocks, too."""
    block = {"Dense_0": (8, 8), "Dense_1": (8, 8)}
    tree = {f"Block_{k}": {name: np.ones(shape) for name, shape in block.items()}
            for k in range(3)}  # fmt: skip
    rules = Rules(branch=r"Block_(\d+)/Dense_(\d+)", order=("1", "0"))
    with pytest.raises(ValueError, match=r"'1', which groups 1 and 2 of .*as \(Dense_"):
        roles.assign(tree, rules)
    assert _layers([block] * 3, order=("Dense_1", "Dense_0")) == ["Dense_1", "Dense_0"]
