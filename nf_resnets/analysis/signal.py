"""Signal propagation: how large the two paths of every residual block are.

The quantities that the papers argue with: the second moment of skip, branch and their sum, which
part of the sum is the branch's, how much of it is the same for all images (the channels' means),
and how correlated the two paths are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from nf_resnets.analysis.observe import Activations, Network, observe


class Moments(NamedTuple):
    """Moments of an activation of every block, float32 ``[L]`` each.

    Attributes:
      second: its mean square over images, positions and channels, the ``Var`` of the closed forms.
      squared_mean: the mean over channels of the squared mean over images and positions.
      variance: the mean over channels of the variance over images and positions;
        ``second = squared_mean + variance``.
    """

    second: jax.Array
    squared_mean: jax.Array
    variance: jax.Array


class Signal(NamedTuple):
    """The moments of what every residual block gets, adds and gives, ``k = 1..L``.

    Attributes:
      input: of ``x_{k-1}``, as it enters the block.
      skip: of the skip path as it enters the sum.
      branch: of the residual branch as it enters the sum.
      sum: of the two together, before a ReLU or a norm that follows.
    """

    input: Moments
    skip: Moments
    branch: Moments
    sum: Moments

    @property
    def share(self) -> jax.Array:
        """The branch's share of the sum, ``Var branch / Var sum``, ``[L]``; 0 where both are 0."""
        return quotient(self.branch.second, self.sum.second)


def signal(network: Network, params: Any, *inputs: Any, **answers: Any) -> Signal:
    """Measures every residual block of a network on a batch.

    The arguments are those of :func:`nf_resnets.analysis.observe`.

    Example:
      >>> network = lambda w, x: x + jnp.maximum(x @ w, 0) @ w
      >>> signal(network, 2 * jnp.eye(2), jnp.array([[1.0, -1.0]])).branch.second.tolist()
      [8.0]
    """
    return signal_of(observe(network, params, *inputs, **answers)[1])


def signal_of(activations: Sequence[Activations]) -> Signal:
    """As :func:`signal`, from what :func:`nf_resnets.analysis.observe` returned."""
    blocks = [Signal(*map(moments, block)) for block in activations]
    return jax.tree.map(lambda *values: jnp.stack(values), *blocks)


def moments(x: jax.Array) -> Moments:
    """The moments of one activation, ``[B, ..., C]`` to scalars.

    Example:
      >>> [float(m) for m in moments(jnp.array([[3.0, 1.0], [1.0, 1.0]]))]
      [3.0, 2.5, 0.5]
    """
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    mean = rows.mean(axis=0)
    # The two-pass variance, for E[x^2] - E[x]^2 cancels where the mean is large.
    variance = jnp.square(rows - mean.reshape(1, -1)).mean()
    return Moments(jnp.square(rows).mean(), jnp.square(mean).mean(), variance)


def eta(activations: Sequence[Activations]) -> jax.Array:
    r"""The relative error of adding up variances, in percent, for every residual block.

    ``eta_k = |(Var[alpha_k x_{k-1}] + Var[beta_k F_k(x_{k-1})] - Var[x_k]) / Var[x_k]| 100%``.
    ``Var`` is each channel's variance over images and positions, averaged over the channels, and
    ``x_k`` the sum before a ReLU. It is 0 where skip and branch are uncorrelated.

    Args:
      activations: as :func:`nf_resnets.analysis.observe` returns them.

    Returns:
      float32 ``[L]``; NaN where the sum is constant.

    Source: Shao et al., *Is normalization indispensable for training deep neural networks?*,
    NeurIPS 2020, author feedback, equation 1.

    Example:
      >>> x = jnp.array([1.0, -1.0]).reshape(2, 1, 1, 1)
      >>> eta([Activations(input=x, skip=x, branch=x, sum=2 * x)]).tolist()  # |1 + 1 - 4| / 4
      [50.0]
    """
    of = signal_of(activations)
    skip, branch, total = (each.variance for each in (of.skip, of.branch, of.sum))
    return 100 * jnp.abs((skip + branch - total) / total)


def quotient(part: jax.Array, whole: jax.Array) -> jax.Array:
    """``part / whole``; 0 where the whole is 0, and NaN where it is NaN."""
    return jnp.where(whole == 0, 0.0, part / jnp.where(whole == 0, 1.0, whole))
