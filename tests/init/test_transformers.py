"""T-Fixup, DeepNorm, Admin and DyT: leaf by leaf, and constants against the published formulas."""

import functools
import math

import jax
import numpy as np
import pytest

from nf_resnets import init, schemes
from nf_resnets.init import Rules
from nf_resnets.models.transformer import Transformer
from tests.models.smallest import smallest
from tests.models.trees import filled_with, random_like, shapes
from tests.trees import pairs

ROUNDING = 1.3e-7  # two roundings of float32: of the factor and of the product
ENCODER, DECODER = 2, 3  # layers
DEPTH = 2 * ENCODER + 3 * DECODER


@functools.cache
def network(scheme):
    """The parameters of a Transformer, drawn."""
    model = Transformer(
        vocab_size=50, encoder_layers=ENCODER, decoder_layers=DECODER, d_model=16, num_heads=2,
        d_ff=32, scheme=scheme,
    )  # fmt: skip
    return random_like(shapes(model)["params"], 0)


SMALLER = {  # of the kernels of encoder and decoder, by the papers
    "t_fixup": (0.67 * ENCODER**-0.25, (9 * DECODER) ** -0.25),
    "deepnorm": (1.15 * (ENCODER**4 * DECODER) ** -0.0625, (12 * DECODER) ** -0.25),  # torchscale
}


def factor(scheme, path):
    """What the leaf of a path is multiplied by."""
    smaller = SMALLER[scheme]
    if path.endswith("embedding/embedding"):
        tables = ((9 * ENCODER) ** -0.25, smaller[1]) if scheme == "t_fixup" else (1, 1)
        return tables[path.startswith("decoder")]
    *_, branch, layer, kind = ["", "", *path.split("/")]
    if kind == "kernel" and (layer in ("value", "out") or branch == "feed_forward"):
        return smaller[path.startswith("decoder/")]
    return 1


@pytest.mark.parametrize(("scheme", "tables"), [("t_fixup", 2), ("t_fixup", 1), ("deepnorm", 0)])
def test_every_leaf_of_our_transformer(scheme, tables):
    before = dict(network(scheme))
    if tables == 1:  # for both and the head, in a network of somebody's own
        del before["decoder_embedding"], before["head"]
        before["embedding"] = before.pop("encoder_embedding")
    after = schemes.get(scheme).init(before, DEPTH)
    factors = []
    for path, old, new in pairs(before, after):
        factors.append(factor(scheme, path))
        np.testing.assert_allclose(new, factors[-1] * old, rtol=ROUNDING, err_msg=path)
    # 2 + 2 kernels of the encoder, 4 + 2 of the decoder, and the embeddings.
    assert sum(value != 1 for value in factors) == 4 + 6 + tables


@pytest.mark.parametrize("scheme", SMALLER)
def test_with_a_key_the_weights_are_xaviers(scheme):
    given, key = network(scheme), jax.random.key(5)
    start = schemes.get(scheme).init
    expected = start(init.xavier(given, key), DEPTH)
    jax.tree.map(np.testing.assert_array_equal, start(given, DEPTH, key=key), expected)


@pytest.mark.parametrize(
    ("options", "small"),
    [({}, 0.67 * 3**-0.25), ({"decoder": ""}, (9 * 3) ** -0.25)],
    ids=["ViT", "GPT"],
)
def test_t_fixup_of_one_stack(options, small):
    """The encoder's factors where there is no decoder, the decoder's where there is no encoder."""
    attention = {name: np.ones((4, 2, 2)) for name in ("query", "key", "value")}
    layer = {"attention": {**attention, "out": np.ones((2, 2, 4))}}
    layer["mlp"] = {"linear_1": np.ones((4, 8)), "linear_2": np.ones((8, 4))}
    tree = {"tokens": np.ones((9, 4)), **{f"layer_{i}": layer for i in range(3)}}
    rules = Rules(
        branch=r"layer_(\d+)/(\w+)/(\w+)$",
        embedding="^tokens$",
        order=("attention", "query", "key", "value", "out"),
        axes={"(query|key|value)$": "IOO", "out$": "IIO"},
    )
    for path, leaf in pairs(init.t_fixup(tree, 6, rules=rules, **options)):
        expected = 1 if path.endswith(("query", "key")) else small
        if path == "tokens":
            expected = (9 * 3) ** -0.25
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, err_msg=path)


@pytest.mark.parametrize("name", ["deepnorm", "admin"])
def test_constants_of_both_stacks_and_of_one(name):
    scheme = schemes.get(name)
    begins = tuple(k == 12 for k in range(30))  # 6 + 6 layers
    expected = {
        "deepnorm": (0.81 * (6**4 * 6) ** 0.0625, 18**0.25, 60**0.25),
        "admin": tuple((n / math.log(n) - 1) ** 0.5 for n in (13, 19, 61)),
    }
    encoder, decoder, alone = expected[name]
    found = scheme.constants(30, begins).identity
    np.testing.assert_allclose(found, [encoder] * 12 + [decoder] * 18, rtol=1e-6)
    np.testing.assert_allclose(scheme.constants(60, (False,) * 60).identity, alone, rtol=1e-6)
    with pytest.raises(ValueError, match="transitions=None found"):
        scheme.constants(30)


def test_what_does_not_fit_is_refused():
    params = network("plain")
    with pytest.raises(ValueError, match="no norms found in params"):
        init.deepnorm(params, DEPTH)
    with pytest.raises(ValueError, match="decoder='nowhere' matches no residual branch"):
        init.t_fixup(params, DEPTH, decoder="nowhere")
    renamed = {"Decoder_0": params["decoder"], "Encoder_0": params["encoder"]}
    rules = Rules(
        branch=r"(\w+)_0/layers/(\w+)/(\w+)/kernel$", stacked="/layers/",
        order=("Encoder", "Decoder", "query", "key", "value", "out", "linear_1", "linear_2"),
    )  # fmt: skip
    with pytest.raises(ValueError, match="8 attention and 5 feed-forward branches found"):
        init.t_fixup(renamed, DEPTH, rules=rules)
    init.t_fixup(renamed, DEPTH, rules=rules, decoder="Decoder")
    convs = {f"conv_{j}": np.ones((3, 3, 4, 4)) for j in (1, 2, 3)}
    with pytest.raises(ValueError, match="branch 'block' has m = 3 layers"):
        init.t_fixup({"block": convs}, 1, rules=Rules(branch=r"(block)/conv_(\d)"))


@pytest.mark.parametrize("name", ["dyt", "derf"])
def test_the_input_scales_start_where_they_are_told_to(name):
    model = smallest("transformer", name)
    params = filled_with(7.0, model)
    for options, near, others in (({}, 0.5, 0.5), ({"alpha": 0.2, "attention": 0.8}, 0.8, 0.2)):
        after = init.dyt(params, model.num_branches, **options)
        counts = {near: 0, others: 0}
        for path, leaf in pairs(after):
            value = 7.0
            if path.endswith("input_scale"):
                value = near if "attention" in path else others
                counts[value] += leaf.size
            np.testing.assert_array_equal(leaf, np.float32(value), err_msg=path)
        # Three layers: an attention and a feed-forward of the encoder, two and one of the decoder,
        # and one after either stack.
        assert counts == ({0.8: 3 + 6, 0.2: 3 + 3 + 2} if options else {0.5: 17})


def test_what_is_no_dyt_is_refused():
    model = smallest("transformer", "layernorm_pre")
    params = filled_with(1.0, model)
    with pytest.raises(ValueError, match="no input scale of DyT found by alphas="):
        init.dyt(params, model.num_branches)
    with pytest.raises(ValueError, match="attention=-1 found"):
        init.dyt(params, model.num_branches, attention=-1)
