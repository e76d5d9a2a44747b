"""What an experiment is: settings for each scale, a grid of runs, and rows, table and figure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import tyro

from nf_resnets import data, optim
from nf_resnets.models import DTYPES, Dtype
from nf_resnets.plotting.curves import Curve
from nf_resnets.sweep.engine import Execution
from nf_resnets.training import Start

from .folder import CurvesFile, Row
from .table import grouped

FIGURE = "figure.png"
"""The file of an experiment's first figure."""

EXECUTION = Execution(devices_per_run=0)
"""A run is sharded over all devices that divide its batch."""


@dataclasses.dataclass(frozen=True)
class Command:
    """The options that every experiment has.

    An option that is a setting, too, replaces that of the scale where it is given.
    """

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; paper: as published."""
    seeds: tuple[int, ...] = ()
    """Seeds, with spaces between; by default those of the scale."""
    steps: int | None = None
    """Steps of each run; by default the scale's."""
    dtype: Dtype = DTYPES[0]
    """What networks compute in; parameters, statistics and losses are float32 in either case."""
    optimizer: optim.Name = "sgd"
    """sgd, as published; adamw, lion or muon, which want smaller rates than the scale has. Slow and
    undecayed leaves are the same."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    out: Path | None = None
    """The results folder; by default runs/NAME-SCALE. Started again with the same folder, the
    command makes only what is missing, and goes on with runs that were cut off."""
    tensorboard: bool = False
    """Write TensorBoard logs into the folder's tensorboard/."""
    wandb: bool = False
    """Log with Weights & Biases into the folder's wandb/: offline, unless WANDB_MODE is online."""
    execution: Annotated[Execution, tyro.conf.OmitArgPrefixes] = EXECUTION
    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes work as one; on a Cloud TPU leave it out."""
    num_processes: int | None = None
    """How many processes there are."""
    process_id: int | None = None
    """The index of this process, from 0."""


@dataclasses.dataclass(frozen=True)
class Point:
    """One run that an experiment asks for."""

    key: Mapping[str, Any]  # the columns that name its row, and their values
    title: str  # what table and figure call its curve
    start: Start  # scheme, seed and the optimizer's numbers
    program: Hashable  # runs of equal values share a compiled program
    num_steps: int
    steps_per_epoch: int  # after so many steps the run is probed, recorded and saved
    batch_size: int = 0
    priority: int = 0  # runs of a lower one are made first
    label: str = ""  # what the display calls it; by default the title and the rest of the key

    @property
    def name(self) -> str:
        """What the display calls it."""
        rest = (
            f"{value:,} layers" if column == "depth" else f"{column} {value}"
            for column, value in self.key.items()
            if column in ("depth", "seed")
        )
        return self.label or ", ".join([self.title, *rest])


class Setup(NamedTuple):
    """What the runs of one program share, before it is compiled."""

    model: Any
    optimizer: Callable[..., Any]  # (hyper, name=...): the optax transformation
    training: Any  # how the steps are made, such as nf_resnets.training.ImageTraining
    data: Any  # what they are made on, such as nf_resnets.data.Dataset


@dataclasses.dataclass(frozen=True)
class Results:
    """What a table and a figure are made from."""

    settings: Any
    data: Any  # what was loaded
    rows: Sequence[Row]  # of the points that the settings ask for, as far as there are, in order
    curves: Mapping[str, CurvesFile] = dataclasses.field(default_factory=dict)
    command: Any = Command()

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        return 1 / self.data.num_classes


@dataclasses.dataclass(frozen=True)
class Lines:
    """A file with several lines of each run that has ended, such as ``curves.csv``."""

    columns: tuple[str, ...]  # behind those of the experiment's key
    of: Callable[[Any, Point, Mapping[str, Any]], Sequence[Mapping[str, Any]]]  # as Experiment.row


def load_dataset(settings: Any, command: Any) -> Any:
    """Loads the data set that the settings name; None where they name none."""
    name = getattr(settings, "dataset", None)
    return None if name is None else data.load(name, command.data_dir)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, declared; :func:`experiments.main.main` makes it.

    Attributes:
      name: of its module and of its results folders.
      title: what the first line of its output calls it.
      description: what ``--help`` says of it.
      scales: the settings of each scale, a frozen dataclass.
      key: the columns that name a row.
      columns: of ``rows.csv``, the key among them.
      table: ``table(results)`` is the table as text.
      plot: ``plot(results, path)`` draws the figure.
      heading: ``heading(results)`` stands above the table when it is printed.
      grid: the settings that only say which runs there are; a results folder may have others.
      points: ``points(settings, data, rows)`` are all runs that there are to be; it is asked again
        until it asks for no more.
      setup: ``setup(settings, data, point)`` is what the runs of equal ``point.program`` share.
      row: ``row(settings, point, run)`` gives those columns of a run that has ended which
        :func:`standard_columns` has not; ``run`` is its row in the sweep, with ``measures`` and
        ``history``.
      measure: ``measure(settings, data, folder)`` adds the rows and files that need no training.
      command: the class of the options.
      choices: what a setting of the grid may hold, by name.
      check: ``check(settings, command)`` gives the settings with what else the command changes.
      load: ``load(settings, command)`` gives what the other functions call ``data``.
      lines: files with several lines of each run, by name.
      probe: ``probe(settings, data, point, program, state, step)`` gives what an epoch's row keeps
        as ``measures``.
      finish: ``finish(settings, data, point, program, state)`` gives more ``measures`` of a run.
      test_every_epoch: whether runs are tested after every epoch, and not only at the end.
      adapt: ``adapt(settings)`` are the attributes that are others with some settings.
      describe: ``describe(result)`` says what came of a run that finished; None for its accuracy.
      note: ``note(results)`` is printed below the table.
      seen: ``seen(results)`` says in words what the rows show; it is printed last.
      figures: other figures, by the name of their file.
    """

    name: str
    title: str
    description: str
    scales: Mapping[str, Any]
    key: tuple[str, ...]
    columns: tuple[str, ...]
    table: Callable[[Results], str]
    plot: Callable[[Results, Path], None]
    heading: Callable[[Results], str] = lambda results: ""
    grid: tuple[str, ...] = ("seeds",)
    points: Callable[[Any, Any, Sequence[Row]], Sequence[Point]] = lambda *_: ()
    setup: Callable[[Any, Any, Point], Setup] | None = None
    row: Callable[[Any, Point, Mapping[str, Any]], Row] = lambda *_: {}
    measure: Callable[[Any, Any, Any], None] | None = None
    command: type = Command
    choices: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    check: Callable[[Any, Any], Any] = lambda settings, command: settings
    load: Callable[[Any, Any], Any] = load_dataset
    lines: Mapping[str, Lines] = dataclasses.field(default_factory=dict)
    probe: Callable[..., Mapping[str, Any]] | None = None
    finish: Callable[..., Mapping[str, Any]] | None = None
    test_every_epoch: bool = False
    adapt: Callable[[Any], Mapping[str, Any]] = lambda settings: {}
    describe: Callable[[Mapping[str, Any]], str] | None = None
    note: Callable[[Results], str] = lambda results: ""
    seen: Callable[[Results], str] = lambda results: ""
    figures: Mapping[str, Callable[[Results, Path], None]] = dataclasses.field(default_factory=dict)


OUTCOME = (
    "status", "steps", "batch_size", "test_accuracy", "test_loss", "first_loss", "last_loss",
    "last_grad_norm", "seconds", "seconds_per_step",
)  # fmt: skip
"""The columns that tell the outcome of a run on images."""


def standard_columns(point: Point, model: Any, run: Mapping[str, Any]) -> Row:
    """The columns that need not be declared: key, title, network, and the sweep's results."""
    measures = run["measures"]
    return {
        "title": point.title,
        "depth": getattr(model, "depth", ""),
        "branches": model.num_branches,
        "status": run["state"],
        "steps": run["steps_done"],
        "batch_size": point.batch_size,
        **{name: number(run[name]) for name in ("test_accuracy", "test_loss")},
        **{name: number(measures.get(name)) for name in ("first_loss", "last_loss")},
        "last_grad_norm": number(measures.get("last_grad_norm")),
        "seconds": round(number(run["seconds"]), 2),
        "seconds_per_step": round(number(measures.get("seconds_per_step")), 5),
        **point.key,
    }


def mean_curves(results: Results, *columns: str, of: str = "accuracy") -> list[Curve]:
    """A curve for all rows that are alike in some columns: the mean of a column of ``curves.csv``.

    It goes as far as all of them went, in a band from the lowest run to the highest; accuracies are
    in percent.
    """
    factor = 100 if of == "accuracy" else 1
    found = []
    for rows in grouped(results.rows, *columns).values():
        steps, values = results.curves["curves.csv"].values(rows, of)
        if not steps:  # one of them diverged before its first line
            continue
        seeds = len(rows) > 1
        found.append(
            Curve(
                rows[0]["title"],
                steps,
                [factor * sum(each) / len(each) for each in values],
                diverged=any(row["status"] == "diverged" for row in rows),
                low=[factor * min(each) for each in values] if seeds else (),
                high=[factor * max(each) for each in values] if seeds else (),
            )
        )
    return found


def number(value: float | None) -> float:
    """A number of a row, where None stands for NaN."""
    return math.nan if value is None else value


def thinned(
    curve: Mapping[str, Sequence[float]], points: int, num_steps: int
) -> list[dict[str, float]]:
    """A curve as lines, at most so many, each the mean of as many points, but for the last.

    The ``step`` of a line is the last one of those that it is the mean of. ``num_steps`` are those
    of a run that finishes: the lines of one that diverged are at the same steps.

    Example:
      >>> curve = {"step": [1, 2, 3, 4, 5], "loss": [0.0, 1.0, 2.0, 3.0, 4.0]}
      >>> [(point["step"], point["loss"]) for point in thinned(curve, 3, num_steps=5)]
      [(2, 0.5), (4, 2.5), (5, 4.0)]
      >>> [(point["step"], point["loss"]) for point in thinned(curve, 3, num_steps=9)]
      [(3, 1.0), (5, 3.5)]
    """
    # A point of a row's curve may be the mean of several steps already.
    whole = -(-num_steps // curve["step"][0]) if curve["step"] else 0
    length = max(1, -(-whole // points))
    found = []
    for start in range(0, len(curve["step"]), length):
        part = {name: values[start : start + length] for name, values in curve.items()}
        means = {name: sum(map(number, values)) / len(values) for name, values in part.items()}
        found.append({**means, "step": part["step"][-1]})
    return found


def curve_lines(of: Callable[[Any], int]) -> Lines:
    """Loss and accuracy on the training batches, as at most ``of(settings)`` lines of a run."""
    return Lines(
        ("step", "loss", "accuracy"),
        lambda settings, point, run: thinned(
            run["measures"]["curve"], of(settings), point.num_steps
        ),
    )


__all__ = [
    "FIGURE", "OUTCOME", "Command", "Experiment", "Lines", "Point", "Results", "Setup",
    "curve_lines", "load_dataset", "mean_curves", "number", "standard_columns", "thinned",
]  # fmt: skip
