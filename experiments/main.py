"""The one command of all experiments: makes what is missing, prints the table, draws the figure."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nf_resnets import command_line, data, places, schemes
from nf_resnets.machine import device_name, maker
from nf_resnets.places import whole_file, write_csv
from nf_resnets.plotting.style import NO_MATPLOTLIB, can_draw
from nf_resnets.sweep import command as sweep_command
from nf_resnets.sweep import engine, settings
from nf_resnets.sweep.engine import Execution, store_programs
from nf_resnets.sweep.options import DataDir, Logs, Processes
from nf_resnets.sweep.results import makers
from nf_resnets.sweep.rows import Rows
from nf_resnets.training import Plan, hosts
from nf_resnets.training.preemption import Preemption

from .experiment import (
    COMMITTED,
    CURVE_POINTS,
    OVER,
    Experiment,
    Results,
    Row,
    curve_lines,
    flat,
)
from .grid import Point, changed, differing, layers, parsed, telling


@dataclasses.dataclass(frozen=True)
class Command:
    """The options that every experiment has."""

    scale: str = "laptop"
    """smoke: seconds a run; laptop: minutes on two cores; paper: as published. Some experiments
    have others, which their documentation describes."""
    grid: tuple[str, ...] = ()
    """Settings of the runs, such as scheme=fixup,batchnorm seed=0:4 peak_lr=2^-8:2^2. Values
    that the scale has choose some of its runs; others take the place of the scale's. nf-resnets
    sweep --help lists the settings."""
    data_dir: DataDir = None
    out: Path | None = None
    """The results folder; by default runs/NAME-SCALE. Started again with the same folder, the
    command makes only what is missing, and goes on with runs that were cut off."""
    shard: tuple[int, int] = (0, 1)
    """Which of how many parts of the runs this command makes: I N takes every N-th wave of runs,
    from the I-th on, counted from 0."""
    logs: Logs = Logs()
    execution: Execution = Execution()
    processes: Processes = Processes()


def run(experiment: Experiment, prog: str = "", **options: Any) -> NoReturn:
    """Runs the command line of an experiment, and exits.

    Args:
      experiment: what to make.
      prog: what its help calls it; by default how it was started.
      options: with another default.
    """
    default = Command(**{"execution": experiment.execution, **options})
    text = f"Makes {experiment.name}. Scales: {', '.join(experiment.scales)}."

    def command() -> int:
        return main(experiment, command_line.read(Command, prog, text, default))

    raise SystemExit(sweep_command.end(command))


def main(experiment: Experiment, command: Command) -> int:
    """As :func:`run`, but returns the exit code; of several processes the first writes and prints.

    Raises:
      ValueError, OSError, ImportError: if an option, the data or the results folder is not in
        order.
    """
    default = Path("runs") / f"{experiment.name}-{command.scale}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # What an ablation leaves out is what its figure shows.
        warnings.simplefilter("ignore", schemes.SchemeWarning)
        stack.enter_context(schemes.registered(*experiment.schemes))
        points = chosen(experiment, command)
        title = telling(experiment.title, experiment.scales[command.scale], points)
        experiment = dataclasses.replace(experiment, title=title)
        hosts.initialize(*dataclasses.astuple(command.processes))
        out = (command.out or default).expanduser()
        if hosts.is_process_zero():
            places.try_folder(out)
            sweep_command.refuse_without_rows(out)
            if not can_draw():
                print(NO_MATPLOTLIB, file=sys.stderr)
        with hosts.abort_on_error():
            return _Making(experiment, command, out).make(points)


def chosen(experiment: Experiment, command: Command) -> list[Point]:
    """The runs of the scale, with what the command line changes.

    Raises:
      ValueError: if there is no such scale, a value is not one for its setting, or what needs no
        training would be mixed.
    """
    if command.scale not in experiment.scales:
        known = ", ".join(experiment.scales)
        raise ValueError(f"--scale {command.scale} found; expected one of {known}.")
    points = list(experiment.scales[command.scale])
    fields = settings.FIELDS if experiment.typed is settings.make and "model" in points[0] else ()
    points = changed(points, parsed(command.grid, points, fields))
    told = {"seed"}.union(*map(differing, experiment.scales.values()))
    for name in differing([point for point in points if "model" not in point]) - told:
        raise ValueError(
            f"several values of {name} found, which the table would mix; expected one of them."
        )
    return points


class Drawer:
    """Draws the figure again as runs end, in at most a twentieth of the time.

    What ``draw`` raises is left to the last drawing, since some rows are missing here.
    """

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw, self._lock, self._next = draw, threading.Lock(), 0.0

    def on_run_end(self, *_: Any) -> None:
        """A run has ended."""
        begun = time.monotonic()
        if begun >= self._next and self._lock.acquire(blocking=False):
            with contextlib.suppress(Exception):
                self._draw()
            self._next = time.monotonic() + 19 * (time.monotonic() - begun)
            self._lock.release()


@dataclasses.dataclass
class _Making:
    experiment: Experiment
    command: Command
    out: Path
    begun: float = dataclasses.field(default_factory=time.monotonic)
    measured: list[Row] = dataclasses.field(default_factory=list)  # those without training

    def make(self, points: list[Point]) -> int:
        writes, trained = hosts.is_process_zero(), []
        untrained = [point for point in points if "model" not in point]
        points = [point for point in points if "model" in point]
        if points:  # what cannot be is refused before anything is made
            task = self.experiment.task(points, self.command)
            for point in points:
                self.plan(task, point, points)
        store_programs(self.out)
        rows = Rows(self.out, self.command.shard, writes=writes)
        with rows.open():
            if writes:
                print(
                    f"{self.experiment.name}, scale {self.command.scale}, on {device_name()}; "
                    f"results in {self.out.resolve()}",
                    flush=True,
                )
                sweep_command.say_what_is_damaged(rows)
            rows.retry()
            for point in untrained if writes else ():
                self.measured.append(self.measure(point, rows))
            if points:
                points, trained = self.train(task, points, rows)
        if not writes:
            return 0
        failed = [row for row in trained if row["state"] in ("failed", "oom")]
        text = self.write([*untrained, *points], trained)
        print(f"\n{text}\n\n{time.monotonic() - self.begun:.0f} s, in {self.out.resolve()}")
        if failed:
            print(f"Failed runs: {len(failed)}; the same command tries them again.")
        elif len(trained) == len(points):  # else other shards are at work
            shutil.rmtree(self.out / "compiled", ignore_errors=True)
        return int(bool(failed))

    def measure(self, point: Point, rows: Rows) -> Row:
        """What needs no training, kept as soon as it is there."""
        name = ", ".join(f"{name} {value}" for name, value in point.items())
        known, data_dir = "", self.command.data_dir
        if "dataset" in point:
            known = data.fingerprint(data.load(point["dataset"], data_dir))
        elif "rows" in point:
            known = hashlib.sha256((COMMITTED / point["rows"]).read_bytes()).hexdigest()
        words = f"{self.experiment.name}: {name}; {known}"
        key = hashlib.sha256(words.encode()).hexdigest()
        if key not in rows:
            begun = time.monotonic()
            made = [dict(row) for row in self.experiment.measure(point, data_dir)]
            rows.add([{"key": key, "state": "measured", "rows": made, "made": maker()}])
            print(f"  {name}: {time.monotonic() - begun:.0f} s", flush=True)
        return rows.read()[key]

    def train(self, task: Any, points: list[Point], rows: Rows) -> tuple[list[Point], list[Row]]:
        """Makes the missing runs, and those that their rows ask for."""
        experiment, command, first = self.experiment, self.command, points
        grow = experiment.grow.get(command.scale, lambda *_: ())
        if experiment.probe is not None:
            task.probe = functools.partial(experiment.probe, task)
        if experiment.finish is not None:
            task.finish = functools.partial(experiment.finish, task)
        with Preemption() as stop:
            while True:
                plans = [self.plan(task, point, points) for point in points]
                drawer = Drawer(functools.partial(self.draw, points, plans, rows))
                missing = [plan for plan in plans if plan.key not in rows]
                how = (self.command.logs, self.out, drawer)
                with sweep_command.watched(missing, *how) as callback:
                    outcome = engine.make(
                        task, plans, rows, callback=callback, stop=lambda: stop.requested,
                        execution=command.execution,
                    )  # fmt: skip
                if outcome.stopped:
                    print("Stopped; all runs are kept where they stood; the same command goes on.")
                    raise SystemExit(stop.exit_code or 143)
                all_rows = [outcome.rows.get(plan.key, {"state": "missing"}) for plan in plans]
                flat_rows = [
                    flat(row, experiment) if row["state"] in OVER else None for row in all_rows
                ]
                more = hosts.broadcast(list(grow(first, points, flat_rows)))
                if not more:
                    return points, [row for row in all_rows if row["state"] != "missing"]
                points = [*points, *more]

    def plan(self, task: Any, point: Point, points: Sequence[Point]) -> Plan:
        plan = task.plan(self.experiment.typed(point))
        words = [self.experiment.title(plan.settings)]
        words += [f"{layers(plan.settings):,} layers"] * (len({*map(layers, points)}) > 1)
        for name in ("batch_size", "peak_lr", "seed"):
            if len({each.get(name) for each in points}) > 1:
                word = settings.label(plan.settings, [name])
                words += [word] * (word not in words[0])
        steps = self.experiment.history_steps.get(self.command.scale, plan.steps_per_epoch)
        return dataclasses.replace(
            plan, label=", ".join(words), curve_points=CURVE_POINTS, steps_per_epoch=steps
        )

    def draw(self, points: Sequence[Point], plans: Sequence[Plan], rows: Rows) -> None:
        """Draws the runs that are over."""
        there = rows.read()
        self.write(points, [there[plan.key] for plan in plans if plan.key in there])

    def write(self, points: Sequence[Point], trained: Sequence[Row]) -> str:
        """Writes table, figures and what they are made of; returns the table."""
        over = [row for row in trained if row["state"] in OVER]
        rows = [row for point in self.measured for row in point["rows"]]
        rows += [flat(row, self.experiment) for row in over]
        lines = [line for row in over for line in curve_lines(row, self.experiment)]
        results = Results(points, rows, lines)
        text = self.experiment.table(results) if rows else "No run has ended."
        with whole_file(self.out / "table.txt") as new:
            new.write_text(text + "\n")
        write_csv(self.out / "rows.csv", rows)
        write_csv(self.out / "curves.csv", lines)
        shared = {name: value for name, value in points[0].items()
                  if all(point.get(name) == value for point in points)}  # fmt: skip
        record = {"scale": self.command.scale, "grid": self.command.grid, "settings": shared}
        with whole_file(self.out / "settings.json") as new:
            new.write_text(
                json.dumps({**record, "made": makers([*self.measured, *trained])}, indent=2) + "\n"
            )
        figures = {"figure.png": self.experiment.figure, **self.experiment.figures}
        for name, draw in figures.items() if rows and can_draw() else ():
            with whole_file(self.out / name) as new:
                draw(results, new)
        return text
