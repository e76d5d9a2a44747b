"""The exponential moving average of a run's parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Average(NamedTuple):
    """Parameters averaged over the steps of a run.

    Attributes:
      params: the average, of the structure of the parameters; those of fewer bits are averaged in
        float32.
      decay: the fraction of the last average that a step keeps, float32 []; data, not a constant of
        the program.
    """

    params: Any
    decay: jax.Array


def start_average(params: Any, decay: Any) -> Average:
    """The average before the first step: the parameters themselves.

    Args:
      params: the initialised parameter tree.
      decay: in ``[0, 1)``; it may be traced.

    Raises:
      ValueError: if ``decay`` is outside its range.
    """
    if not isinstance(decay, jax.core.Tracer) and not 0 <= decay < 1:
        raise ValueError(f"average_decay={decay} found; expected 0 <= average_decay < 1.")

    def copied(leaf: Any) -> jax.Array:
        # The parameters' own arrays are given up to the first step, and cannot be given up twice.
        return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32), copy=True)

    return Average(jax.tree.map(copied, params), jnp.asarray(decay, jnp.float32))


def moved_average(average: Average, params: Any) -> Average:
    r"""The average after a step.

    ``a <- d a + (1 - d) theta`` with the parameters ``theta`` after the step, so that with the
    initial ones ``theta_0`` it is ``a_T = d^T theta_0 + (1 - d) sum_t d^{T-t} theta_t`` after
    ``T`` steps.

    Args:
      average: the one before the step.
      params: the parameters after it.

    Source: Polyak, Juditsky, *Acceleration of Stochastic Approximation by Averaging*, 1992, with
    weights that forget, as in Szegedy et al., CVPR 2016, section 8.

    Example:
      >>> average = start_average({"w": jnp.array([1.0])}, 0.75)
      >>> moved_average(average, {"w": jnp.array([3.0])}).params["w"].tolist()
      [1.5]
    """
    # As a difference: an average of parameters that stand still stands still, too.
    params = jax.tree.map(
        lambda mean, leaf: mean + (1 - average.decay) * (leaf.astype(mean.dtype) - mean),
        average.params,
        params,
    )
    return average._replace(params=params)


__all__ = ["Average", "moved_average", "start_average"]
