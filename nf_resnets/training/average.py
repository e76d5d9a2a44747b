"""The exponential moving average of a run's parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax


class Average(NamedTuple):
    """Parameters averaged over the steps of a run.

    Attributes:
      params: the average, of the structure of the parameters; those of fewer bits are averaged in
        float32.
      decay: the fraction of the last average that a late step keeps, float32 []; data, not a
        constant of the program.
    """

    params: Any
    decay: jax.Array


def start_average(params: Any, decay: Any) -> Average:
    """The average before the first step: the parameters themselves.

    Args:
      params: the initialised parameter tree.
      decay: in ``[0, 1)`` as a float32; it may be traced.

    Raises:
      ValueError: if ``decay`` is outside its range.
    """
    if not isinstance(decay, jax.core.Tracer) and not 0 <= np.float32(decay) < 1:
        raise ValueError(f"average_decay={decay} found; expected 0 <= average_decay < 1.")

    def copied(leaf: Any) -> jax.Array:
        # The parameters' own arrays are given up to the first step, and cannot be given up twice.
        return jnp.array(leaf, jnp.promote_types(leaf.dtype, jnp.float32), copy=True)

    return Average(jax.tree.map(copied, params), jnp.asarray(decay, jnp.float32))


def moved_average(average: Average, params: Any, step: Any) -> Average:
    r"""The average after a step, in which the initial parameters have no part.

    After ``T`` steps it is ``(1 - d) sum_t d^{T-t} theta_t / (1 - d^T)``, which is
    ``optax.ema(d, debias=True)`` of the parameters ``theta_t`` after each step. It is kept
    corrected: a step moves it by the fraction ``(1 - d) / (1 - d^T)``, so the first replaces it.

    Args:
      average: the one before the step.
      params: the parameters after it.
      step: ``T``, the steps of the run, this one included.

    Source: Polyak, Juditsky, *Acceleration of Stochastic Approximation by Averaging*, 1992, with
    weights that forget, as in Szegedy et al., CVPR 2016, section 8, and the correction of Kingma,
    Ba, *Adam*, ICLR 2015, section 3.

    Example:
      >>> average = start_average({"w": jnp.array([9.0])}, 0.5)
      >>> average = moved_average(average, {"w": jnp.array([1.0])}, 1)
      >>> moved_average(average, {"w": jnp.array([4.0])}, 2).params["w"].tolist()
      [3.0]
    """
    fraction = optax.tree.bias_correction(1 - average.decay, average.decay, step)
    return average._replace(params=optax.incremental_update(params, average.params, fraction))


__all__ = ["Average", "moved_average", "start_average"]
