"""How many steps runs need to a target at each batch size."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from nf_resnets.analysis import GradientNoise, noise_scale
from nf_resnets.sweep.select import METRICS, Row, by_rate, grouped

WINDOW = 40
"""A training metric is judged by its mean over this fraction of the points of its curve."""


@dataclasses.dataclass(frozen=True)
class StepsToTarget:
    """The fewest steps to a target in one group of runs, over its learning rates.

    Attributes:
      group: the fields and values that the group's runs share.
      metric: the metric that has a target.
      target: its value.
      rate: the rate with the fewest steps; None if no rate reaches the target.
      steps: the median over the seeds of that rate.
      low, high: of these seeds the last step at which the quickest had not reached it, and the step
        at which the slowest had.
      reached: how many runs of that rate reached the target.
      runs: how many of that rate have finished or diverged.
      noise_scale: the gradient noise scale of these runs up to the target, which predicts the
        critical batch size; None where it was not measured.
    """

    group: dict[str, Any]
    metric: str
    target: float
    rate: float | None = None
    steps: float | None = None
    low: float | None = None
    high: float | None = None
    reached: int = 0
    runs: int = 0
    noise_scale: float | None = None


def steps_to_target(
    rows: Sequence[Row],
    target: float,
    *,
    metric: str = "train_loss",
    by: Sequence[str] = ("scheme", "batch_size"),
) -> list[StepsToTarget]:
    """Returns for each group the fewest steps to a target, over the learning rates.

    A run reaches a target at the first point of its curve at which the mean over the last fortieth
    of the curve is as good; a test metric is taken as it was tested. A run that diverged did not
    reach it; other runs that did not finish are left out. Of a rate counts the median of its seeds.

    Args:
      rows: one for each run, with ``state``, the rate, and for a training metric the curve in
        ``measures``; for a test metric ``history``, the rows of the epochs.
      target: to be reached or passed.
      metric: as in :func:`nf_resnets.sweep.optimum`.
      by: the fields whose values the runs of a group share.

    Raises:
      ValueError: as :func:`nf_resnets.sweep.optima`.

    Source: Shallue, Lee, Antognini, Sohl-Dickstein, Frostig, Dahl, *Measuring the Effects of Data
    Parallelism on Neural Network Training*, 2019.

    Example:
      >>> rows = [{"scheme": "fixup", "batch_size": size, "peak_lr": 0.1, "state": "finished",
      ...          "measures": {"curve": {"step": [1, 2, 3], "loss": losses}}}
      ...         for size, losses in ((8, [3.0, 2.0, 1.0]), (16, [3.0, 1.0, 0.5]))]
      >>> [each.steps for each in steps_to_target(rows, 1.0)]
      [3, 2]
    """
    results = []
    for values, group in grouped(rows, by).items():
        over = [row for row in group if row["state"] in ("finished", "diverged")]
        best = dict[str, Any]()
        fewest = math.inf
        for rate, runs in sorted(by_rate(over).items()):
            ends = [_reach(row, metric, target) for row in runs]
            steps = statistics.median_high(at for _, at in ends)
            if steps < fewest:
                fewest, there = steps, [(before, at) for before, at in ends if at < math.inf]
                low, high = min(before for before, _ in there), max(at for _, at in there)
                best = {"rate": rate, "steps": steps, "low": low, "high": high}
                best |= {"reached": len(there), "runs": len(ends)}
                best["noise_scale"] = _noise(runs, steps)
        shared = dict(zip(by, values, strict=True))
        results.append(StepsToTarget(shared, metric, target, **best))
    return results


def _curve(row: Row, metric: str) -> list[tuple[int, float]]:
    """The steps of a finished run with the metric there, smoothed; none of others."""
    if row["state"] != "finished":
        return []
    if metric.startswith("test"):
        return [(e["step"], e[metric]) for e in row["history"] if e.get(metric) is not None]
    curve = row["measures"]["curve"]
    values = curve[metric.removeprefix("train_")]
    window = max(1, len(values) // WINDOW)
    ends = range(window, len(values) + 1)
    means = (statistics.fmean(values[end - window : end]) for end in ends)
    return list(zip(curve["step"][window - 1 :], means, strict=True))


def _reach(row: Row, metric: str, target: float) -> tuple[int, float]:
    """The last step before a run reaches the target, and that at which it has, or infinity."""
    before = 0
    for step, value in _curve(row, metric):
        if METRICS[metric] * (value - target) >= 0:
            return before, step
        before = step
    return before, math.inf


def _noise(rows: Sequence[Row], steps: float) -> float | None:
    """The gradient noise scale of some runs up to a step."""
    signal: list[float] = []
    noise: list[float] = []
    for row in rows:
        curve = row.get("measures", {}).get("curve", {})
        if row["state"] == "finished" and "gradient_signal" in curve:
            # A point is the mean of as many steps as lie before it.
            count = sum(step <= steps for step in curve["step"])
            signal += curve["gradient_signal"][:count]
            noise += curve["gradient_noise"][:count]
    return noise_scale(GradientNoise(jnp.array(signal), jnp.array(noise))) if signal else None
