"""Inputs, weights and a comparison for the tests of ``norm_free``."""

import jax
import numpy as np

X = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)


def drawn(tree, scale=0.3, seed=1):
    """Values that hide nothing: a zero that starts as one would hide where it stands."""
    random = np.random.default_rng(seed)
    return jax.tree.map(lambda v: (scale * random.normal(size=v.shape)).astype(v.dtype), tree)


def assert_same(one, two):
    # Both are float32 sums of some thousand products, in different orders.
    scale = np.abs(two).max()
    assert scale > 1e-3
    np.testing.assert_allclose(one, two, atol=1e-5 * scale)
