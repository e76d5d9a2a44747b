"""Learning-rate schedules of the papers, composed from optax's where it has their parts.

Every ``learning_rate`` is a number, and may be traced. A schedule maps the step, counted from 0, to
the rate of that step, float32 [], as optax takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import optax


def step_decay(learning_rate: Any, boundaries: Sequence[int], factor: float) -> optax.Schedule:
    r"""Multiplies the rate by a factor at each boundary, the first step of a new rate.

    ``eta(t) = eta factor**n(t)``, where ``n(t)`` is how many boundaries are at ``t`` or before it.

    Source: He, Zhang, Ren, Sun, *Deep Residual Learning*, CVPR 2016, section 4.2 (a tenth of the
    rate at two boundaries); Zagoruyko, Komodakis, BMVC 2016, section 3 (a fifth, at three).

    Example:
      >>> schedule = step_decay(0.5, boundaries=(2, 5), factor=0.1)
      >>> [round(float(schedule(step)), 4) for step in range(7)]
      [0.5, 0.5, 0.05, 0.05, 0.05, 0.005, 0.005]
    """
    rate = jnp.asarray(learning_rate, jnp.float32)
    # Powers of the exact factor, rounded once.
    rates = [rate * factor**count for count in range(len(boundaries) + 1)]
    parts = [optax.constant_schedule(each) for each in rates]
    return optax.join_schedules(parts, sorted(boundaries))


def halving(learning_rate: Any, num_steps: int, *, halvings: int = 10) -> optax.Schedule:
    r"""Keeps the rate for the first half, then halves it at the start of every equal part.

    With ``T = num_steps`` and ``h = halvings``, ``eta(t) = eta 2**(-n(t))`` where ``n(t) = 0`` for
    ``t < T/2`` and ``n(t) = 1 + floor((t - T/2) / (T/(2h)))`` from there on, at most ``h``. With
    ``h = 10`` over 200 epochs the rate is halved at epochs 100, 110, ..., 190. After the end the
    rate stays.

    Source: De, Smith, *Batch Normalization Biases Residual Blocks*, NeurIPS 2020 (the rate is
    constant for 100 epochs, then halved every 10).

    Example:
      >>> schedule = halving(0.8, num_steps=8, halvings=2)
      >>> [round(float(schedule(step)), 4) for step in range(8)]
      [0.8, 0.8, 0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    """
    # The first step of each part, ceil(part T / 2h) in whole numbers.
    starts = (-(-part * num_steps // (2 * halvings)) for part in range(halvings, 2 * halvings))
    return step_decay(learning_rate, [start for start in starts if start < num_steps], 0.5)


def cosine(learning_rate: Any, num_steps: int) -> optax.Schedule:
    r"""Lets the rate fall from its full value to zero along half a cosine.

    ``eta(t) = eta (1 + cos(pi t / T)) / 2`` with ``T = num_steps``, the first equation of section 3
    with ``eta_min = 0`` and no restart; from ``T`` on it is 0.

    Source: Loshchilov, Hutter, *SGDR: Stochastic Gradient Descent with Warm Restarts*, ICLR 2017.
    """
    return optax.cosine_decay_schedule(jnp.asarray(learning_rate, jnp.float32), num_steps)


def inverse_sqrt(learning_rate: Any, warmup_steps: int) -> optax.Schedule:
    r"""Lets the rate rise linearly, then fall as one over the root of the step.

    ``eta(t) = eta min((t + 1) / W, sqrt(W / (t + 1)))`` with ``W = warmup_steps``, at least 1: the
    ``W``-th step has the full rate, the ``4W``-th half of it. With ``eta = 1 / sqrt(d_model W)`` it
    is equation 3 of the source.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, section 5.3.

    Example:
      >>> schedule = inverse_sqrt(0.8, warmup_steps=4)
      >>> [round(float(schedule(step)), 4) for step in (0, 1, 3, 15, 63)]
      [0.2, 0.4, 0.8, 0.4, 0.2]
    """
    if warmup_steps < 1:
        raise ValueError(f"warmup_steps={warmup_steps} found; expected 1 or more.")

    def schedule(step: Any) -> Any:
        number = jnp.asarray(step, jnp.float32) + 1
        falling = jnp.sqrt(warmup_steps / number)
        return jnp.asarray(learning_rate, jnp.float32) * jnp.minimum(number / warmup_steps, falling)

    return schedule


def warmup(schedule: optax.Schedule, warmup_steps: int) -> optax.Schedule:
    r"""Lets a schedule's rate rise linearly from 0 over the first steps.

    ``eta(t) = schedule(t) min(1, (t + 1) / W)`` with ``W = warmup_steps``, 0 for none. Goyal et al.
    begin at the rate of one GPU's batch, an eighth or less of the last, and not near 0.

    Source: Goyal et al., *Accurate, Large Minibatch SGD*, 2017, section 2.2.

    Example:
      >>> schedule = warmup(halving(0.8, num_steps=8), warmup_steps=4)
      >>> [round(float(schedule(step)), 4) for step in range(4)]
      [0.2, 0.4, 0.6, 0.8]
    """
    if warmup_steps == 0:
        return schedule

    def warmed(step: Any) -> Any:
        number = jnp.asarray(step, jnp.float32) + 1
        return schedule(step) * jnp.minimum(1.0, number / warmup_steps)

    return warmed
