"""How the best learning rate moves with the batch size: two curves, fitted to best rates."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    Attributes:
      largest: the rate of large batches.
      batch_size: where the rate is half of that; for SGD the gradient noise scale, in theory.
      largest_error, batch_size_error: standard errors of the logarithm to base 2.
      chi2: as in :class:`Regimes`.
      held_out: as in :class:`Regimes`.
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
      slope_at_least: a lower bound, where only the saturated part shows.
      largest: the rate of the saturated part; None if the data do not show it.
      largest_at_least: a lower bound, where only the linear part shows.
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
    slope_at_least: float | None
    largest: float | None
    largest_error: float | None
    largest_at_least: float | None
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
    has no corner. Chosen is the one that predicts a batch size better from the others.

    With ``x = log2 B`` and ``y = log2 eta`` the curve is ``y = min(a + x, c)``. Its squared
    distance from the points, each weighed by ``error**-2``, is a quadratic in ``(a, c)`` as long as
    no point changes its part; the least of all pieces, at the bottom of one or where two meet, is
    found in closed form, so that no local minimum can hold the fit; of the other curve ``B_noise``
    is searched on a grid. A point's error bar is half the width of its range of rates as good, and
    at least half a step of the grid.

    The data show the linear part if a flat line alone is worse by 3.84 in chi^2 (the 95% point for
    one parameter), and the saturated part if a line of slope 1 alone is. Standard errors are those
    of the normal equations of the part, taken from the error bars; a point where the parts meet is
    counted to neither.

    A best rate at the edge of its grid is a bound, not a value, and a batch size at which every run
    diverged has none: both are left out of the fit and named, and a bound that the curve
    contradicts is marked.

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
    step = _octaves(factor)
    ordered = sorted((Point(*given) for given in points), key=lambda point: point.batch_size)
    reasons = [_why_left_out(point) for point in ordered]
    places = [_place(p, step) for p, reason in zip(ordered, reasons, strict=True) if not reason]

    line = _Curve(_mean((p.y - p.x, p.weight) for p in places), math.inf)
    flat = _Curve(math.inf, _mean((p.y, p.weight) for p in places))
    bent = _bent(places)
    # With fewer than two batch sizes every curve passes through, and nothing is shown.
    linear = bool(places) and flat.chi2(places) - bent.chi2(places) > SHOWN
    saturated = bool(places) and line.chi2(places) - bent.chi2(places) > SHOWN
    shows, curve = _shown(linear, saturated, line, flat, bent)
    meet = curve.largest - curve.slope if curve is not None else math.nan
    slope_error = _error(p for p in places if p.x < meet) if linear else None
    largest_error = _error(p for p in places if p.x > meet) if saturated else None
    both = slope_error is not None and largest_error is not None
    least = min(flat.chi2(places), line.chi2(places))
    smooth, held_out, form = _with_smooth(places, least, bent_shows=both)
    return Regimes(
        group=dict(group or {}),
        metric=metric,
        shows=shows,
        slope=2**curve.slope if curve is not None and linear else None,
        slope_error=slope_error,
        slope_at_least=2 ** (flat.largest - places[0].x) if shows == "saturated" else None,
        largest=2**curve.largest if curve is not None and saturated else None,
        largest_error=largest_error,
        largest_at_least=2 ** (line.slope + places[-1].x) if shows == "linear" else None,
        batch_size=2**meet if both else None,
        batch_size_error=math.hypot(slope_error or 0, largest_error or 0) if both else None,
        residuals=tuple(
            Residual(p.batch_size, curve and p.y - curve(p.x), p.error) for p in places
        ),
        chi2=None if curve is None else curve.chi2(places),
        freedom=max(0, len(places) - linear - saturated) if curve is not None else 0,
        left_out=tuple(
            LeftOut(point.batch_size, reason, _contradicts(point, curve, step))
            for point, reason in zip(ordered, reasons, strict=True)
            if reason
        ),
        held_out=held_out,
        smooth=smooth,
        form=form,
    )


def regimes_of(found: Sequence[Optimum], *, batch_size: str = "batch_size") -> list[Regimes]:
    """Fits the regimes of each curve of optima: those that share all but the batch size.

    The step of the grid is that of each curve's own rates, the median factor between neighbours.

    Args:
      found: as ``optima`` returns them; those of several metrics may stand together.
      batch_size: the field of the batch size in their groups.

    Returns:
      One fit for each metric and group of the other fields, in the order in which they first come.

    Raises:
      ValueError: if an optimum's group has no such field.

    Example:
      >>> from nf_resnets.sweep.select import optima
      >>> rows = [
      ...     {"state": "finished", "scheme": "fixup", "seed": 0, "batch_size": size,
      ...      "peak_lr": rate,
      ...      "test_accuracy": 0.9 if rate == best else 0.5}
      ...     for size, best in ((8, 0.25), (16, 0.5), (32, 1.0), (64, 1.0))
      ...     for rate in (0.125, 0.25, 0.5, 1.0, 2.0)]
      >>> (fit,) = regimes_of(optima(rows))
      >>> fit.group, fit.metric
      ({'scheme': 'fixup'}, 'test_accuracy')
    """
    fits = []
    for group, of in along(found, batch_size):
        pairs = (pair for one in of for pair in zip(one.rates, one.rates[1:], strict=False))
        factors = [high.rate / low.rate for low, high in pairs]
        fits.append(
            regimes(
                [Point(e.group[batch_size], e.best, e.low, e.high, e.at_edge) for e in of],
                factor=statistics.median_high(factors) if factors else 2.0,
                group=group,
                metric=of[0].metric,
            )
        )
    return fits


def _octaves(factor: float) -> float:
    if not 1 < factor < math.inf:
        raise ValueError(f"factor={factor!r} found; expected a number above 1.")
    return math.log2(factor)


def _shown(
    linear: bool, saturated: bool, line: _Curve, flat: _Curve, bent: _Curve
) -> tuple[Shows, _Curve | None]:
    """What the data show, and the curve that has it."""
    if linear and saturated:
        return "both", bent
    if linear:
        return "linear", line
    return ("saturated", flat) if saturated else ("neither", None)


class _Place(NamedTuple):
    """A point in log2 space with its error bar."""

    batch_size: float
    x: float
    y: float
    error: float

    @property
    def weight(self) -> float:
        return self.error**-2


class _Curve(NamedTuple):
    """``y = min(slope + x, largest)`` in log2 space; infinity for a part that is not there.

    Without its corner it is ``-log2(2**-(slope + x) + 2**-largest)``.
    """

    slope: float
    largest: float
    smooth: bool = False

    def __call__(self, x: float) -> float:
        if self.smooth:
            return self.largest - float(np.logaddexp2(0, self.largest - self.slope - x))
        return min(self.slope + x, self.largest)

    def chi2(self, places: Sequence[_Place]) -> float:
        return math.fsum(((p.y - self(p.x)) / p.error) ** 2 for p in places)


def _place(point: Point, step: float) -> _Place:
    best, low, high = point.best, point.low, point.high
    if best is None or low is None or high is None or not 0 < low <= best <= high < math.inf:
        raise ValueError(
            f"best={best!r}, low={low!r}, high={high!r} found at batch size {point.batch_size}; "
            "expected 0 < low <= best <= high."
        )
    error = max(math.log2(high / low) / 2, step / 2)
    return _Place(point.batch_size, math.log2(point.batch_size), math.log2(best), error)


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


def _contradicts(point: Point, curve: _Curve | None, step: float) -> bool:
    if curve is None or point.best is None or point.at_edge not in ("lowest", "highest"):
        return False
    place = _place(point, step)
    above = curve(place.x) - place.y
    return (above if point.at_edge == "lowest" else -above) > place.error


def _mean(weighed: Iterable[tuple[float, float]]) -> float:
    """The weighed mean; infinity, a part that is not there, of nothing."""
    pairs = list(weighed)
    total = math.fsum(weight for _, weight in pairs)
    return math.fsum(value * weight for value, weight in pairs) / total if pairs else math.inf


def _error(places: Iterable[_Place]) -> float | None:
    weights = [p.weight for p in places]
    return math.fsum(weights) ** -0.5 if weights else None


def _bent(places: Sequence[_Place]) -> _Curve:
    """The curve with both parts nearest to the points.

    The parts meet either strictly between two neighbouring batch sizes, and then each part is the
    mean of its own points, or at a batch size, and then one number is left to find. A meeting place
    at the first or last batch size is a flat line, or one of slope 1. Every candidate is judged by
    its distance as a curve, so that one whose parts meet elsewhere does no harm.
    """
    candidates, sizes = [], sorted({p.x for p in places})
    for below, above in zip(sizes, sizes[1:], strict=False):
        slope = _mean((p.y - p.x, p.weight) for p in places if p.x <= below)
        largest = _mean((p.y, p.weight) for p in places if p.x >= above)
        candidates.append(_Curve(slope, largest))
    for meet in sizes:
        largest = _mean((p.y - min(p.x - meet, 0), p.weight) for p in places)
        candidates.append(_Curve(largest - meet, largest))
    return min(candidates, key=lambda curve: curve.chi2(places), default=_Curve(math.inf, math.inf))


def _smooth(places: Sequence[_Place]) -> _Curve:
    """The smooth curve nearest to the points; its ``B_noise`` is within 2^8 of the batch sizes."""
    if not places:
        return _Curve(math.inf, math.inf)
    x, y, weight = (np.array([getattr(p, name) for p in places]) for name in ("x", "y", "weight"))
    noise = np.linspace(x.min() - 8, x.max() + 8, 65)
    for _ in range(5):  # each time between the neighbours of the best: a 32nd of the interval
        above = y + np.logaddexp2(0, noise[:, None] - x)
        largest = above @ (weight / weight.sum())
        best = int(np.argmin((above - largest[:, None]) ** 2 @ weight))
        found = _Curve(float(largest[best] - noise[best]), float(largest[best]), smooth=True)
        noise = np.linspace(noise[max(best - 1, 0)], noise[min(best + 1, 64)], 65)
    return found


def _smooth_fit(curve: _Curve, places: Sequence[_Place], held_out: float | None) -> Smooth:
    """The smooth curve with the errors of its normal equations."""
    noise = curve.largest - curve.slope
    # The curve's slope in c is 1, in log2 B_noise it is minus the linear part's fraction.
    parts = [(p.weight, 1 / (1 + 2 ** (p.x - noise))) for p in places]
    ones, once, twice = (math.fsum(w * part**n for w, part in parts) for n in range(3))
    determinant = ones * twice - once**2
    return Smooth(
        largest=2**curve.largest,
        largest_error=math.sqrt(twice / determinant),
        batch_size=2**noise,
        batch_size_error=math.sqrt(ones / determinant),
        chi2=curve.chi2(places),
        held_out=held_out,
    )


def _with_smooth(
    places: Sequence[_Place], least: float, *, bent_shows: bool
) -> tuple[Smooth | None, float | None, Form | None]:
    """The smooth fit, the held-out error of the bent one, and the form with the smaller error.

    Args:
      places: the points.
      least: chi^2 of the better curve of one part.
      bent_shows: whether both parts of the bent curve show.
    """
    curve = _smooth(places)
    if least - curve.chi2(places) <= SHOWN:
        return None, None, None
    if not bent_shows or len({p.x for p in places}) < FEWEST:
        return _smooth_fit(curve, places, None), None, None
    bent, smooth = (_held_out(fit, places) for fit in (_bent, _smooth))
    return _smooth_fit(curve, places, smooth), bent, "smooth" if smooth < bent else "bent"


def _held_out(fit: Callable[[Sequence[_Place]], _Curve], places: Sequence[_Place]) -> float:
    """The mean over the points of the squared residual from the fit to other batch sizes."""
    return statistics.fmean(
        fit([p for p in places if p.x != x]).chi2([p for p in places if p.x == x])
        / sum(p.x == x for p in places)
        for x in {p.x for p in places}
    )


__all__ = ["LeftOut", "Point", "Regimes", "Residual", "Smooth", "regimes", "regimes_of"]
