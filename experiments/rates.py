"""Tables of test accuracy at the best learning rate, after the SkipInit paper.

Every line of a table is a network, trained at every depth with learning rates that are powers of
two. A cell is the mean over the seeds at the best of these rates, which is in brackets. The rate is
constant for the first half of a run, then halved ten times. The paper's protocol also has the range
of rates within a standard deviation of the best, the choice by training loss, and other batch
sizes; these are left out. Rates with a larger fraction of diverged seeds rank behind all others.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.plotting import depth_figure
from nf_resnets.plotting.style import power
from nf_resnets.plotting.sweep import PASSED
from nf_resnets.sweep.select import Optimum, optimum

from .experiment import Experiment, Results, Row
from .grid import Point, layers
from .table import edge_mark, finished, grouped, rate_table

CIFAR10 = {
    "dataset": "cifar10", "steps": 200 * 390, "batch_size": 128, "stem_channels": 16,
    "weight_decay": 5e-4, "padding": 4, "flip": True, "evaluate_every": 0,
}  # fmt: skip
DIGITS = CIFAR10 | {
    "dataset": "digits", "batch_size": 64, "stem_channels": 8, "bn_estimate_batches": 4,
    "padding": 0, "flip": False,
}  # fmt: skip
SMOKE = DIGITS | {"steps": 4, "stem_channels": 4, "bn_estimate_batches": 0}
PAPER_RATES = tuple(2.0**power for power in range(0, -7, -1))


def rate_of(row: Row) -> float:
    """The learning rate of a row, which earlier versions called otherwise."""
    rate = row.get("peak_lr") or row.get("learning_rate")
    return float(rate) if rate else 2.0 ** int(row["log2_rate"])


def best_rate(rows: Sequence[Row], metric: str = "test_accuracy") -> Optimum:
    """The rate of the best mean test accuracy, or another metric, over the seeds of one cell."""
    return optimum((run_of(row, metric) for row in rows), metric=metric)


def run_of(row: Row, metric: str) -> Row:
    """A row as :mod:`nf_resnets.sweep.select` reads it."""
    value = float(row[metric]) if row["status"] == "finished" else None
    return {"peak_lr": rate_of(row), "seed": row["seed"], "state": row["status"], metric: value}


def beyond(
    first: Sequence[Point],
    points: Sequence[Point],
    rows: Sequence[Row | None],
    *,
    extend: int,
    metric: str = "test_accuracy",
) -> list[Point]:
    """The runs that cells want whose best rate is the lowest or the highest tried.

    There is one more rate beyond it, by the cell's own steps; where every run diverged, a lower
    one. A cell with missing runs waits for them.
    ``first`` are the points of the scale, ``rows`` those of ``points``, None of one that is not
    over; ``extend`` is how many rates are added on each side, at most.
    """
    more: list[Point] = []
    for cell, begun in zip(*(_cells(each).values() for each in (points, first)), strict=True):
        of_cell = [rows[at] for at in cell]
        rates = sorted({points[at]["peak_lr"] for at in cell})
        base = sorted({first[at]["peak_lr"] for at in begun})
        if None in of_cell or len(rates) < 2:
            continue
        best = best_rate([row for row in of_cell if row is not None], metric=metric).best
        if sum(rate < base[0] for rate in rates) < extend and best in (None, rates[0]):
            new = rates[0] ** 2 / rates[1]
        elif sum(rate > base[-1] for rate in rates) < extend and best == rates[-1]:
            new = rates[-1] ** 2 / rates[-2]
        else:
            continue
        more += [{**first[at], "peak_lr": new} for at in begun if first[at]["peak_lr"] == base[0]]
    return more


def _cells(points: Sequence[Point]) -> dict[str, list[int]]:
    """The numbers of the points of each cell."""
    cells: dict[str, list[int]] = {}
    for at, point in enumerate(points):
        cell = {name: value for name, value in point.items() if name not in ("peak_lr", "seed")}
        cells.setdefault(str(cell), []).append(at)
    return cells


def rows_at_best(rows: Sequence[Row]) -> list[Row]:
    """The rows of the best rate; of the lowest, where all diverged."""
    best = best_rate(rows).best
    chosen = min(map(rate_of, rows)) if best is None else best
    return [row for row in rows if rate_of(row) == chosen]


def cell(rows: Sequence[Row]) -> str:
    """A cell of the table: mean and standard deviation over the seeds, the best rate in brackets.

    A rate at the edge of those tried is marked, and one that is best only because a better one had
    more diverged runs. ``-`` means no runs, ``diverged`` that none finished.
    """
    if not rows:
        return "-"
    best = best_rate(rows)
    if best.best is None or best.mean is None:
        return "diverged"
    mark = edge_mark(best.best, map(rate_of, rows)) + (PASSED if best.passed_over else "")
    text = f"{100 * best.mean:.1f}"
    if best.std is not None:
        text += f" ± {100 * best.std:.1f}"
    chosen = rows_at_best(rows)
    gone = len(chosen) - len(finished(chosen))
    text += f" ({power(best.best)}{mark})"
    return text + (f", {gone} of {len(chosen)} diverged" if gone else "")


def table(results: Results) -> str:
    """The table as text: lines down, depths across."""
    depths = sorted({int(row["depth"]) for row in results.rows})
    models = {point["model"] for point in results.points}
    ends = sorted(
        (layers({"model": each}), re.split(r"\d+", each, maxsplit=1)[1]) for each in models
    )
    heads = [f"{depth:,}" + " or ".join(end for at, end in ends if at == depth) for depth in depths]
    cells = [["scheme", *heads]]
    for (title,), rows in grouped(results.rows, "title").items():
        line = [[row for row in rows if int(row["depth"]) == depth] for depth in depths]
        cells.append([title, *map(cell, line)])
    return rate_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws test accuracy at the best rate against depth; the rows of other rates are left out."""
    of = grouped(results.rows, "title", "depth").values()
    title = "Test accuracy at the best learning rate against depth"
    how = {"title": title, "subtitle": results.about, "chance": 0.1}
    depth_figure([row for rows in of for row in rows_at_best(rows)], path, **how)


def rate_experiment(
    name: str, scales: Mapping[str, Sequence[Point]], *, extend: int = 0, **fields: Any
) -> Experiment:
    """The experiment that makes such a table; rates are added in the scale ``laptop``."""
    grow = functools.partial(beyond, extend=extend)
    return Experiment(name, scales, table, figure, grow={"laptop": grow}, **fields)
