"""Which learning rate is best, which are as good, and how far the best moves with the size."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from nf_resnets.sweep.rows import RESULTS

Row = Mapping[str, Any]
Edge = Literal["lowest", "highest", "only"]

METRICS = {"test_accuracy": 1, "train_accuracy": 1, "test_loss": -1, "train_loss": -1}
"""1 where more is better, -1 where less is."""

ROUNDING = 1e-12
"""Means that differ by less, relative to the best, are a tie: sums are rounded."""


@dataclasses.dataclass(frozen=True)
class RateSummary:
    """The seeds of one learning rate."""

    rate: float
    n: int  # runs that finished with a number; the diverged are not among them
    mean: float | None  # of their metric; None if ``n`` is 0
    std: float | None  # sample standard deviation (``n - 1``); None if ``n`` is below 2
    diverged: int  # runs


@dataclasses.dataclass(frozen=True)
class Optimum:
    """The best rate of one group of runs, and the range of rates as good.

    Attributes:
      group: the fields and values that the group's runs share.
      metric: by what the rates are compared.
      rates: every rate of the group, from the lowest.
      best: the best rate; None if no run finished.
      mean, std: of the metric at ``best`` over its seeds; no ``std`` with fewer than two.
      low, high: the lowest and the highest of ``as_good``.
      as_good: the rates whose mean lies within ``std`` of the best's, ``best`` among them.
      passed_over: the rates with a better mean over the runs that finished, which stand behind
        ``best`` because more of their runs diverged.
      at_edge: whether ``best`` is the lowest or highest rate tried, so that the true best may lie
        outside the grid; ``"only"`` if no other was tried.
    """

    group: dict[str, Any]
    metric: str
    rates: tuple[RateSummary, ...]
    best: float | None = None
    mean: float | None = None
    std: float | None = None
    low: float | None = None
    high: float | None = None
    as_good: tuple[float, ...] = ()
    passed_over: tuple[float, ...] = ()
    at_edge: Edge | None = None


def optimum(rows: Iterable[Row], *, metric: str = "test_accuracy") -> Optimum:
    """Returns the best learning rate of a group of runs and the range of rates as good.

    The best rate has the best mean over its seeds, of equal ones it is the smallest; as good is
    every rate whose mean lies within one standard deviation (``n - 1``) of the best's. A rate of
    which a larger fraction of the seeds diverged stands behind one of which a smaller fraction did.
    A number that is not finite counts as diverged; runs that are neither finished nor diverged do
    not count.

    Where accuracy is quadratic in the rate's logarithm and seeds differ by normal noise, the range
    and half a step of the grid beyond it hold the true optimum in about 92 of 100 sweeps of five
    seeds, 80 of three and 70 of two if the noise is large, and in nearly all if it is small.

    Args:
      rows: one for each run, with ``state``, the metric, the rate and the seed.
      metric: one of ``METRICS``.

    Raises:
      ValueError: if two runs have the same rate and seed.

    Source: De and Smith 2020, the experiments on batch size.

    Example:
      >>> rows = [
      ...     {"state": "finished", "peak_lr": rate, "seed": 0, "test_accuracy": accuracy}
      ...     for rate, accuracy in ((0.25, 0.6), (0.5, 0.7), (1.0, 0.2))]
      >>> best = optimum(rows)
      >>> best.best, best.low, best.high, best.at_edge
      (0.5, 0.5, 0.5, None)
    """
    summaries = tuple(_summary(*each, metric) for each in sorted(by_rate(rows).items()))
    tried = Optimum({}, metric, summaries)
    rates = [one for one in summaries if one.n or one.diverged]
    places = [(one.diverged / (one.n + one.diverged), METRICS[metric] * one.mean, one)
              for one in rates if one.mean is not None]  # fmt: skip
    if not places:
        return tried
    first = min(place for place, _, _ in places)
    scores = [(score, one) for place, score, one in places if place == first]
    top = max(score for score, _ in scores)
    rounding = ROUNDING * max(1.0, abs(top))
    best = next(one for score, one in scores if score >= top - rounding)
    within = (best.std or 0.0) + rounding
    as_good = tuple(one.rate for score, one in scores if top - score <= within)
    at_edge: Edge | None = None
    if best in (rates[0], rates[-1]):
        at_edge = "only" if len(rates) == 1 else "lowest" if best == rates[0] else "highest"
    return dataclasses.replace(
        tried,
        best=best.rate,
        mean=best.mean,
        std=best.std,
        low=as_good[0],
        high=as_good[-1],
        as_good=as_good,
        passed_over=tuple(
            one.rate for place, score, one in places if place > first and score > top + rounding
        ),
        at_edge=at_edge,
    )


def optima(
    rows: Iterable[Row], *, by: Sequence[str] = ("scheme", "batch_size"),
    metric: str = "test_accuracy",
) -> list[Optimum]:  # fmt: skip
    """As :func:`optimum`, but for each group of runs that share the fields of ``by``.

    With the rate and the seed these fields must tell all runs apart. Each in turn puts the results
    in order: numbers from the lowest, other values as they first come in ``rows``.
    """
    groups = grouped(rows, by)
    columns = [_in_order(column) for column in zip(*groups, strict=True)]
    return [
        dataclasses.replace(
            optimum(groups[values], metric=metric), group=dict(zip(by, values, strict=True))
        )
        for values in sorted(
            groups, key=lambda values: [c.index(x) for c, x in zip(columns, values, strict=True)]
        )
    ]


def _in_order(values: Iterable[Any]) -> list[Any]:
    """The different values: numbers from the lowest, then others as they first come."""
    different = list(dict.fromkeys(values))
    numbers = [x for x in different if isinstance(x, int | float) and not isinstance(x, bool)]
    return sorted(numbers) + [x for x in different if x not in numbers]


def grouped(rows: Iterable[Row], by: Sequence[str]) -> dict[tuple[Any, ...], list[Row]]:
    """The runs that share the fields of ``by``, by their values, in the order of the rows."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[field] for field in by), []).append(row)
    return groups


def along(results: Sequence[Any], field: str) -> list[tuple[dict[str, Any], list[Any]]]:
    """Results of one metric whose groups differ in a field only, and what they share."""
    lines: dict[tuple[Any, ...], list[Any]] = {}
    for one in results:
        rest = tuple((name, value) for name, value in one.group.items() if name != field)
        lines.setdefault((rest, one.metric), []).append(one)
    return [(dict(rest), ones) for (rest, _), ones in lines.items()]


def by_rate(rows: Iterable[Row]) -> dict[float, list[Row]]:
    """The runs of each rate, of which no two may have one seed."""
    rates: dict[float, dict[Any, Row]] = {}
    for row in rows:
        seeds = rates.setdefault(row["peak_lr"], {})
        seed = row.get("seed")
        if seed in seeds:
            first = seeds[seed]
            differ = [n for n in first if n not in RESULTS and first[n] != row.get(n, first[n])]
            raise ValueError(
                f"two runs with peak_lr={row['peak_lr']!r} and seed={seed!r} found in one "
                f"group that differ in {', '.join(differ) or 'no setting'}; expected one (by= must "
                "name every field that is swept)."
            )
        seeds[seed] = row
    return {rate: list(runs.values()) for rate, runs in rates.items()}


def _summary(rate: float, rows: Sequence[Row], metric: str) -> RateSummary:
    values = [row[metric] for row in rows if row["state"] == "finished" and row[metric] is not None]
    finite = [float(value) for value in values if math.isfinite(value)]
    diverged = sum(row["state"] == "diverged" for row in rows) + len(values) - len(finite)
    mean = statistics.fmean(finite) if finite else None
    std = statistics.stdev(finite) if len(finite) > 1 else None
    return RateSummary(rate, len(finite), mean, std, diverged)


@dataclasses.dataclass(frozen=True)
class Move:
    """The best rate of a size, and the cost of the smallest network's best rate there.

    Attributes:
      group: the fields and values that networks of all sizes share.
      size: the depth or width of this one.
      metric: by what rates are compared.
      best, low, high, at_edge, mean: as in :class:`Optimum`.
      at_base: mean of the metric at the smallest network's best rate; None if it was not tried, or
        no run finished.
      cost: by how much ``at_base`` is worse than ``mean``.
      diverged: the fraction of the runs at the smallest network's best rate that diverged.
    """

    group: dict[str, Any]
    size: float
    metric: str
    best: float | None = None
    low: float | None = None
    high: float | None = None
    at_edge: Edge | None = None
    mean: float | None = None
    at_base: float | None = None
    cost: float | None = None
    diverged: float | None = None


def moves(optima: Sequence[Optimum], by: str) -> list[Move]:
    """Compares the best rate of each size with that of the smallest of its group.

    ``by`` is the field of the size, such as ``"depth"``, among those of the groups. There is a move
    for each optimum, groups as they first come, sizes from the smallest.
    """
    all_moves = []
    for group, same in along(optima, by):
        ordered = sorted(same, key=lambda one: one.group[by])
        base = ordered[0].best
        for one in ordered:
            move = Move(
                group, one.group[by], one.metric, one.best, one.low, one.high, one.at_edge, one.mean
            )
            for rate in one.rates:
                if rate.rate == base and rate.n + rate.diverged:
                    cost = None
                    if rate.mean is not None and one.mean is not None:
                        cost = METRICS[one.metric] * (one.mean - rate.mean)
                    diverged = rate.diverged / (rate.n + rate.diverged)
                    move = dataclasses.replace(
                        move, at_base=rate.mean, cost=cost, diverged=diverged
                    )
            all_moves.append(move)
    return all_moves
