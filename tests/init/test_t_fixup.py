"""T-Fixup leaf by leaf: on this library's Transformer, and on trees with the names of others."""

import functools
import math

import jax
import numpy as np
import pytest

from nf_resnets import roles
from nf_resnets.init import Rules
from nf_resnets.init.transformers import t_fixup
from nf_resnets.models.transformer import Transformer

ROUNDING = 1.3e-7  # two roundings of float32: of the factor and of the product
ENCODER, DECODER = 2, 3  # layers
DEPTH = 2 * ENCODER + 3 * DECODER


@functools.cache
def shapes(shared="none", d_model=32):
    model = Transformer(
        vocab_size=50,
        encoder_layers=ENCODER,
        decoder_layers=DECODER,
        d_model=d_model,
        num_heads=2,
        d_ff=2 * d_model,
        shared=shared,
        scheme="t_fixup",
    )
    assert model.num_branches == DEPTH
    tokens = jax.ShapeDtypeStruct((1, 2), np.int32)
    return jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]


def transformer(shared="none", dtype=np.float32, d_model=32):
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda leaf: rng.standard_normal(leaf.shape).astype(dtype), shapes(shared, d_model)
    )


def factor(path):
    """What the leaf of a path is multiplied by: the paper's list."""
    small, smaller = 0.67 * ENCODER**-0.25, (9 * DECODER) ** -0.25
    if path == "embedding/embedding" or path == "encoder_embedding/embedding":
        return (9 * ENCODER) ** -0.25
    if path == "decoder_embedding/embedding":
        return smaller
    *_, branch, layer, kind = ["", "", *path.split("/")]
    if kind == "kernel" and (layer in ("value", "out") or branch == "feed_forward"):
        return small if path.startswith("encoder/") else smaller
    return 1


@pytest.mark.parametrize("shared", ["none", "target", "all"])
def test_every_leaf_of_our_transformer(shared):
    before = transformer(shared)
    after = t_fixup(before, DEPTH)
    factors = {}
    for (keys, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        path = roles.path_name(keys)
        factors[path] = factor(path)
        np.testing.assert_allclose(new, factors[path] * old, rtol=ROUNDING, err_msg=path)
    # 2 + 2 kernels of the encoder, 4 + 2 of the decoder, and the embeddings.
    tables = {"none": 2, "target": 2, "all": 1}[shared]
    assert sum(value != 1 for value in factors.values()) == 4 + 6 + tables
    assert "head/kernel" not in factors or factors["head/kernel"] == 1


def test_with_a_key_the_weights_are_drawn():
    given = transformer(d_model=64)
    drawn = t_fixup(given, DEPTH, key=jax.random.key(5))
    again = t_fixup(drawn, DEPTH, key=jax.random.key(5))
    jax.tree.map(np.testing.assert_array_equal, again, drawn)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(drawn):
        path = roles.path_name(keys)
        if path.endswith("/bias"):
            assert not leaf.any(), path
        elif path.endswith("kernel"):
            limit = factor(path) * math.sqrt(6 / sum(leaf.shape[-2:]))
            # The largest of n uniform draws lies a part of 10 / n below the limit, or more, once in
            # exp(10) = 22,000 times; the limit itself is rounded.
            largest = np.abs(leaf).max() / limit
            assert 1 - 10 / leaf.size < largest < 1 + 1e-6, path
        else:
            # Of a standard deviation, five standard errors.
            std = leaf.std() / (factor(path) * 64**-0.5)
            assert std == pytest.approx(1, abs=5 / math.sqrt(2 * leaf.size)), path


PYTORCH = Rules(
    branch=r"(encoder|decoder)_layers/(\d+)/(\w+)/(q_proj|k_proj|v_proj|out_proj|fc1|fc2)$",
    embedding=r"_tokens$",
    head=r"^embed_out$",
    order=("encoder", "decoder", "q_proj", "k_proj", "v_proj", "out_proj"),
    layout="OIHW",
)


def fairseq_like():
    """A tree that is not stacked, of three and two layers, with fairseq's names."""
    attention = {name: np.ones((4, 4)) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    mlp = {"fc1": np.ones((8, 4)), "fc2": np.ones((4, 8))}
    encoder = {"self_attn": attention, "mlp": mlp}
    decoder = {"self_attn": attention, "encoder_attn": attention, "mlp": mlp}
    return {
        "encoder_tokens": np.ones((9, 4)),
        "decoder_tokens": np.ones((9, 4)),
        "encoder_layers": {str(i): encoder for i in range(3)},
        "decoder_layers": {str(i): decoder for i in range(2)},
        "embed_out": np.ones((9, 4)),
    }


def test_other_names_by_rules():
    after = t_fixup(fairseq_like(), 3 * 2 + 2 * 3, rules=PYTORCH)
    small, smaller = 0.67 * 3**-0.25, (9 * 2) ** -0.25
    for index in "012":
        layer = after["encoder_layers"][index]
        means = {name: value.mean() for branch in layer.values() for name, value in branch.items()}
        expected = {"q_proj": 1, "k_proj": 1, "v_proj": small, "out_proj": small}
        assert means == pytest.approx(expected | {"fc1": small, "fc2": small})
    for index in "01":
        layer = after["decoder_layers"][index]
        for name in ("self_attn", "encoder_attn"):
            means = {key: value.mean() for key, value in layer[name].items()}
            expected = {"q_proj": 1, "k_proj": 1, "v_proj": smaller, "out_proj": smaller}
            assert means == pytest.approx(expected)
        assert layer["mlp"]["fc2"].mean() == pytest.approx(smaller)
    assert after["encoder_tokens"].mean() == pytest.approx((9 * 3) ** -0.25)
    assert after["decoder_tokens"].mean() == pytest.approx(smaller)
    assert after["embed_out"].mean() == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"depth": 6}, "13 residual branches found, depth=6 given"),
        ({"decoder": "nowhere"}, "decoder='nowhere' matches no residual branch"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        t_fixup(transformer(), **({"depth": DEPTH} | options))


def test_a_branch_of_another_kind_is_refused():
    tree = {f"conv_{j}": np.ones((3, 3, 4, 4)) for j in (1, 2, 3)}
    rules = Rules(branch=r"(block)/conv_(\d)")
    with pytest.raises(
        ValueError, match="branch 'block' has m = 3 layers; T-Fixup knows attention"
    ):
        t_fixup({"block": tree}, 1, rules=rules)
