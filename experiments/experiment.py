"""What an experiment is: grids of runs, and the table and the figure of their rows."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import data, schemes
from nf_resnets.sweep import settings
from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.rows import RESULTS
from nf_resnets.training import run

from .grid import Point, about, layers

Row = dict[str, Any]

COMMITTED = Path(__file__).parents[1] / "results"
"""Where the rows are that an experiment reads instead of making runs."""
CURVE_POINTS = 2_000
"""Points of a run's curve in its row, at most; a shorter run keeps every step."""
CHANCE = (10.0, "chance (10%)")
"""The accuracy of guessing one of ten classes, in percent, as a level of a panel."""
OUTCOME = ("test_accuracy", "test_loss")
MEASURES = ("first_loss", "last_loss", "last_grad_norm", "seconds_per_step")
LINE = ("step", "loss", "accuracy")
NAMES = (
    "scheme", "variant", "title", "part", "depth", "network", "model", "batch_size", "batch",
    "peak_lr", "rate", "seed",
)  # fmt: skip
"""The columns that name a run in ``curves.csv``, those of earlier versions among them."""


@dataclasses.dataclass(frozen=True)
class Results:
    """What a table and a figure are made from.

    Attributes:
      points: the settings of the runs.
      rows: of the runs that have ended, in the order of the points.
      lines: several of each run, of its curve; they have the columns that name the row.
    """

    points: Sequence[Point]
    rows: Sequence[Row]
    lines: Sequence[Row] = ()

    @property
    def about(self) -> str:
        """What all runs share, in words."""
        return about(self.points)

    def curve(self, row: Row) -> list[Row]:
        """The lines of a run."""
        if not self.lines:
            return []
        names = [name for name in NAMES if name in self.lines[0] and name in row]
        return [line for line in self.lines if all(str(line[n]) == str(row[n]) for n in names)]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Grids of runs, and the table and figure of their rows.

    Attributes:
      name: of its module and of its results folders.
      scales: the runs of each scale.
      table: ``table(results)`` is the table as text.
      figure: ``figure(results, path)`` draws the figure.
      figures: other figures, by the name of their file.
      schemes: those of the grids that the library does not have.
      title: ``title(settings)`` is what table and figure call a run; by default its scheme's title.
      columns: ``columns(row)`` gives further columns of a run's row in the sweep, for ``rows.csv``.
      lines: ``lines(row)`` gives the lines of a run in ``curves.csv``, such as ``curve_of``.
      history_steps: the steps between two rows of a run's history, by scale; by default an epoch's.
      probe: ``probe(task, program, plan, state, step)`` adds to these rows.
      finish: ``finish(task, program, plan, state)`` gives more measures of a finished run.
      grow: by scale, ``grow(first, points, rows)`` gives the runs that the rows ask for besides;
        ``first`` are the scale's points, ``rows`` has None for what is not over.
      task: ``task(points, command)`` makes the runs; by default images in memory.
      typed: ``typed(point)`` is what the task takes for a run.
      measure: ``measure(point, data_dir)`` gives the rows of a point that names no ``model``: what
        needs no training.
      execution: how the runs are made, where the command does not say.
    """

    name: str
    scales: Mapping[str, Sequence[Point]]
    table: Callable[[Results], str]
    figure: Callable[[Results, Path], None]
    figures: Mapping[str, Callable[[Results, Path], None]] = dataclasses.field(default_factory=dict)
    schemes: Sequence[schemes.Scheme] = ()
    title: Callable[[Mapping[str, Any]], str] = lambda row: schemes.get(row["scheme"]).title
    columns: Callable[[Row], Row] = lambda row: {}
    lines: Callable[[Row], Sequence[Row]] = lambda row: ()
    history_steps: Mapping[str, int] = dataclasses.field(default_factory=dict)
    probe: Callable[..., Mapping[str, Any]] | None = None
    finish: Callable[..., Mapping[str, Any]] | None = None
    grow: Mapping[str, Callable[..., Sequence[Point]]] = dataclasses.field(default_factory=dict)
    task: Callable[[Sequence[Point], Any], Any] = lambda points, command: ImageTask(
        functools.partial(data.load, data_dir=command.data_dir)
    )
    typed: Callable[[Point], Any] = settings.make
    measure: Callable[[Point, str | None], Sequence[Row]] = lambda point, data_dir: ()
    execution: Execution = Execution()


OVER = ("finished", "diverged")


def number(value: Any) -> float:
    """A number of a row, where None stands for NaN."""
    return math.nan if value is None else value


def with_nan(value: Any) -> Any:
    """Measures of a row, with NaN for None."""
    if isinstance(value, dict):
        return {name: with_nan(each) for name, each in value.items()}
    return [with_nan(each) for each in value] if isinstance(value, list) else number(value)


def measured(row: Row) -> Row:
    """A row whose measures, and those of its history, are numbers where they are not finite."""
    history = [{**each, "measures": with_nan(each["measures"])} for each in row["history"]]
    return {**row, "measures": with_nan(row["measures"]), "history": history}


def flat(row: Row, experiment: Experiment) -> Row:
    """The columns of a run that table and figure read, from its row in the sweep."""
    row = measured(row)
    measures = row["measures"]
    named = {name: value for name, value in row.items() if name not in RESULTS}
    return {
        **named,
        "title": experiment.title(row),
        "depth": layers(row),
        "status": row["state"],
        "steps": row["steps_done"],
        **{name: number(row.get(name)) for name in OUTCOME},
        **{name: number(measures.get(name)) for name in MEASURES},
        "seconds": round(number(row["seconds"]), 2),
        **experiment.columns(row),
    }


def curve_lines(row: Row, experiment: Experiment) -> list[Row]:
    """The lines of a run in ``curves.csv``."""
    columns = flat(row, experiment)
    named = {name: columns[name] for name in NAMES if name in columns}
    return [{**named, **line} for line in experiment.lines(measured(row))]


def curve_of(row: Row, points: int = 200) -> list[Row]:
    """Loss and accuracy on the training batches, as at most so many lines."""
    curve = run.thinned(row["measures"]["curve"], points, row["resolved"]["num_steps"])
    return [
        dict(zip(LINE, values, strict=True))
        for values in zip(*(curve[name] for name in LINE), strict=True)
    ]
