r"""The gradient noise scale: at which batch size more examples stop making a step better.

The gradient of an example has mean ``G`` and covariance ``Sigma``. The mean over a batch of ``B``
has the expected square ``|G|^2 + tr(Sigma) / B``, so that two batch sizes tell the two apart.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class GradientNoise(NamedTuple):
    """Unbiased estimates, which may be negative; arrays of equal shape.

    Attributes:
      signal: ``|G|^2``.
      noise: ``tr(Sigma)``.
    """

    signal: jax.Array
    noise: jax.Array


def pair_estimates(
    small: jax.Array, large: jax.Array, *, small_batch: int, large_batch: int
) -> GradientNoise:
    r"""Estimates ``|G|^2`` and ``tr(Sigma)`` from gradients of two batch sizes ``b < B``.

    ``|G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b)`` and
    ``tr(Sigma) = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)``. The batch of ``B`` may be made of those of
    ``b``.

    The first two are ``|G_b|^2``, or its mean over several batches, and ``|G_B|^2``.

    Source: McCandlish, Kaplan, Amodei, *An Empirical Model of Large-Batch Training*, 2018,
    appendix A.1.

    Example:
      >>> found = pair_estimates(jnp.array(5.0), jnp.array(2.0), small_batch=1, large_batch=4)
      >>> float(found.signal), float(found.noise)  # 1 + 4 / 1 = 5 and 1 + 4 / 4 = 2
      (1.0, 4.0)
    """
    signal = (large_batch * large - small_batch * small) / (large_batch - small_batch)
    return GradientNoise(signal, (small - large) / (1 / small_batch - 1 / large_batch))


def squared_norm(tree: Any) -> jax.Array:
    """The sum of all squares of a tree, float32 ``[]``."""
    leaves = jax.tree.leaves(tree)
    return sum((jnp.square(leaf.astype(jnp.float32)).sum() for leaf in leaves), jnp.float32(0))


def noise_scale(estimates: GradientNoise) -> float:
    """``B_noise = tr(Sigma) / |G|^2`` of estimates ``[n]``, each averaged before they are divided.

    The quotient of each pair by itself would be biased, and its mean need not exist. ``B_noise``
    predicts the critical batch size, at which a run needs twice the fewest steps and twice the
    fewest examples.

    Returns:
      ``inf`` where the mean of ``|G|^2`` is not above 0, so that more estimates are needed; NaN
      where an estimate is NaN.

    Source: McCandlish, Kaplan, Amodei, 2018, the "simple" noise scale, and appendix A.1.

    Example:
      >>> noise_scale(GradientNoise(jnp.array([1.0, 3.0]), jnp.array([10.0, 14.0])))
      6.0
    """
    signal, noise = (float(jnp.mean(jnp.asarray(values))) for values in estimates)
    if math.isnan(signal + noise):
        return math.nan
    return noise / signal if signal > 0 else math.inf
