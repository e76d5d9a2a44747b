"""How the best learning rate moves with the batch size: two curves, fitted to best rates."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from nf_resnets.sweep.select import Edge, Optimum, along

Shows = Literal["linear", "saturated", "both", "neither"]
Form = Literal["bent", "smooth"]
"""``bent`` is ``min(slope * B, largest)``, ``smooth`` is ``largest / (1 + batch_size / B)``."""

SHOWN = 3.84
"""The data show a part of the regime fit if the fit without it is worse by this much in chi^2: the
95% point for one parameter."""

FEWEST = 4
"""Batch sizes without which held-out errors do not choose between curves of two parameters."""


class Point(NamedTuple):
    """The best rate at one batch size, its range and its edge, as in :class:`Optimum`."""

    batch_size: float
    best: float | None
    low: float | None
    high: float | None
    at_edge: Edge | None = None


@dataclasses.dataclass(frozen=True)
class Residual:
    """A point's ``log2(best) - log2(fitted)``, None where nothing is fitted, and its error bar."""

    batch_size: float
    log2: float | None
    error: float


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """A batch size that is not in the fit, and why; the curve may contradict its bound."""

    batch_size: float
    reason: str
    contradicts: bool


@dataclasses.dataclass(frozen=True)
class Smooth:
    """The fit ``eta = largest / (1 + batch_size / B)``, whose slope is ``largest / batch_size``.

    For SGD ``batch_size``, where the rate is half of the largest, is the gradient noise scale in
    theory. Errors, ``chi2`` and ``held_out`` are as in :class:`Regimes`.
    """

    largest: float
    largest_error: float
    batch_size: float
    batch_size_error: float
    chi2: float
    held_out: float | None


@dataclasses.dataclass(frozen=True)
class Regimes:
    """The fit ``eta = min(slope * B, largest)`` to the best rates of several batch sizes.

    ``slope_error``, ``largest_error`` and ``batch_size_error`` are standard errors of the logarithm
    to base 2: a value's range is ``value * 2**error`` and ``value / 2**error``.

    Attributes:
      group: the fields and values that all points share.
      metric: by what the best rates were chosen.
      shows: which of the parts the data show.
      slope: ``eta/B`` of the linear part; None if the data do not show it.
      largest: the rate of the saturated part; None if the data do not show it.
      batch_size: where the parts meet, ``largest / slope``; None unless both show.
      residuals: one for each point of the fit.
      chi2: sum of the squared residuals in units of their error bars; None where nothing is fitted.
      freedom: points less parameters.
      left_out: the batch sizes that are not in the fit, with the reason.
      held_out: the mean of a batch size's squared residual, in units of its error bar, from the fit
        to the others; None unless both parts show in both forms, at four batch sizes or more.
      smooth: the fit of the smooth form; None unless both of its parts show.
      form: that of the smaller ``held_out``; None where that is None.
    """

    group: dict[str, Any]
    metric: str
    shows: Shows
    slope: float | None
    slope_error: float | None
    largest: float | None
    largest_error: float | None
    batch_size: float | None
    batch_size_error: float | None
    residuals: tuple[Residual, ...]
    chi2: float | None
    freedom: int
    left_out: tuple[LeftOut, ...]
    held_out: float | None = None
    smooth: Smooth | None = None
    form: Form | None = None


def regimes(
    points: Sequence[Point | tuple[float, float | None, float | None, float | None]],
    *,
    factor: float = 2.0,
    group: Mapping[str, Any] | None = None,
    metric: str = "",
) -> Regimes:
    """Fits two curves to the best rates of several batch sizes, and chooses between them.

    One is ``eta = min(slope * B, largest)``, the other ``eta = largest / (1 + B_noise / B)``, which
    has no corner. Chosen is the one that predicts a batch size better from the others. Points weigh
    ``error**-2`` in ``log2 eta``: an error bar is half the width of the range of rates as good, and
    at least half a step of the grid. Both are the least squares of all such curves.

    The data show the linear part if a flat line alone is worse by 3.84 in chi^2 (the 95% point for
    one parameter), and the saturated part if a line of slope 1 alone is. A best rate at the edge of
    its grid is a bound, and a batch size at which every run diverged has none: both are left out of
    the fit and named.

    Args:
      points: ``(batch_size, best, low, high)`` or ``Point``, in any order.
      factor: the factor between neighbouring rates of the grid.
      group: what the points share, kept in the result.
      metric: by what the best rates were chosen, kept in the result.

    Raises:
      ValueError: if ``factor`` is not above 1, or a batch size, rate or range makes no sense.

    Source: De and Smith 2020, the experiments on batch size; McCandlish, Kaplan, Amodei, *An
    Empirical Model of Large-Batch Training*, 2018. The exact fit and the choice are ours.

    Example:
      >>> points = [Point(8, best=0.25, low=0.25, high=0.25), Point(32, 1, 1, 1)]
      >>> fit = regimes([*points, (128, 2, 2, 2), (512, 2, 2, 2)])
      >>> fit.shows, fit.slope, fit.largest, fit.batch_size
      ('both', 0.03125, 2.0, 64.0)
    """
    if not 1 < factor < math.inf:
        raise ValueError(f"factor={factor!r} found; expected a number above 1.")
    ordered = sorted((Point(*given) for given in points), key=lambda point: point.batch_size)
    reasons = [_why_left_out(point) for point in ordered]
    kept = [point for point, reason in zip(ordered, reasons, strict=True) if not reason]
    there = _logarithms(kept, math.log2(factor))
    x, y, error = there
    line = _Curve(_mean(y - x, error), math.inf)
    flat = _Curve(math.inf, _mean(y, error))
    bent = _bent(there)
    # With fewer than two batch sizes every curve passes through, and nothing is shown.
    linear = bool(kept) and flat.chi2(there) - bent.chi2(there) > SHOWN
    saturated = bool(kept) and line.chi2(there) - bent.chi2(there) > SHOWN
    shows: Shows = "neither"
    curve: _Curve | None = None
    if linear or saturated:
        shows = "both" if linear and saturated else "linear" if linear else "saturated"
        curve = {"both": bent, "linear": line, "saturated": flat}[shows]
    meet = curve.largest - curve.slope if curve else math.nan
    slope_error = _standard_error(error[x < meet]) if linear else None
    largest_error = _standard_error(error[x > meet]) if saturated else None
    both = slope_error is not None and largest_error is not None
    smooth, held_out = _with_smooth(there, min(flat.chi2(there), line.chi2(there)), both)
    form: Form | None = None
    if smooth and held_out is not None and smooth.held_out is not None:
        form = "smooth" if smooth.held_out < held_out else "bent"
    off = [None] * len(kept) if curve is None else (y - curve(x)).tolist()
    return Regimes(
        group=dict(group or {}),
        metric=metric,
        shows=shows,
        slope=2**curve.slope if curve and linear else None,
        slope_error=slope_error,
        largest=2**curve.largest if curve and saturated else None,
        largest_error=largest_error,
        batch_size=2**meet if both else None,
        batch_size_error=math.hypot(slope_error or 0, largest_error or 0) if both else None,
        residuals=tuple(
            Residual(point.batch_size, *pair)
            for point, *pair in zip(kept, off, error.tolist(), strict=True)
        ),
        chi2=curve and curve.chi2(there),
        freedom=max(0, len(kept) - linear - saturated) if curve else 0,
        left_out=tuple(
            LeftOut(point.batch_size, reason, _contradicts(point, curve, factor))
            for point, reason in zip(ordered, reasons, strict=True)
            if reason
        ),
        held_out=held_out,
        smooth=smooth,
        form=form,
    )


def regimes_of(found: Sequence[Optimum]) -> list[Regimes]:
    """Fits the regimes of each curve of optima: those that share all but the batch size.

    The step of the grid is that of each curve's own rates, the median factor between neighbours.

    Args:
      found: as ``optima`` returns them; those of several metrics may stand together.

    Returns:
      One fit for each metric and group of the other fields, in the order in which they first come.

    Raises:
      ValueError: if an optimum's group has no batch size.

    Example:
      >>> from nf_resnets.sweep.select import optima
      >>> rows = [
      ...     {"state": "finished", "scheme": "fixup", "seed": 0, "batch_size": size,
      ...      "peak_lr": rate, "test_accuracy": 0.9 if rate == best else 0.5}
      ...     for size, best in ((8, 0.25), (16, 0.5), (32, 1.0), (64, 1.0))
      ...     for rate in (0.125, 0.25, 0.5, 1.0, 2.0)]
      >>> (fit,) = regimes_of(optima(rows))
      >>> fit.group, fit.metric
      ({'scheme': 'fixup'}, 'test_accuracy')
    """
    fits = []
    for group, curve in along(found, "batch_size"):
        pairs = (pair for one in curve for pair in zip(one.rates, one.rates[1:], strict=False))
        factors = [high.rate / low.rate for low, high in pairs]
        points = [Point(e.group["batch_size"], e.best, e.low, e.high, e.at_edge) for e in curve]
        factor = statistics.median_high(factors) if factors else 2.0
        fits.append(regimes(points, factor=factor, group=group, metric=curve[0].metric))
    return fits


class _Logarithms(NamedTuple):
    """``log2 B``, ``log2 eta`` and the error bar of each point, float64 [n]."""

    x: np.ndarray
    y: np.ndarray
    error: np.ndarray

    def where(self, mask: np.ndarray) -> _Logarithms:
        return _Logarithms(*(values[mask] for values in self))


class _Curve(NamedTuple):
    """``y = min(slope + x, largest)`` in log2 space; infinity for a part that is not there.

    Without its corner it is ``-log2(2**-(slope + x) + 2**-largest)``.
    """

    slope: float
    largest: float
    smooth: bool = False

    def __call__(self, x: Any) -> Any:
        if self.smooth:
            return self.largest - np.logaddexp2(0, self.largest - self.slope - x)
        return np.minimum(self.slope + x, self.largest)

    def chi2(self, there: _Logarithms) -> float:
        return float(np.sum(((there.y - self(there.x)) / there.error) ** 2))


def _logarithms(points: Sequence[Point], step: float) -> _Logarithms:
    for size, best, low, high, _ in points:
        if best is None or low is None or high is None or not 0 < low <= best <= high < math.inf:
            raise ValueError(
                f"best={best!r}, low={low!r}, high={high!r} found at batch size {size}; expected "
                "0 < low <= best <= high."
            )
    numbers = np.log2(np.array([point[:4] for point in points], float).reshape(-1, 4).T)
    error = np.maximum((numbers[3] - numbers[2]) / 2, step / 2)
    return _Logarithms(numbers[0], numbers[1], error)


def _why_left_out(point: Point) -> str:
    if not 0 < point.batch_size < math.inf:
        raise ValueError(f"batch_size={point.batch_size!r} found; expected a positive number.")
    if point.best is None:
        return "no run finished"
    return {
        None: "",
        "lowest": f"the best rate, {point.best:g}, is the lowest tried: only an upper bound",
        "highest": f"the best rate, {point.best:g}, is the highest tried: only a lower bound",
        "only": f"only one rate, {point.best:g}, was tried",
    }[point.at_edge]


def _contradicts(point: Point, curve: _Curve | None, factor: float) -> bool:
    if curve is None or point.best is None or point.at_edge not in ("lowest", "highest"):
        return False
    (x,), (y,), (error,) = _logarithms([point], math.log2(factor))
    above = curve(x) - y
    return bool((above if point.at_edge == "lowest" else -above) > error)


def _mean(values: np.ndarray, error: np.ndarray) -> float:
    """The weighed mean; infinity, a part that is not there, of nothing."""
    return float(np.average(values, weights=error**-2)) if len(values) else math.inf


def _standard_error(error: np.ndarray) -> float | None:
    return float(np.sum(error**-2)) ** -0.5 if len(error) else None


def _bent(there: _Logarithms) -> _Curve:
    """The curve with both parts nearest to the points.

    The parts meet either strictly between two neighbouring batch sizes, and then each part is the
    mean of its own points, or at a batch size, and then one number is left to find. Every candidate
    is judged by its distance as a curve, so that one whose parts meet elsewhere does no harm.
    """
    x, y, error = there
    candidates, sizes = [], np.unique(x)
    for below, above in zip(sizes, sizes[1:], strict=False):
        first, last = x <= below, x >= above
        slope = _mean((y - x)[first], error[first])
        candidates.append(_Curve(slope, _mean(y[last], error[last])))
    for meet in sizes.tolist():
        largest = _mean(y - np.minimum(x - meet, 0), error)
        candidates.append(_Curve(largest - meet, largest))
    return min(candidates, key=lambda curve: curve.chi2(there), default=_Curve(math.inf, math.inf))


def _smooth(there: _Logarithms) -> _Curve:
    """The smooth curve nearest to the points; its ``B_noise`` is within 2^8 of the batch sizes."""
    x, y, error = there
    weight = error**-2
    noise = np.linspace(x.min() - 8, x.max() + 8, 65)
    for _ in range(5):  # each time between the neighbours of the best: a 32nd of the interval
        above = y + np.logaddexp2(0, noise[:, None] - x)
        largest = above @ (weight / weight.sum())
        best = int(np.argmin((above - largest[:, None]) ** 2 @ weight))
        curve = _Curve(float(largest[best] - noise[best]), float(largest[best]), smooth=True)
        noise = np.linspace(noise[max(best - 1, 0)], noise[min(best + 1, 64)], 65)
    return curve


def _with_smooth(
    there: _Logarithms, least: float, bent_shows: bool
) -> tuple[Smooth | None, float | None]:
    """The smooth fit if it is nearer than one part's ``least``, and the bent one's held-out error.

    The errors are those of the normal equations: the curve's slope in ``log2 largest`` is 1, in
    ``log2 B_noise`` it is minus the linear part's fraction.
    """
    curve = _smooth(there) if len(there.x) else None
    if curve is None or least - curve.chi2(there) <= SHOWN:
        return None, None
    noise, weight = curve.largest - curve.slope, there.error**-2
    part = 1 / (1 + 2 ** (there.x - noise))
    ones, once, twice = (float(np.sum(weight * part**n)) for n in range(3))
    determinant = ones * twice - once**2
    chosen = bent_shows and len(np.unique(there.x)) >= FEWEST
    found = Smooth(
        largest=2**curve.largest,
        largest_error=math.sqrt(twice / determinant),
        batch_size=2**noise,
        batch_size_error=math.sqrt(ones / determinant),
        chi2=curve.chi2(there),
        held_out=_held_out(_smooth, there) if chosen else None,
    )
    return found, _held_out(_bent, there) if chosen else None


def _held_out(fit: Callable[[_Logarithms], _Curve], there: _Logarithms) -> float:
    """The mean over the batch sizes of the squared residual from the fit to the others."""
    return statistics.fmean(
        fit(there.where(there.x != x)).chi2(there.where(there.x == x)) / np.sum(there.x == x)
        for x in np.unique(there.x)
    )


__all__ = ["LeftOut", "Point", "Regimes", "Residual", "Smooth", "regimes", "regimes_of"]
