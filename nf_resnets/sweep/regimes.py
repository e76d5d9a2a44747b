"""How the best learning rate moves with the batch size: a curve, fitted to best rates."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from nf_resnets.sweep.select import Optimum, along

Shows = Literal["linear", "saturated", "both", "neither"]

SHOWN = 3.84
"""The data show a part of the curve if the fit without it is worse by this much in chi^2: the
95% point for one parameter."""


@dataclasses.dataclass(frozen=True)
class Regimes:
    """The curve ``min(slope * B, largest)`` of the best rates of several batch sizes ``B``.

    Errors are standard errors of the logarithm to base 2: a range ends at ``value * 2**error``.

    Attributes:
      shows: which of the two parts the data show.
      slope: ``eta/B`` of small batches; None if the data do not show it.
      largest: the rate of large batches; None if the data do not show it.
      batch_size: ``largest / slope``, where the parts meet; None unless both show.
      left_out: of each batch size that is not in the fit the reason.
      group: the fields and values that all points share.
      metric: by what the best rates were chosen.
    """

    shows: Shows
    slope: float | None
    slope_error: float | None
    largest: float | None
    largest_error: float | None
    batch_size: float | None
    batch_size_error: float | None
    left_out: Mapping[float, str]
    group: Mapping[str, Any]
    metric: str


def regimes_of(optima: Sequence[Optimum]) -> list[Regimes]:
    """Fits the curve ``eta = min(slope * B, largest)`` to the best rates of several batch sizes.

    There is a fit for each metric and group of optima that share all but the ``batch_size``. A best
    rate weighs ``error**-2`` in ``log2 eta``: an error bar is half the width of the range of rates
    as good, and at least half a step of the grid, the median factor between neighbouring rates.

    The data show the linear part if a flat line alone is worse by 3.84 in chi^2 (the 95% point for
    one parameter), and the saturated part if a line of slope 1 alone is. Batch sizes without a best
    rate, or with one at the edge of its grid, are left out and named.

    Source: De and Smith 2020, the experiments on batch size. The exact fit is ours.

    Example:
      >>> best = {8: 0.25, 32: 1.0, 128: 2.0, 512: 2.0}
      >>> (fit,) = regimes_of([
      ...     Optimum({"batch_size": size}, "test_accuracy", (), best=rate, low=rate, high=rate)
      ...     for size, rate in best.items()])
      >>> fit.shows, fit.slope, fit.largest, fit.batch_size
      ('both', 0.03125, 2.0, 64.0)
    """
    return [_fit(group, curve) for group, curve in along(optima, "batch_size")]


def _fit(group: Mapping[str, Any], points: Sequence[Optimum]) -> Regimes:
    pairs = (pair for one in points for pair in zip(one.rates, one.rates[1:], strict=False))
    factors = [high.rate / low.rate for low, high in pairs]
    step = math.log2(statistics.median_high(factors)) if factors else 1.0
    ordered = sorted(points, key=lambda one: one.group["batch_size"])
    reasons = {one.group["batch_size"]: _why_left_out(one) for one in ordered}
    kept = [one for one in ordered if not reasons[one.group["batch_size"]]]
    numbers = [(one.group["batch_size"], one.best, one.low, one.high) for one in kept]
    x, y, low, high = np.log2(np.array(numbers, float).reshape(-1, 4).T)
    error = np.maximum((high - low) / 2, step / 2)

    def chi2(curve: _Curve) -> float:
        return float(np.sum(((y - curve(x)) / error) ** 2))

    line, flat = _Curve(_mean(y - x, error), math.inf), _Curve(math.inf, _mean(y, error))
    curve = min(_bent(x, y, error), key=chi2, default=line)
    # With fewer than two batch sizes every curve passes through, and nothing is shown.
    linear = bool(kept) and chi2(flat) - chi2(curve) > SHOWN
    saturated = bool(kept) and chi2(line) - chi2(curve) > SHOWN
    both = linear and saturated
    if linear != saturated:
        curve = line if linear else flat
    shown = {"slope": linear, "largest": saturated, "batch_size": both}
    values = curve.slope, curve.largest, curve.largest - curve.slope
    fitted: dict[str, Any] = {}
    for name, number, deviation in zip(shown, values, _errors(curve, x, error), strict=True):
        fitted[name] = 2**number if shown[name] else None
        fitted[f"{name}_error"] = deviation if shown[name] else None
    return Regimes(
        shows="both" if both else "linear" if linear else "saturated" if saturated else "neither",
        left_out={size: reason for size, reason in reasons.items() if reason},
        group=group,
        metric=points[0].metric,
        **fitted,
    )


class _Curve(NamedTuple):
    """``y = min(slope + x, largest)`` in log2 space; infinity for a part that is not there."""

    slope: float
    largest: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.minimum(self.slope + x, self.largest)


def _why_left_out(point: Optimum) -> str:
    if point.best is None:
        return "no run finished"
    return {
        None: "",
        "lowest": f"the best rate, {point.best:g}, is the lowest tried: only an upper bound",
        "highest": f"the best rate, {point.best:g}, is the highest tried: only a lower bound",
        "only": f"only one rate, {point.best:g}, was tried",
    }[point.at_edge]


def _mean(values: np.ndarray, error: np.ndarray) -> float:
    """The weighed mean; infinity, a part that is not there, of nothing."""
    return float(np.average(values, weights=error**-2)) if len(values) else math.inf


def _bent(x: np.ndarray, y: np.ndarray, error: np.ndarray) -> Iterator[_Curve]:
    """Curves of two parts that meet between or at batch sizes, the nearest one among them."""
    sizes = np.unique(x)
    for below, above in zip(sizes, sizes[1:], strict=False):
        first, last = x <= below, x >= above
        yield _Curve(_mean((y - x)[first], error[first]), _mean(y[last], error[last]))
    for meet in sizes.tolist():
        largest = _mean(y - np.minimum(x - meet, 0), error)
        yield _Curve(largest - meet, largest)


def _errors(curve: _Curve, x: np.ndarray, error: np.ndarray) -> Iterator[float | None]:
    """Standard errors of slope, largest and their quotient; None of a part without points."""
    meet = curve.largest - curve.slope  # a point there tells neither
    weights = [float((error[part] ** -2).sum()) for part in (x < meet, x > meet)]
    yield from (weight**-0.5 if weight else None for weight in weights)
    yield math.sqrt(sum(1 / weight for weight in weights)) if all(weights) else None
