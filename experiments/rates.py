"""Tables of test accuracy at the best learning rate, after the SkipInit paper.

Every line of a table is a scheme, trained at every depth with learning rates that are powers of
two. A cell is the mean over the seeds at the best of these rates, which is in brackets. The rate is
constant for the first half of a run, then halved ten times. The paper's protocol also has the range
of rates within a standard deviation of the best, the choice by training loss, and other batch
sizes; these are left out. A best rate that is the lowest or highest tried is marked; some settings
try rates beyond it first. Rates with a larger fraction of diverged seeds rank behind all others;
`--best trimmed` compares those at which half of the seeds finished, by these seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import data, models, optim, schemes
from nf_resnets.plotting import depth_figure
from nf_resnets.plotting.rates import power_label
from nf_resnets.plotting.sweep import PASSED
from nf_resnets.sweep.select import Optimum, Rule, optimum
from nf_resnets.training import Start

from . import experiment
from .experiment import OUTCOME, Experiment, Point, Results, Setup
from .findings import RULE, who_trains
from .folder import Row
from .images import image_setup, lengths, network
from .table import counted, data_title, edge_mark, grouped, rate_table


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of such a table."""

    best: Rule = "strict"
    """How rates with diverged seeds are compared. strict: rates with more of them rank behind.
    trimmed: if half of the seeds finished, by the mean over those that did."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table."""

    title: str
    scheme: str | schemes.Scheme
    l2: bool = True  # trained with weight decay


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows of such a table depend on."""

    dataset: str
    depths: tuple[int, ...]
    lines: tuple[str, ...]
    log2_rates: tuple[int, ...]
    extend: int = 0  # times that a cell's rates go on beyond an edge at which its best lies
    best: Rule = "strict"
    seeds: tuple[int, ...] = (0,)
    width: int = 2
    stem_channels: int = 16
    batch_size: int = 128
    steps: int = 200 * 390
    momentum: float = 0.9
    weight_decay: float = 5e-4
    bn_groups: int = 2  # ghost batches of 64
    bn_estimate_batches: int = 0  # 0: test with the running statistics
    padding: int = 0
    flip: bool = False
    remat_from: int = 5_000  # layers
    eval_batch_size: int = 500


def points(
    lines: Mapping[str, Line], settings: Settings, dataset: Any, rows: Sequence[Row]
) -> list[Point]:
    """The runs of a table, shallow networks first; those that compile alike share a program.

    Rates and weight decay are data of a run, no part of its program. A cell whose best rate lies at
    an edge of those that have run has one rate more, up to ``settings.extend`` on each side.
    """
    found, there = [], grouped(rows, "line", "depth")
    for depth, name in itertools.product(settings.depths, settings.lines):
        line, scheme = lines[name], schemes.get(lines[name].scheme)
        rates = widened(
            [2.0**power for power in settings.log2_rates],
            there.get((name, str(depth)), []),
            rate_of,
            extend=settings.extend,
            rule=settings.best,
        )
        for rate, seed in itertools.product(rates, settings.seeds):
            power = round(math.log2(rate))
            decay = settings.weight_decay if line.l2 else 0.0
            label = f"{line.title}, {depth:,} layers, rate 2^{power}"
            found.append(
                Point(
                    key={"line": name, "depth": depth, "log2_rate": power, "seed": seed},
                    title=line.title,
                    start=Start(scheme, seed, {"learning_rate": rate, "weight_decay": decay}),
                    program=(depth, scheme.compiles_as),
                    priority=depth,
                    label=label + (f", seed {seed}" if len(settings.seeds) > 1 else ""),
                    **lengths(dataset, settings.batch_size, settings.steps),
                )
            )
    return found


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one line at one depth."""
    remat = point.key["depth"] >= settings.remat_from
    model = network(models.WideResNet, settings, dataset, point, remat=remat)
    schedule = functools.partial(optim.halving, num_steps=settings.steps)
    return image_setup(model, dataset, settings, point, schedule=schedule)


def rate_of(row: Row) -> float:
    """The learning rate of a row."""
    return 2.0 ** int(row["log2_rate"])


def best_rate(
    rows: Sequence[Row],
    rate: Callable[[Row], float],
    rule: Rule = "strict",
    metric: str = "test_accuracy",
) -> Optimum:
    """The rate of the best mean test accuracy, or another metric, over the seeds.

    Args:
      rows: those of one cell of a table, with ``seed``, ``status`` and the metric.
      rate: ``rate(row)`` is the learning rate of a row, above 0.
      rule: how rates with diverged seeds are compared; see
        :func:`nf_resnets.sweep.select.optimum`.
      metric: the column, one of :data:`nf_resnets.sweep.select.METRICS`.

    Example:
      >>> rows = [{"rate": "0.1", "seed": "0", "status": "finished", "test_accuracy": "0.9"},
      ...         {"rate": "0.2", "seed": "0", "status": "diverged", "test_accuracy": "nan"}]
      >>> best_rate(rows, lambda row: float(row["rate"])).best
      0.1
    """
    runs = [
        {
            "peak_lr": rate(row),
            "seed": row["seed"],
            "state": row["status"],
            metric: float(row[metric]) if row["status"] == "finished" else None,
        }
        for row in rows
    ]
    return optimum(runs, metric=metric, rule=rule)


def widened(
    rates: Sequence[float],
    rows: Sequence[Row],
    rate: Callable[[Row], float],
    *,
    extend: int,
    rule: Rule = "strict",
    metric: str = "test_accuracy",
) -> list[float]:
    """The rates of one cell of a table: those given, and, by their steps, beyond them.

    Where the best rate is the lowest or the highest, one more is tried beyond it; where every run
    diverged, a lower one.

    Args:
      rates: those that every cell has.
      rows: of the cell.
      rate: as for :func:`best_rate`.
      extend: how many more there are on each side, at most.
      rule: by which the best rate is chosen.
      metric: as for :func:`best_rate`.

    Example:
      >>> rows = [{"rate": rate, "seed": "0", "status": "finished", "test_accuracy": accuracy}
      ...         for rate, accuracy in (("0.5", "0.8"), ("1", "0.9"))]
      >>> widened((0.5, 1.0), rows, lambda row: float(row["rate"]), extend=1)
      [0.5, 1.0, 2.0]
    """
    found = sorted(rates)
    if len(found) < 2 or not extend:
        return found
    down, up = found[1] / found[0], found[-1] / found[-2]
    below = above = extend
    while True:
        tried = [row for row in rows if rate(row) in found]
        if {rate(row) for row in tried} != set(found):
            return found  # those that are missing come first
        best = best_rate(tried, rate, rule, metric).best
        if below and best in (None, found[0]):
            below -= 1
            found = [found[0] / down, *found]
        elif above and best == found[-1]:
            above -= 1
            found = [*found, found[-1] * up]
        else:
            return found


def rows_at(best: float | None, rows: Sequence[Row], rate: Callable[[Row], float]) -> list[Row]:
    """The rows of the best rate."""
    return [row for row in rows if rate(row) == best]


def cell(rows: Sequence[Row], rule: Rule = "strict") -> str:
    """A cell of the table: mean and standard deviation over the seeds, the best rate in brackets.

    A rate at the edge of those tried is marked, and one that is best only because a better one had
    more diverged runs. ``-`` means no runs, ``diverged`` that none finished.
    """
    if not rows:
        return "-"
    found = best_rate(rows, rate_of, rule)
    if found.best is None or found.mean is None:
        return "diverged"
    mark = edge_mark(found.best, map(rate_of, rows)) + (PASSED if found.passed_over else "")
    text = f"{100 * found.mean:.1f}"
    if found.std is not None:
        text += f" ± {100 * found.std:.1f}"
    chosen = rows_at(found.best, rows, rate_of)
    gone = sum(row["status"] == "diverged" for row in chosen)
    text += f" (2^{math.log2(found.best):.0f}{mark})"
    return text + (f", {gone} of {len(chosen)} diverged" if gone else "")


def table(lines: Mapping[str, Line], results: Results) -> str:
    """The table as text: lines down, depths across."""
    settings, of = results.settings, grouped(results.rows, "line", "depth")
    cells = [["scheme", *(f"{depth:,}-{settings.width}" for depth in settings.depths)]]
    for name in settings.lines:
        by_depth = [of.get((name, str(depth)), []) for depth in settings.depths]
        cells.append([lines[name].title, *(cell(rows, settings.best) for rows in by_depth)])
    return rate_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws test accuracy at the best rate against depth; the rows of other rates are left out."""
    settings, drawn = results.settings, []
    for rows in grouped(results.rows, "line", "depth").values():
        best = best_rate(rows, rate_of, settings.best).best
        # Where all rates diverged, one mark says so.
        drawn += rows[:1] if best is None else rows_at(best, rows, rate_of)
    most = max(int(row["depth"]) for row in drawn)
    deepest = [row for row in drawn if int(row["depth"]) == most]
    tried = {int(row["log2_rate"]) for row in results.rows}
    depth_figure(
        sorted(drawn, key=lambda row: settings.lines.index(row["line"])),
        path,
        title=who_trains(deepest, results.chance, where=f" at {most:,} layers"),
        subtitle=(
            f"Test accuracy at the best learning rate of {power_label(2.0 ** min(tried))} to "
            f"{power_label(2.0 ** max(tried))}: WRN-n-{settings.width} on "
            f"{data_title(settings.dataset)}, "
            f"{settings.stem_channels} channels, batch {settings.batch_size}, {settings.steps} "
            f"steps, {counted(settings.seeds, 'seed')}. " + RULE.format(what="accuracy")
        ),
        chance=results.chance,
    )


def rate_experiment(
    name: str,
    title: str,
    description: str,
    lines: Mapping[str, Line],
    scales: Mapping[str, Settings],
) -> Experiment:
    """The experiment that makes a table of these lines."""
    return Experiment(
        name=name,
        title=title,
        description=description,
        scales=scales, command=Command,
        grid=("depths", "lines", "log2_rates", "seeds", "extend", "best"),
        key=("line", "depth", "log2_rate", "seed"),
        columns=(
            "line", "depth", "log2_rate", "seed", "title", "branches", "weight_decay", *OUTCOME
        ),
        points=functools.partial(points, lines), setup=setup,
        row=lambda settings, point, run: {"weight_decay": point.start.hyper["weight_decay"]},
        table=functools.partial(table, lines), plot=plot,
        heading=lambda results: (
            f"Test accuracy (%) at the best learning rate, chance {100 * results.chance:.0f}%:"
        ),
    )  # fmt: skip


__all__ = ["Command", "Line", "Settings", "best_rate", "rate_experiment", "rows_at", "widened"]
