"""A table of streamed runs: made, as far as rows are missing, and shown with its figure."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments import grid
from experiments.command import (
    first_words,
    keep_failures,
    last_words,
    open_folder,
    workers_of,
)
from experiments.curves import CurvesFile
from experiments.folder import ResultsFolder, Row
from experiments.streamed_run import StreamedProgram, make_run
from nf_resnets import schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints

CURVE_COLUMNS = ("step", "loss", "accuracy")
TEST_COLUMNS = ("step", "test_accuracy", "test_loss")

Train = Callable[[schemes.Scheme, dict[str, float]], Row]
"""``train(scheme, hyper)`` trains and tests the network of a point, and returns the columns of
:data:`experiments.streamed_run.OUTCOME`."""


@dataclasses.dataclass(frozen=True)
class MadeTable:
    """What there is when all runs were tried.

    Attributes:
      folder: where everything is.
      curves: the runs' curves.
      rows: those of the runs that were asked for, in their order.
      failures: what went wrong.
      start: by ``time.monotonic()``, when the first run began.
      tests: the tests after every epoch, if they were asked for.
    """

    folder: ResultsFolder
    curves: CurvesFile
    rows: list[Row]
    failures: list[str]
    start: float
    tests: CurvesFile | None = None


def fixed_settings(settings: Any, grid_settings: Sequence[str]) -> dict[str, Any]:
    """The settings that all runs of a table share, as JSON values: by them checkpoints are known.

    Args:
      settings: a dataclass, in which others may be.
      grid_settings: the names of those that only say which rows there are to be.
    """
    values = dataclasses.asdict(settings)
    return {name: value for name, value in values.items() if name not in grid_settings}


def make_table(
    name: str,
    title: str,
    command: Any,
    settings: Any,
    points: Sequence[grid.Point],
    make_program: Callable[[grid.Point], StreamedProgram],
    make_row: Callable[[grid.Point, Train], Row],
    *,
    dataset: Any,
    grid_settings: Sequence[str],
    key: Sequence[str],
    columns: Sequence[str],
    every_epoch: bool = False,
    more: Callable[[Sequence[Row]], Sequence[grid.Point]] | None = None,
) -> MadeTable:
    """Makes all runs of a table that are missing; one that was cut goes on from its checkpoint.

    Args:
      name: the experiment's, after which its results folder is named.
      title: what the first line calls it.
      command: the options, an :class:`experiments.imagenet.Command`.
      settings: on what the rows depend; its ``images`` are those that are streamed.
      points: all runs that there are to be.
      make_program: builds what the runs of equal ``point.program`` share.
      make_row: makes the row of a point, with the function that trains it.
      dataset: what is streamed.
      grid_settings: names of those settings that only say which runs there are to be.
      key: the columns that name a run.
      columns: all columns of a row.
      every_epoch: whether the runs are tested after every epoch.
      more: ``more(rows)`` gives all runs that there are to be when those rows are there; it is
        asked again until there are no more.
    """
    folder = open_folder(name, command, settings, grid=grid_settings, columns=columns, key=key)
    curves = CurvesFile(folder, columns=(*key, *CURVE_COLUMNS), key=key)
    tests = None
    if every_epoch:
        tests = CurvesFile(folder, columns=(*key, *TEST_COLUMNS), key=key, name="tests.csv")
    fixed = fixed_settings(settings, grid_settings)
    first_words(title, command, dataset.name, f"{len(points)} runs", folder)
    start = time.monotonic()

    def checkpoints_of(point: grid.Point) -> Checkpoints:
        place = folder.path / "checkpoints" / "-".join(map(str, point.key.values()))
        return Checkpoints(place, {"settings": fixed, "run": dict(point.key)})

    def run(program: StreamedProgram, point: grid.Point, on_step: Any) -> Row:
        def train(scheme: schemes.Scheme, hyper: dict[str, float]) -> Row:
            return make_run(
                program,
                scheme,
                point.key["seed"],
                hyper,
                on_step,
                checkpoints=checkpoints_of(point),
                curves=curves,
                key=point.key,
                tests=tests,
            )

        return {**point.key, **make_row(point, train)}

    failures: list[str] = []
    made = 0
    while made < len(points) and not failures:
        made = len(points)
        failures = grid.make_rows(
            points, folder, workers=workers_of(command), make_program=make_program, run=run
        )
        points = points if more is None else more(folder.rows)
    keep_failures(folder, failures)
    for point in points:
        if folder.has(**point.key):
            try:
                checkpoints_of(point).delete()
            except CheckpointError as error:
                print(error)
    left = folder.path / "checkpoints"
    if left.is_dir() and not any(left.iterdir()):
        left.rmdir()
    return MadeTable(folder, curves, _rows_of(folder, points), failures, start, tests)


def _rows_of(folder: ResultsFolder, points: Sequence[grid.Point]) -> list[Row]:
    named = [{name: str(value) for name, value in point.key.items()} for point in points]
    return [row for key in named for row in folder.rows if key.items() <= row.items()]


def show_table(
    made: MadeTable,
    text: str,
    panels: Mapping[str, Sequence[Row]],
    *,
    dataset: Any,
    shows: str,
    title: str,
    subtitle: str,
) -> int:
    """Prints and keeps a table, draws its figure, and returns the exit code.

    Args:
      made: the table's runs.
      text: the table.
      panels: the rows whose curves each panel of the figure shows.
      dataset: what was streamed.
      shows: which part of the claim this scale can show.
      title: of the figure.
      subtitle: of the figure.
    """
    print(f"\nTop-1 (%) on {dataset.name}; published: on ImageNet, by the paper:\n\n{text}\n")
    print("\n".join(filter(None, [shows, stalls(made.rows)])))
    made.folder.write_text("table.txt", text + "\n")
    drawn = [
        Panel("step", f"training accuracy (%), {name}", _lines(made, rows), y_limits=(0, 100))
        for name, rows in panels.items()
        if rows
    ]
    if drawn:
        made.folder.draw(
            "figure.png",
            lambda path: curves_figure(drawn, path, title=title, subtitle=subtitle),
        )
    return last_words(made.folder, made.failures, made.start)


def _lines(made: MadeTable, rows: Sequence[Row]) -> list[Curve]:
    lines = []
    for row in rows:
        steps, accuracies = made.curves.mean([row], "accuracy")
        percent = [100 * accuracy for accuracy in accuracies]
        lines.append(Curve(row["title"], steps, percent, diverged=row["status"] == "diverged"))
    return lines


def stalls(rows: Sequence[Row]) -> str:
    """One sentence on how long the runs waited for their input."""
    waited = sum(float(row["input_wait"]) for row in rows)
    seconds = sum(float(row["seconds"]) for row in rows)
    return (
        f"Waiting for input took {waited:.1f} s of the runs' {seconds:.0f} s "
        f"({100 * waited / max(seconds, 1e-9):.0f}%)."
    )


__all__ = [
    "CURVE_COLUMNS",
    "TEST_COLUMNS",
    "MadeTable",
    "Train",
    "fixed_settings",
    "make_table",
    "show_table",
    "stalls",
]
