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

    Args:
      optima: of :func:`nf_resnets.sweep.optima`, with the size among the fields of ``group``.
      by: the field of the size, such as ``"depth"``.

    Returns:
      A :class:`Move` for each optimum, groups as they first come, sizes from the smallest.

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


def exponent(of: Sequence[Move]) -> float | None:
    """The least-squares ``p`` of ``best ~ size**p`` over two or more moves, else None.

    Example:
      >>> round(exponent([Move({}, size, "train_loss", best=size**-0.5) for size in (1, 4, 16)]), 3)
      -0.5
    """
    points = [(math.log(move.size), math.log(move.best)) for move in of if move.best is not None]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if points[1:] else None


__all__ = ["Move", "exponent", "moves"]
