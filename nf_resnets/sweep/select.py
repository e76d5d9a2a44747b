"""Which learning rate is best, which are as good, and how the best moves with the batch size."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from nf_resnets.sweep.ledger import COLUMNS

Row = Mapping[str, Any]
Edge = Literal["lowest", "highest", "only"]
Shows = Literal["linear", "saturated", "both", "neither"]
Rule = Literal["strict", "trimmed"]
"""How rates are compared of which some seeds diverged; see :func:`optimum`."""

METRICS = {"test_accuracy": 1, "train_accuracy": 1, "test_loss": -1, "train_loss": -1}
"""1 where more is better, -1 where less is."""

ROUNDING = 1e-12
"""Means that differ by less, relative to the best, are a tie: sums are rounded."""

SHOWN = 3.84
"""The data show a part of the regime fit if the fit without it is worse by this much in chi^2: the
95% point for one parameter."""


@dataclasses.dataclass(frozen=True)
class RateSummary:
    """The seeds of one learning rate."""

    rate: float
    n: int  # runs that finished with a number; the diverged are not among them
    mean: float | None  # of their metric; None if ``n`` is 0
    std: float | None  # sample standard deviation (``n - 1``); None if ``n`` is below 2
    values: tuple[float, ...]  # the metric of each, by seed
    diverged: int  # runs
    left_out: int  # runs that have done neither: waiting, running, failed, out of memory


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of one group of runs, and the range of rates as good.

    Attributes:
      group: the fields and values that the group's runs share.
      metric: by what the rates are compared.
      rates: every rate of the group, from the lowest.
      runs: how many runs the group has.
      left_out: how many of them have no number yet, or never will, by state.
      rule: how the rates were compared at which some runs diverged.
      best: the best rate; None if no run finished.
      mean, std: of the metric at ``best`` over its seeds; no ``std`` with fewer than two.
      low, high: the lowest and the highest of ``as_good``.
      as_good: the rates whose mean lies within ``std`` of the best's, ``best`` among them.
      passed_over: the rates with a better mean over the runs that finished, which stand behind
        ``best`` because more of their runs diverged.
      contiguous: whether ``as_good`` are neighbours in the grid; if not, a rate between ``low`` and
        ``high`` is worse.
      at_edge: whether ``best`` is the lowest or highest rate tried, so that the true best may lie
        outside the grid; ``"only"`` if no other was tried.
      low_open, high_open: whether ``low`` is the lowest rate tried, and ``high`` the highest.
    """

    group: dict[str, Any]
    metric: str
    rates: tuple[RateSummary, ...]
    runs: int
    left_out: dict[str, int]
    rule: Rule
    best: float | None = None
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    as_good: tuple[float, ...] = ()
    passed_over: tuple[float, ...] = ()
    contiguous: bool = True
    at_edge: Edge | None = None
    low_open: bool = False
    high_open: bool = False


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


def optimum(
    rows: Sequence[Row], *, metric: str = "test_accuracy", rate: str = "peak_lr",
    seed: str = "seed", group: Mapping[str, Any] | None = None, rule: Rule = "strict",
) -> Optimum:  # fmt: skip
    """Returns the best learning rate of a group of runs and the range of rates as good.

    The best rate has the best mean over its seeds; as good is every rate whose mean lies within one
    standard deviation of it, that of the best rate over its seeds (``n - 1``). With one seed the
    range is the best rate alone. Of equally good rates the smallest is the best.

    By the ``"strict"`` rule a rate of which a larger fraction of the seeds diverged stands behind
    one of which a smaller fraction did, and is not as good. Networks without normalisation diverge
    with one seed in five well before the other seeds get worse; such rates are ``passed_over``. By
    the ``"trimmed"`` rule all rates of which at least half of the seeds finished are compared by
    the mean over those that did.

    Runs that are neither finished nor diverged, or lack the metric, are left out and counted; a
    number that is not finite counts as diverged. The edge is that of the rates at which a run
    finished or diverged, so that a rate below one that always diverges is none.

    Where accuracy is quadratic in the rate's logarithm and seeds differ by normal noise, the range
    and half a step of the grid beyond it hold the true optimum in about 92 of 100 sweeps of five
    seeds, 80 of three and 70 of two if the noise is large, and in nearly all if it is small.

    Args:
      rows: one for each run, with ``state``, the metric, the rate and the seed, as ``Ledger.rows``
        gives them; all else that matters is the same in all of them.
      metric: ``"test_accuracy"``, ``"train_accuracy"``, ``"test_loss"`` or ``"train_loss"``.
      rate: the field of the learning rate.
      seed: the field of the seed.
      group: what the runs share, kept in the result.
      rule: ``"strict"`` or ``"trimmed"``.

    Raises:
      ValueError: if the metric or the rule is unknown, a rate is not a positive number, or two runs
        have the same rate and seed.

    Source: De and Smith 2020, the experiments on batch size.

    Example:
      >>> rows = [
      ...     {"state": "finished", "peak_lr": rate, "seed": seed, "test_accuracy": accuracy}
      ...     for rate, accuracies in {0.25: (0.6, 0.7), 0.5: (0.7, 0.8), 1.0: (0.2, 0.3)}.items()
      ...     for seed, accuracy in enumerate(accuracies)
      ... ]
      >>> found = optimum(rows)
      >>> found.best, found.low, found.high, found.at_edge
      (0.5, 0.5, 0.5, None)
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} found; expected one of {', '.join(METRICS)}.")
    if rule not in get_args(Rule):
        raise ValueError(f"rule={rule!r} found; expected 'strict' or 'trimmed'.")
    left_out: Counter[str] = Counter()
    by_rate = _by_rate(rows, rate, seed)
    rates = tuple(_summary(one, by_rate[one], metric, left_out) for one in sorted(by_rate))
    nothing = Optimum(
        dict(group or {}), metric, rates, len(rows), dict(sorted(left_out.items())), rule
    )
    return _chosen(nothing)


def optima(
    rows: Sequence[Row], *, by: Sequence[str] = ("scheme", "batch_size"),
    metric: str = "test_accuracy", rate: str = "peak_lr", seed: str = "seed",
    rule: Rule = "strict",
) -> list[Optimum]:  # fmt: skip
    """As :func:`optimum`, but for each group of runs that share the fields of ``by``.

    With ``rate`` and ``seed`` these fields must tell all runs apart. Each in turn puts the results
    in order: numbers from the lowest, other values as they first come in ``rows``.

    Raises:
      ValueError: as ``optimum``, or if a run lacks a field of ``by``.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        missing = [field for field in by if field not in row]
        if missing:
            raise ValueError(
                f"by={tuple(by)} names {missing[0]!r}, which a run does not have; expected fields "
                "of a run's settings."
            )
        groups.setdefault(tuple(row[field] for field in by), []).append(row)
    places = [list(dict.fromkeys(column)) for column in zip(*groups, strict=True)]

    def order(values: tuple[Any, ...]) -> list[tuple[bool, float]]:
        is_number = [isinstance(v, int | float) and not isinstance(v, bool) for v in values]
        return [
            (False, value) if number else (True, places[field].index(value))
            for field, (value, number) in enumerate(zip(values, is_number, strict=True))
        ]

    how: dict[str, Any] = {"metric": metric, "rate": rate, "seed": seed, "rule": rule}
    return [
        optimum(groups[values], group=dict(zip(by, values, strict=True)), **how)
        for values in sorted(groups, key=order)
    ]


def _by_rate(rows: Iterable[Row], rate: str, seed: str) -> dict[float, list[Row]]:
    """The runs of each rate, of which no two may have one seed."""
    found: dict[float, dict[Hashable, Row]] = {}
    for row in rows:
        value = row.get(rate)
        if not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{rate}={value!r} found in a run; expected a positive number.")
        seeds = found.setdefault(float(value), {})
        if row.get(seed) in seeds:
            first = seeds[row.get(seed)]
            names = [name for name in first if name not in COLUMNS]
            differ = [name for name in names if first[name] != row.get(name, first[name])]
            tells = f"differ in {', '.join(differ)}" if differ else "differ in no setting"
            raise ValueError(
                f"two runs with {rate}={first[rate]!r} and {seed}={first.get(seed)!r} found in one "
                f"group that {tells}; expected one (by= must name every field that is swept)."
            )
        seeds[row.get(seed)] = row
    return {value: list(runs.values()) for value, runs in found.items()}


def _summary(rate: float, rows: Sequence[Row], metric: str, left_out: Counter[str]) -> RateSummary:
    values, diverged, unfinished = [], 0, 0
    for row in rows:
        state = row["state"]
        value = row.get(metric) if state == "finished" else None
        if state == "diverged" or (value is not None and not math.isfinite(value)):
            diverged += 1
        elif value is not None:
            values.append(float(value))
        else:
            unfinished += 1
            left_out[f"finished, no {metric}" if state == "finished" else str(state)] += 1
    mean = statistics.fmean(values) if values else None
    std = statistics.stdev(values) if len(values) > 1 else None
    return RateSummary(rate, len(values), mean, std, tuple(values), diverged, unfinished)


def _chosen(found: Optimum) -> Optimum:
    """With the best of the rates, if a run finished, and those as good."""
    sign = METRICS[found.metric]
    tried = [one for one in found.rates if one.n or one.diverged]
    places = [(_place_of(one, found.rule), sign * one.mean, one)
              for one in tried if one.mean is not None]  # fmt: skip
    if not places:
        return found
    first = min(place for place, _, _ in places)
    scores = [(score, one) for place, score, one in places if place == first]
    top = max(score for score, _ in scores)
    rounding = ROUNDING * max(1.0, abs(top))
    best = next(one for score, one in scores if score >= top - rounding)
    within = (best.std or 0.0) + rounding
    as_good = tuple(one.rate for score, one in scores if top - score <= within)
    order = [one.rate for one in tried]
    low, high = order.index(as_good[0]), order.index(as_good[-1])
    at_edge: Edge | None = None
    if best.rate in (order[0], order[-1]):
        at_edge = "only" if len(order) == 1 else "lowest" if best.rate == order[0] else "highest"
    return dataclasses.replace(
        found,
        best=best.rate,
        mean=best.mean,
        std=best.std,
        low=as_good[0],
        high=as_good[-1],
        as_good=as_good,
        passed_over=tuple(
            one.rate for place, score, one in places if place > first and score > top + rounding
        ),
        contiguous=high - low + 1 == len(as_good),
        at_edge=at_edge,
        low_open=low == 0,
        high_open=high == len(order) - 1,
    )


def _place_of(one: RateSummary, rule: Rule) -> float:
    """Where a rate stands for its diverged runs, 0 in front: those of one place are compared."""
    fraction = one.diverged / (one.n + one.diverged)
    return 0.0 if rule == "trimmed" and fraction <= 0.5 else fraction


def regimes(
    points: Sequence[Point | tuple[float, float | None, float | None, float | None]],
    *,
    factor: float = 2.0,
    group: Mapping[str, Any] | None = None,
    metric: str = "",
) -> Regimes:
    """Fits ``eta = min(slope * B, largest)`` to the best rates of several batch sizes.

    With ``x = log2 B`` and ``y = log2 eta`` the curve is ``y = min(a + x, c)``. Its squared
    distance from the points, each weighed by ``error**-2``, is a quadratic in ``(a, c)`` as long as
    no point changes its part; the least of all pieces, at the bottom of one or where two meet, is
    found in closed form, so that no local minimum can hold the fit. A point's error bar is half the
    width of its range of rates as good, and at least half a step of the grid.

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

    Source: De and Smith 2020, the experiments on batch size; the exact fit is ours.

    Example:
      >>> fit = regimes([(8, 0.25, 0.25, 0.25), (32, 1, 1, 1), (128, 2, 2, 2), (512, 2, 2, 2)])
      >>> fit.shows, fit.slope, fit.largest, fit.batch_size
      ('both', 0.03125, 2.0, 64.0)
    """
    if not 1 < factor < math.inf:
        raise ValueError(f"factor={factor!r} found; expected a number above 1.")
    step = math.log2(factor)
    ordered = sorted((Point(*given) for given in points), key=lambda point: point.batch_size)
    reasons = [_why_left_out(point) for point in ordered]
    places = [_place(p, step) for p, reason in zip(ordered, reasons, strict=True) if not reason]

    line = _Curve(_mean((p.y - p.x, p.weight) for p in places), math.inf)
    flat = _Curve(math.inf, _mean((p.y, p.weight) for p in places))
    bent = _bent(places)
    # With fewer than two batch sizes every curve passes through, and nothing is shown.
    linear = bool(places) and flat.chi2(places) - bent.chi2(places) > SHOWN
    saturated = bool(places) and line.chi2(places) - bent.chi2(places) > SHOWN
    fits: dict[tuple[bool, bool], tuple[Shows, _Curve | None]] = {
        (True, True): ("both", bent),
        (True, False): ("linear", line),
        (False, True): ("saturated", flat),
        (False, False): ("neither", None),
    }
    shows, curve = fits[linear, saturated]
    meet = curve.largest - curve.slope if curve is not None else math.nan
    slope_error = _error(p for p in places if p.x < meet) if linear else None
    largest_error = _error(p for p in places if p.x > meet) if saturated else None
    both = slope_error is not None and largest_error is not None
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
            Residual(p.batch_size, None if curve is None else p.y - curve(p.x), p.error)
            for p in places
        ),
        chi2=None if curve is None else curve.chi2(places),
        freedom=max(0, len(places) - linear - saturated) if curve is not None else 0,
        left_out=tuple(
            LeftOut(point.batch_size, reason, _contradicts(point, curve, step))
            for point, reason in zip(ordered, reasons, strict=True)
            if reason
        ),
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
    """
    curves: dict[Hashable, list[Optimum]] = {}
    for one in found:
        if batch_size not in one.group:
            raise ValueError(
                f"batch_size={batch_size!r} found, which the group {one.group} does not have; "
                "expected a field by which the optima were grouped."
            )
        rest = tuple((name, value) for name, value in one.group.items() if name != batch_size)
        curves.setdefault((one.metric, rest), []).append(one)
    fits = []
    for of in curves.values():
        pairs = (pair for one in of for pair in zip(one.rates, one.rates[1:], strict=False))
        factors = [high.rate / low.rate for low, high in pairs]
        fits.append(
            regimes(
                [Point(e.group[batch_size], e.best, e.low, e.high, e.at_edge) for e in of],
                factor=statistics.median_high(factors) if factors else 2.0,
                group={name: value for name, value in of[0].group.items() if name != batch_size},
                metric=of[0].metric,
            )
        )
    return fits


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
    """``y = min(slope + x, largest)`` in log2 space; infinity for a part that is not there."""

    slope: float
    largest: float

    def __call__(self, x: float) -> float:
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


__all__ = [
    "METRICS", "LeftOut", "Optimum", "Point", "RateSummary", "Regimes", "Residual", "Rule",
    "optima", "optimum", "regimes", "regimes_of",
]  # fmt: skip
