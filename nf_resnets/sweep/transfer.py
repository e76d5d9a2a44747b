"""Whether the best learning rate of a small network is best for a larger one."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any

from nf_resnets.sweep.select import METRICS, Edge, Optimum, along


@dataclasses.dataclass(frozen=True)
class Move:
    """How far the best rate moved from the smallest network to another, and what that costs.

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

    Args:
      optima: of :func:`nf_resnets.sweep.optima`, with the size among the fields of ``group``.
      by: the field of the size, such as ``"depth"``.

    Returns:
      A :class:`Move` for each optimum, groups as they first come, sizes from the smallest.

    Example:
      >>> from nf_resnets.sweep import optima
      >>> rows = [
      ...     {"state": "finished", "depth": depth, "peak_lr": rate, "seed": 0, "train_loss": loss}
      ...     for depth, losses in ((10, (0.5, 0.2, 0.4)), (34, (0.1, 0.3, 0.9)))
      ...     for rate, loss in zip((0.25, 0.5, 1.0), losses)
      ... ]
      >>> small, large = moves(optima(rows, by=("depth",), metric="train_loss"), "depth")
      >>> small.best, large.best, round(large.cost, 3)
      (0.5, 0.25, 0.2)
    """
    all_moves = []
    for group, same in along(optima, by):
        ordered = sorted(same, key=lambda one: one.group[by])
        base = ordered[0].best
        for one in ordered:
            tried = (rate for rate in one.rates if rate.rate == base and rate.n + rate.diverged)
            there = next(tried, None)
            cost = None
            if there and there.mean is not None and one.mean is not None:
                cost = METRICS[one.metric] * (one.mean - there.mean)
            move = Move(
                group, one.group[by], one.metric, one.best, one.low, one.high, one.at_edge,
                mean=one.mean,
                at_base=there and there.mean,
                cost=cost,
                diverged=there and there.diverged / (there.n + there.diverged),
            )  # fmt: skip
            all_moves.append(move)
    return all_moves


def exponent(of: Sequence[Move]) -> float | None:
    """The least-squares ``p`` of ``best ~ size**p`` over the moves of one group.

    None where less than two sizes have a best rate.

    Example:
      >>> round(exponent([Move({}, size, "train_loss", best=size**-0.5) for size in (1, 4, 16)]), 3)
      -0.5
    """
    points = [(math.log(move.size), math.log(move.best)) for move in of if move.best is not None]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if points[1:] else None


__all__ = ["Move", "exponent", "moves"]
