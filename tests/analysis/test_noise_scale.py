"""The gradient noise scale: exact expectations."""

import itertools

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
    assert np.isnan(analysis.noise_scale(GradientNoise(jnp.array([1.0, jnp.nan]), jnp.ones(2))))
