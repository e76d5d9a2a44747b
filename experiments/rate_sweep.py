"""Tables of test accuracy at the best learning rate, after the SkipInit paper.

Every line of a table is a scheme, trained at every depth with learning rates that are powers of
two. A cell is the mean over the seeds at the best of these rates, which stands in brackets. The
rate is constant for the first half of a run, then halved ten times. Of the paper's protocol are
left out: the range of rates within a standard deviation of the best, the choice by training loss,
other batch sizes. A best rate that is the lowest or highest tried is marked; where the settings say
so, rates beyond it are tried first. A rate at which a larger share of the seeds diverged stands
behind all others; `--best trimmed` compares those of which half finished by the seeds that did.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from experiments import grid
from experiments.best_rate import best_rate, counts, widened
from experiments.command import (
    Command,
    first_words,
    keep_failures,
    last_words,
    load_data,
    open_folder,
    resolve,
    workers_of,
)
from experiments.folder import Row
from experiments.program import Program, build_program
from experiments.table import edge_mark, rate_table
from experiments.training_run import OUTCOME, OnStep, outcome, train_and_test
from nf_resnets import data, models, optim, schemes
from nf_resnets.optim.schedules import halving
from nf_resnets.plotting import depth_figure
from nf_resnets.plotting.sweep import PASSED
from nf_resnets.sweep.select import Optimum, Rule


@dataclasses.dataclass(frozen=True)
class RateCommand(Command):
    """The options of such a table."""

    best: Rule = "strict"
    """How rates are compared of which some seeds diverged. strict: the more diverged, the further
    behind. trimmed: as long as half of them finished, by the mean over those that did."""


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a table.

    Attributes:
      title: what table and figure call it.
      scheme: the scheme, or its name.
      l2: whether it is trained with weight decay.
    """

    title: str
    scheme: str | schemes.Scheme
    l2: bool = True


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows of such a table depend on."""

    dataset: str
    depths: tuple[int, ...]
    lines: tuple[str, ...]
    log2_rates: tuple[int, ...]
    extend: int = 0  # times that a cell's rates go on beyond an edge at which its best lies
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


GRID = ("depths", "lines", "log2_rates", "seeds")
KEY = ("line", "depth", "log2_rate", "seed")
COLUMNS = (*KEY, "title", "branches", "weight_decay", *OUTCOME)


def points(
    settings: Settings,
    lines: Mapping[str, Line],
    rows: Sequence[Row] = (),
    rule: Rule = "strict",
) -> list[grid.Point]:
    """The runs of a table, shallow networks first; those that compile alike share a program.

    Rates and weight decay are data of a run, no part of its program.

    Args:
      settings: what they depend on.
      lines: the lines of the table.
      rows: those that there are; a cell whose best rate lies at an edge of them has one rate more.
      rule: by which the best rate is chosen.
    """
    found = []
    for depth in settings.depths:
        for name in settings.lines:
            scheme = schemes.get(lines[name].scheme)
            here = [row for row in rows if row["line"] == name and int(row["depth"]) == depth]
            for log2_rate in rates_of(settings, here, rule):
                for seed in settings.seeds:
                    label = f"{lines[name].title}, {depth:,} layers, rate 2^{log2_rate}"
                    if len(settings.seeds) > 1:
                        label += f", seed {seed}"
                    key = {"line": name, "depth": depth, "log2_rate": log2_rate, "seed": seed}
                    cost = grid.cost(depth, settings.steps, norm=scheme.anatomy.normalized)
                    program = (depth, scheme.compiles_as)
                    found.append(grid.Point(key, label, program, cost, wave=depth))
    return found


def rates_of(settings: Settings, rows: Sequence[Row], rule: Rule = "strict") -> list[int]:
    """The rates of one cell, those of the settings and beyond an edge, as powers of two.

    Args:
      settings: of the table.
      rows: of the cell.
      rule: by which the best rate is chosen.
    """
    rates = [2.0**power for power in settings.log2_rates]
    found = widened(rates, rows, rate_of, extend=settings.extend, rule=rule)
    return [round(math.log2(rate)) for rate in found]


def rate_of(row: Row) -> float:
    """The learning rate of a row."""
    return 2.0 ** int(row["log2_rate"])


def make_program(settings: Settings, dataset: data.Dataset, depth: int, line: Line) -> Program:
    """Builds what the runs of one line at one depth share."""
    model = models.WideResNet(
        depth=depth,
        width=settings.width,
        scheme=line.scheme,
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
        bn_groups=settings.bn_groups,
        remat=depth >= settings.remat_from,
    )

    def optimizer(hyper: dict[str, Any]) -> Any:
        return optim.sgd(
            halving(hyper["learning_rate"], settings.steps),
            momentum=settings.momentum,
            weight_decay=hyper["weight_decay"],
            scheme=line.scheme,
        )

    return build_program(
        model,
        dataset,
        optimizer,
        batch_size=settings.batch_size,
        steps=settings.steps,
        augmentation=data.Augmentation(settings.padding, settings.flip),
        bn_estimate_batches=settings.bn_estimate_batches,
        eval_batch_size=settings.eval_batch_size,
    )


def run(
    settings: Settings,
    lines: Mapping[str, Line],
    program: Program,
    point: grid.Point,
    on_step: OnStep,
) -> Row:
    """Trains one network at one rate and returns its row."""
    line = lines[point.key["line"]]
    hyper = {
        "learning_rate": 2.0 ** point.key["log2_rate"],
        "weight_decay": settings.weight_decay if line.l2 else 0.0,
    }
    seed = point.key["seed"]
    made = train_and_test(program, schemes.get(line.scheme), seed, hyper, on_step)
    return {
        **point.key,
        "title": line.title,
        "branches": program.model.num_branches,
        "weight_decay": hyper["weight_decay"],
        **outcome(program, made),
    }


def best_of(rows: Sequence[Row], rule: Rule = "strict") -> Optimum:
    """The best rate of the rows of one line at one depth."""
    return best_rate(rows, rate_of, rule)


def rows_at(best: float | None, rows: Sequence[Row]) -> list[Row]:
    """The rows of the best rate."""
    return [row for row in rows if rate_of(row) == best]


def cell(rows: Sequence[Row], rule: Rule = "strict") -> str:
    """A cell of the table: mean and standard deviation over the seeds, the best rate in brackets.

    A rate at the edge of those tried is marked, and one behind which a better one stands of which
    more runs diverged. ``-`` stands for no runs, ``diverged`` for none that finished.
    """
    if not rows:
        return "-"
    found = best_of(rows, rule)
    if found.best is None or found.mean is None:
        return "diverged"
    mark = edge_mark(found.best, map(rate_of, rows))
    mark += PASSED if found.passed_over else ""
    text = f"{100 * found.mean:.1f}"
    if found.std is not None:
        text += f" ± {100 * found.std:.1f}"
    return f"{text} (2^{math.log2(found.best):.0f}{mark})" + counts(rows_at(found.best, rows))


def wanted_rows(rows: Sequence[Row], settings: Settings) -> list[Row]:
    """Those rows of a folder that the settings ask for, lines in their order."""
    wanted = [
        row
        for row in rows
        if row["line"] in settings.lines
        and int(row["depth"]) in settings.depths
        and (settings.extend or int(row["log2_rate"]) in settings.log2_rates)
        and int(row["seed"]) in settings.seeds
    ]
    return sorted(wanted, key=lambda row: settings.lines.index(row["line"]))


def table(
    rows: Sequence[Row], settings: Settings, lines: Mapping[str, Line], rule: Rule = "strict"
) -> str:
    """The table as text: lines down, depths across."""
    wanted = wanted_rows(rows, settings)
    cells = [["scheme", *(f"{depth:,}-{settings.width}" for depth in settings.depths)]]
    for name in settings.lines:
        of_line = [row for row in wanted if row["line"] == name]
        by_depth = [[r for r in of_line if int(r["depth"]) == depth] for depth in settings.depths]
        cells.append([lines[name].title, *(cell(rows, rule) for rows in by_depth)])
    return rate_table(cells)


def plot(
    rows: Sequence[Row], settings: Settings, path: Any, *, chance: float, rule: Rule = "strict"
) -> None:
    """Draws test accuracy at the best rate against depth; the rows of other rates are left out."""
    wanted = wanted_rows(rows, settings)
    drawn: list[Row] = []
    for name in settings.lines:
        for depth in settings.depths:
            here = [r for r in wanted if r["line"] == name and int(r["depth"]) == depth]
            found = best_of(here, rule).best
            # Where all rates diverged, one cross says so.
            drawn += here[:1] if found is None else rows_at(found, here)
    tried = {int(row["log2_rate"]) for row in wanted}
    rates = f"2^{min(tried)} to 2^{max(tried)}"
    depth_figure(
        drawn,
        path,
        title="Test accuracy at the best learning rate against depth",
        subtitle=(
            f"WRN-n-{settings.width} on {settings.dataset}, {settings.stem_channels} stem channels,"
            f" best learning rate of {rates}, batch {settings.batch_size}, {settings.steps} steps, "
            f"{len(settings.seeds)} seed{'s' if len(settings.seeds) > 1 else ''}"
        ),
        chance=chance,
    )


def make_table(
    command: RateCommand, *, name: str, lines: Mapping[str, Line], scales: Mapping[str, Settings]
) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code.

    Args:
      command: the command line.
      name: the experiment's, after which its folder is called.
      lines: the lines of the table.
      scales: the settings of each scale.
    """
    grid.stop_at_once()
    settings: Settings = resolve(command, scales, GRID)
    dataset = load_data(settings.dataset, command.data_dir)
    folder = open_folder(name, command, settings, grid=(*GRID, "extend"), columns=COLUMNS, key=KEY)
    everything = points(settings, lines, folder.rows, command.best)
    first_words(name, command, settings.dataset, f"{len(everything)} runs", folder)
    start = time.monotonic()
    failures: list[str] = []
    made: list[grid.Point] = []
    while len(everything) > len(made) and not failures:
        failures = grid.make_rows(
            everything,
            folder,
            workers=workers_of(command),
            make_program=lambda point: make_program(
                settings, dataset, point.key["depth"], lines[point.key["line"]]
            ),
            run=lambda program, point, on_step: run(settings, lines, program, point, on_step),
        )
        made, everything = everything, points(settings, lines, folder.rows, command.best)
    keep_failures(folder, failures)

    text = table(folder.rows, settings, lines, command.best)
    chance = 1 / dataset.num_classes
    print(f"\nTest accuracy (%) at the best learning rate, chance {100 * chance:.0f}%:\n\n{text}")
    folder.write_text("table.txt", text + "\n")
    if wanted_rows(folder.rows, settings):
        folder.draw(
            "figure.png",
            lambda path: plot(folder.rows, settings, path, chance=chance, rule=command.best),
        )
    return last_words(folder, failures, start)


__all__ = [
    "COLUMNS", "GRID", "KEY", "Line", "RateCommand", "Settings", "best_of", "cell", "make_program",
    "make_table", "plot", "points", "rates_of", "rows_at", "run", "table", "wanted_rows",
]  # fmt: skip
