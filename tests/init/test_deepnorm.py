"""DeepNorm and Admin: weights leaf by leaf, constants against the published codes' formulas."""

import functools
import math

import jax
import numpy as np
import pytest

from nf_resnets import init, roles, schemes
from nf_resnets.init.transformers import alpha_beta, deepnorm
from nf_resnets.models.transformer import Transformer

ROUNDING = 1.3e-7  # two roundings of float32: of the factor and of the product
ENCODER, DECODER = 2, 3  # layers
DEPTH = 2 * ENCODER + 3 * DECODER


@functools.cache
def network(scheme, encoder=ENCODER, decoder=DECODER, d_model=16, d_ff=32):
    """A Transformer and its parameters as shapes."""
    model = Transformer(
        vocab_size=50, encoder_layers=encoder, decoder_layers=decoder, d_model=d_model,
        num_heads=2, d_ff=d_ff, scheme=scheme,
    )  # fmt: skip
    tokens = jax.ShapeDtypeStruct((1, 2), np.int32)
    return model, jax.eval_shape(model.init, jax.random.key(0), tokens, tokens)["params"]


def drawn(shapes):
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.standard_normal(leaf.shape).astype("f4"), shapes)


def test_every_leaf_of_our_transformer():
    before = drawn(network("deepnorm")[1])
    after = deepnorm(before, DEPTH)
    smaller = 0
    for (keys, old), new in zip(
        jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True
    ):
        path = roles.path_name(keys)
        value = path.endswith("kernel") and ("feed_forward" in path or "/value/" in path)
        factor = 1.0
        if value or path.endswith("out/kernel"):
            smaller += 1
            encoder = 1.15 * (ENCODER**4 * DECODER) ** -0.0625  # torchscale's encoder.py
            factor = encoder if path.startswith("encoder") else (12 * DECODER) ** -0.25
        np.testing.assert_allclose(new, factor * old, rtol=ROUNDING, err_msg=path)
    assert smaller == 4 + 6


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
    assert scheme.constants(0).identity.shape == (0,)
    with pytest.raises(ValueError, match="transitions=None found; .* or a decoder begins"):
        scheme.constants(30)


@pytest.mark.parametrize("layers", [1, 6, 100, 1000])
def test_the_bound_of_deepnorms_update_does_not_depend_on_the_depth(layers):
    """A sum over branches of ``(v^2 + w^2) / alpha^2``: 1 for one stack, and for a decoder."""

    def bound(branches, alpha, beta):
        return branches * 2 / beta**2 / alpha**2

    assert bound(2 * layers, *alpha_beta(layers, 0)[0]) == pytest.approx(1, rel=1e-12)
    assert bound(2 * layers, *alpha_beta(0, layers)[1]) == pytest.approx(1, rel=1e-12)
    for encoder in (6, 60):
        own, (alpha, beta) = alpha_beta(encoder, layers)
        assert bound(3 * layers, alpha, beta) == pytest.approx(1, rel=1e-12)
        # An encoder's goes through M cross-attentions; 0.81 and 1.15 are rounded as published.
        through = layers / beta**2 / alpha
        product = 2 * 2 * 1.15**2 / 0.81**2 / 12**0.5 / 3**0.25
        assert through * bound(2 * encoder, *own) == pytest.approx(product, rel=1e-12)


def test_a_tree_without_norms_is_refused():
    params = drawn(network("plain")[1])
    with pytest.raises(ValueError, match="no norms found in params"):
        init.deepnorm(params, DEPTH)
