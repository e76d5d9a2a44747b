"""The largest learning rate at which gradient descent stays stable, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.init.tree import float_leaves


class StableRate(NamedTuple):
    """Two learning rates that the largest stable one lies between.

    Attributes:
      stable: the largest rate that was tried and found stable.
      unstable: the smallest rate that was tried and found unstable.
    """

    stable: float
    unstable: float


def descend(
    loss: Callable[[Any, jax.Array], jax.Array],
    params: Any,
    learning_rate: jax.Array,
    *,
    steps: int,
    momentum: float = 0.0,
) -> jax.Array:
    r"""The losses of gradient descent with momentum, before each step and after the last.

    ``v <- mu v + grad``, ``theta <- theta - eta v``, from ``v = 0``.

    Args:
      loss: ``loss(params, t) -> []``; the step's number ``t``, an int32 ``[]``, chooses the
        minibatch. A full-batch loss does not look at it.
      params: where the descent starts. Leaves that are no float arrays stay as they are; those of
        half precision count as float32.
      learning_rate: ``eta``, ``[]``.
      steps: how many.
      momentum: ``mu``.

    Returns:
      float32 ``[steps + 1]``.
    """
    values, put = float_leaves(params)

    def loss_at(values: Any, t: jax.Array) -> jax.Array:
        return loss(put(values), t)

    def step(carry: tuple[Any, Any], t: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
        at, velocity = carry
        value, gradient = jax.value_and_grad(loss_at)(at, t)
        velocity = jax.tree.map(lambda v, g: momentum * v + g, velocity, gradient)
        at = jax.tree.map(lambda p, v: p - learning_rate * v, at, velocity)
        return (at, velocity), value

    start = (values, jax.tree.map(jnp.zeros_like, values))
    (last, _), losses = lax.scan(step, start, jnp.arange(steps))
    return jnp.append(losses, loss_at(last, jnp.asarray(steps)))


def largest_stable_rate(
    losses_at: Callable[[jax.Array], jax.Array],
    low: float,
    high: float,
    *,
    resolution: float = 0.1,
    limit: float | None = None,
) -> StableRate:
    r"""The largest stable learning rate, by bisection of its logarithm.

    A rate is stable if all losses are finite and the mean of their last quarter is at most
    ``limit``. What is found is one border between stable and unstable rates; there may be others.
    A border that shows in ``t`` steps is off by a relative error of order ``1 / t``, since just
    beyond it the loss grows slowly.

    Args:
      losses_at: ``losses_at(rate) -> [T]``, the losses of a run of training (see :func:`descend`).
        It is called with rates as float32 arrays, once for each rate, so ``jax.jit`` pays.
      low: a rate that is stable.
      high: a rate that is not.
      resolution: how far apart, in log2, the two rates returned are at most.
      limit: the loss that a stable run ends below; by default the run's own first loss.

    Returns:
      The largest rate found stable and the smallest found unstable.

    Raises:
      ValueError: if ``low`` is unstable or ``high`` stable.

    Example:
      >>> loss = lambda p, t: 2 * p**2  # curvature 4: stable up to 2 / 4
      >>> run = jax.jit(lambda rate: descend(loss, jnp.ones(()), rate, steps=200))
      >>> found = largest_stable_rate(run, 0.1, 10.0, resolution=0.001)
      >>> found.stable < 0.5 < found.unstable
      True
    """

    def stable(rate: float) -> bool:
        losses = jax.device_get(losses_at(jnp.float32(rate)))
        last = losses[-max(len(losses) // 4, 1) :]
        bound = float(losses[0]) if limit is None else limit
        return bool(jnp.isfinite(losses).all()) and float(last.mean()) <= bound

    if not stable(low):
        raise ValueError(f"low={low} found, which is unstable; expected a smaller rate.")
    if stable(high):
        raise ValueError(f"high={high} found, which is stable; expected a larger rate.")
    while math.log2(high / low) > resolution:
        middle = math.sqrt(low * high)
        if stable(middle):
            low = middle
        else:
            high = middle
    return StableRate(low, high)


__all__ = ["StableRate", "descend", "largest_stable_rate"]
