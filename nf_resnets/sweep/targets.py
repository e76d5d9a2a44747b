"""How many steps runs need to a target at each batch size, and where more examples stop helping."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from nf_resnets.analysis import GradientNoise, noise_scale
from nf_resnets.sweep.regimes import LeftOut, Regimes, regimes
from nf_resnets.sweep.select import METRICS, Edge, Row, along, edge_of, grouped

WINDOW = 40
"""A training metric is judged by its mean over this fraction of the points of its curve."""

RESOLUTION = 2**0.25
"""The least factor by which steps to a target are uncertain, by the rates' grid and the noise."""


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
      at_edge: whether ``rate`` is the lowest or highest of such runs, so that fewer steps may do.
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
    at_edge: Edge | None = None
    noise_scale: float | None = None


def common_target(
    rows: Sequence[Row],
    *,
    metric: str = "train_loss",
    by: Sequence[str] = ("scheme", "batch_size"),
) -> float | None:
    """The best value that some rate reaches in every group with more than half of its runs.

    Groups in which no run has finished are left out. The value is rounded to two digits, to the
    side that all reach; it is None if no run has finished with a curve.
    """
    sign = METRICS[metric]
    tops = []
    for group in grouped(_over(rows), by).values():
        medians = [
            statistics.median_low(
                max((sign * value for _, value in _curve(row, metric)), default=-math.inf)
                for row in runs
            )
            for runs in grouped(group, ("peak_lr",)).values()
        ]
        tops += [top for top in [max(medians)] if top > -math.inf]
    if not tops:
        return None
    value = min(tops)
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1) if value else 1.0
    # What has two digits is a whole number of units, but for the rounding of the division.
    return abs(float(f"{unit * math.floor(value / unit + 1e-9):.2g}"))


def steps_to_target(
    rows: Sequence[Row],
    target: float,
    *,
    metric: str = "train_loss",
    by: Sequence[str] = ("scheme", "batch_size"),
) -> list[StepsToTarget]:
    """The fewest steps to a target, over the learning rates of each group of runs.

    A run reaches a target at the first point of its curve at which the mean over the last fortieth
    of the curve is as good; a test metric is taken as it was tested. A run that diverged did not
    reach it. Runs that are not over, failed or ran out of memory are left out. Of a rate counts the
    median over its seeds.

    Steps depend on the schedule: with one that ends with the run, such as a decay, runs of as many
    epochs need steps in proportion to ``1/B``. A constant rate, and as many steps, do not have that
    fault.

    Args:
      rows: one for each run, with ``state``, the rate, and for a training metric the curve in
        ``measures``; for a test metric ``tests``, which has ``step``, ``loss`` and ``accuracy``.
      target: to be reached or passed.
      metric: as in :func:`nf_resnets.sweep.optimum`.
      by: the fields whose values the runs of a group share.

    Returns:
      One for each group, in the order in which they first come.

    Source: Shallue, Lee, Antognini, Sohl-Dickstein, Frostig, Dahl, *Measuring the Effects of Data
    Parallelism on Neural Network Training*, 2019.

    Example:
      >>> rows = [{"scheme": "fixup", "batch_size": size, "peak_lr": 0.1, "state": "finished",
      ...          "measures": {"curve": {"step": [1, 2, 3], "loss": losses}}}
      ...         for size, losses in ((8, [3.0, 2.0, 1.0]), (16, [3.0, 1.0, 0.5]))]
      >>> [each.steps for each in steps_to_target(rows, common_target(rows))]
      [3, 2]
    """
    results = []
    for values, group in grouped(rows, by).items():
        of_rate = {rate: runs for (rate,), runs in grouped(_over(group), ("peak_lr",)).items()}
        medians = {
            rate: statistics.median_high(_reach(row, metric, target)[1] for row in runs)
            for rate, runs in of_rate.items()
        }
        best = min(sorted(medians), key=lambda rate: medians[rate], default=None)
        result = StepsToTarget(dict(zip(by, values, strict=True)), metric, target)
        if best is not None and medians[best] < math.inf:
            ends = [_reach(row, metric, target) for row in of_rate[best]]
            there = [(before, at) for before, at in ends if at < math.inf]
            result = dataclasses.replace(
                result,
                rate=best,
                steps=medians[best],
                low=min(before for before, _ in there),
                high=max(at for _, at in there),
                reached=len(there),
                runs=len(ends),
                at_edge=edge_of(best, sorted(medians)),
                noise_scale=_noise(of_rate[best], medians[best]),
            )
        results.append(result)
    return results


def knees(targets: Sequence[StepsToTarget]) -> list[Regimes]:
    """Fits how the steps fall with the batch size: perfect scaling, then no more.

    ``1/steps`` is fitted as rates are (:func:`nf_resnets.sweep.regimes`): ``steps = max(E / B,
    least)`` has perfect scaling up to ``batch_size = E / least``, and ``steps = least (1 + B_crit /
    B)`` is the same without a corner, after McCandlish et al. (2018). ``largest`` is ``1 /
    least``, ``slope`` is ``1 / E``.

    Args:
      targets: as :func:`steps_to_target` returns them.

    Returns:
      One fit for each group of the other fields, in the order in which they first come.

    Example:
      >>> def steps(B, s):
      ...     group = {"scheme": "fixup", "batch_size": B}
      ...     return StepsToTarget(group, "train_loss", 0.5, 0.1, s, s, s)
      >>> fits = knees([steps(8, 800), steps(32, 200), steps(128, 100), steps(512, 100)])
      >>> fits[0].batch_size  # perfect scaling up to here
      64.0
    """
    fits = []
    for group, same in along(targets, "batch_size"):
        points, left_out = [], []
        for one in same:
            size = one.group["batch_size"]
            if one.steps is None:
                left_out.append(LeftOut(size, "no rate reaches the target"))
            elif one.at_edge is not None:
                reason = "the best rate lies at the edge of its grid: fewer steps may do"
                left_out.append(LeftOut(size, reason))
            else:
                points.append((size, 1 / one.steps, 1 / one.high, 1 / max(one.low, 1)))
        fit = regimes(points, factor=RESOLUTION**2, group=group, metric=same[0].metric)
        fits.append(dataclasses.replace(fit, left_out=tuple(left_out)))
    return fits


def _over(rows: Sequence[Row]) -> list[Row]:
    """The runs of which it is known whether they reach a target."""
    return [row for row in rows if row["state"] in ("finished", "diverged")]


def _curve(row: Row, metric: str) -> list[tuple[int, float]]:
    """The steps of a finished run with the metric there, smoothed; none of others."""
    part, name = metric.split("_")
    curve = row.get("measures", {}).get("curve") if part == "train" else row.get("tests")
    if row["state"] != "finished" or not curve:
        return []
    values = curve[name]
    window = max(1, len(values) // WINDOW) if part == "train" else 1
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


__all__ = ["StepsToTarget", "common_target", "knees", "steps_to_target"]
