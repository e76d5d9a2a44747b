"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def halving(
    learning_rate: Any, num_steps: int, *, halvings: int = 10
) -> Callable[[Any], jax.Array]:
    r"""The rate is constant for the first half, then halved at the start of every equal part.

    With ``T = num_steps`` and ``h = halvings``, ``eta(t) = eta 2**(-n(t))`` where ``n(t) = 0`` for
    ``t < T/2`` and ``n(t) = 1 + floor((t - T/2) / (T/(2h)))`` from there on, at most ``h``. With
    ``h = 10`` over 200 epochs the rate is halved at epochs 100, 110, ..., 190.

    Args:
      learning_rate: ``eta``, a number; it may be traced.
      num_steps: ``T``, steps of the whole run.
      halvings: ``h``, into how many parts the second half is cut.

    Returns:
      ``schedule(step)``, the rate of the step counted from 0, as optax takes it: float32 [].

    Raises:
      ValueError: if ``num_steps`` or ``halvings`` is below 1, or ``2 * halvings * num_steps`` does
        not fit into 31 bits.

    Source: De, Smith, *Batch Normalization Biases Residual Blocks*, NeurIPS 2020, section 3 (the
    rate is constant for 100 epochs, then halved every 10).

    Example:
      >>> schedule = halving(0.8, num_steps=8, halvings=2)
      >>> [round(float(schedule(step)), 4) for step in range(8)]
      [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    """
    for name, value in (("num_steps", num_steps), ("halvings", halvings)):
        if value < 1:
            raise ValueError(f"{name}={value} found; expected at least 1.")
    if 2 * halvings * num_steps >= 2**31:
        raise ValueError(
            f"num_steps={num_steps} with halvings={halvings} found; expected 2 * halvings * "
            "num_steps below 2**31, for steps are counted in 32 bits."
        )

    def schedule(step: Any) -> jax.Array:
        # Whole numbers throughout: a quotient of floats would be off by one at some boundaries.
        part = 2 * halvings * jnp.minimum(jnp.asarray(step, jnp.int32), num_steps - 1) // num_steps
        count = jnp.maximum(part - halvings + 1, 0)
        return jnp.asarray(learning_rate, jnp.float32) * jnp.exp2(-count.astype(jnp.float32))

    return schedule


def warmup(
    schedule: Callable[[Any], jax.Array], warmup_steps: int, num_steps: int
) -> Callable[[Any], jax.Array]:
    r"""Lets a schedule's rate rise linearly from 0 over the first steps.

    ``eta(t) = schedule(t) min(1, (t + 1) / W)`` with ``W = warmup_steps``.

    Args:
      schedule: the rate of the step counted from 0.
      warmup_steps: ``W``; 0 for none.
      num_steps: steps of the whole run.

    Returns:
      The schedule with warm-up, float32 [].

    Raises:
      ValueError: if ``warmup_steps`` is negative or longer than the run.

    Source: Goyal et al., *Accurate, Large Minibatch SGD*, 2017, section 2.2.

    Example:
      >>> schedule = warmup(halving(0.8, num_steps=8), warmup_steps=4, num_steps=8)
      >>> [round(float(schedule(step)), 4) for step in range(4)]
      [0.2, 0.4, 0.6, 0.8]
    """
    if not 0 <= warmup_steps <= num_steps:
        raise ValueError(
            f"warmup_steps={warmup_steps} found; expected at least 0 and no more than the run's "
            f"{num_steps} steps."
        )
    if warmup_steps == 0:
        return schedule

    def warmed(step: Any) -> jax.Array:
        made = jnp.asarray(step, jnp.float32) + 1
        return schedule(step) * jnp.minimum(1.0, made / warmup_steps)

    return warmed


__all__ = ["halving", "warmup"]
