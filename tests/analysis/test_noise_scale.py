"""The gradient noise scale: exact expectations, a network by hand, what is refused."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis
from nf_resnets.analysis import GradientNoise


def test_the_estimates_are_unbiased():
    """Their mean over every batch that can be drawn, with repetition, is exact."""
    gradients = np.random.default_rng(0).standard_normal((5, 3)) + 0.5
    mean = gradients.mean(axis=0)
    signal, noise = (mean**2).sum(), ((gradients - mean) ** 2).sum() / 5
    # Batches of 4 in two parts of 2.
    batches = gradients[np.array(list(itertools.product(range(5), repeat=4)))]
    parts = batches.reshape(-1, 2, 2, 3).mean(axis=2)
    small, large = (parts**2).sum(axis=2).mean(axis=1), (parts.mean(axis=1) ** 2).sum(axis=1)
    found = analysis.pair_estimates(small, large, small_batch=2, large_batch=4)
    assert (found.signal.mean(), found.noise.mean()) == pytest.approx((signal, noise))
    # One batch alone can have a negative one; the scale is that of the means.
    assert found.signal.min() < 0
    assert analysis.noise_scale(found) == pytest.approx(noise / signal, rel=1e-5)  # float32
    assert analysis.noise_scale(GradientNoise(-found.signal, found.noise)) == np.inf


def test_estimates_one_by_one_are_those_of_an_array():
    for noise in ([1.0, 5.0], [1.0, 5.0, 3.0]):
        each = [GradientNoise(jnp.float32(1 + 2 * k), jnp.float32(n)) for k, n in enumerate(noise)]
        together = GradientNoise(1 + 2 * jnp.arange(len(noise)), jnp.array(noise))
        assert analysis.noise_scale(each) == analysis.noise_scale(together) < 2
    assert analysis.noise_scale(each[:2]) == 1.5
    assert np.isnan(analysis.noise_scale(GradientNoise(jnp.array([1.0, jnp.nan]), jnp.ones(2))))


@pytest.mark.parametrize("parts", [2, 6])
def test_a_network_by_hand(parts):
    rng = np.random.default_rng(1)
    weight, x = rng.standard_normal((4, 3)), rng.standard_normal((6, 4))
    labels = rng.integers(0, 3, 6)
    p = np.exp(x @ weight)
    residual = p / p.sum(axis=1, keepdims=True) - np.eye(3)[labels]
    each = x[:, :, None] * residual[:, None, :]  # the gradients of the examples
    of_parts = each.reshape(parts, 6 // parts, 12).mean(axis=1)
    small, large = (of_parts**2).sum(axis=1).mean(), (each.mean(axis=0) ** 2).sum()
    b = 6 // parts
    found = jax.jit(
        lambda params: analysis.gradient_noise(
            lambda at, images: images @ at["kernel"], params, jnp.asarray(x, jnp.float32),
            jnp.asarray(labels), parts=parts,
        )
    )({"kernel": jnp.asarray(weight, jnp.float32)})  # fmt: skip
    # Float32 sums of twelve squares, of which the difference is a tenth.
    assert found.signal == pytest.approx((6 * large - b * small) / (6 - b), rel=1e-4)
    assert found.noise == pytest.approx((small - large) / (1 / b - 1 / 6), rel=1e-4)
