"""The one command of all experiments: makes what is missing, prints the table, draws the figure."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from nf_resnets import command_line
from nf_resnets.sweep.command import end
from nf_resnets.sweep.engine import sweep_mesh
from nf_resnets.sweep.options import check_execution
from nf_resnets.training import hosts

from .experiment import FIGURE, Command, Experiment, Point, Results
from .folder import CurvesFile, ResultsFolder, Row
from .runs import ExperimentTask, Result, make_runs
from .table import counted

STOPPED = "Stopped; all runs are kept where they stood, and the same command makes what is missing."


def run(experiment: Experiment, prog: str = "", **changed: Any) -> NoReturn:
    """Runs the command line of an experiment, and exits.

    Args:
      experiment: what to make.
      prog: what its help calls it; by default how it was started.
      changed: options with another default.
    """
    default = experiment.command(**changed)
    command = command_line.read(experiment.command, prog, experiment.description, default)
    end(lambda: main(experiment, command))


def main(experiment: Experiment, command: Any) -> int:
    """As :func:`run`, but returns the exit code; of several processes the first writes and prints.

    Raises:
      SystemExit: if an option, the data or the results folder is not in order, with one sentence.
    """
    stop_at_once()
    settings = settings_of(experiment, command)
    experiment = dataclasses.replace(experiment, **experiment.adapt(settings))
    try:
        if experiment.setup is not None:
            hosts.initialize(command.coordinator, command.num_processes, command.process_id)
            devices = jax.devices()
            sweep_mesh(devices, command.execution.devices_per_run or len(devices))
        data = experiment.load(settings, command)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from error
    folder = open_folder(experiment, command, settings) if hosts.is_process_zero() else None
    try:
        with hosts.abort_on_error():
            return make(experiment, command, settings, data, folder)
    except OSError as error:
        raise SystemExit(str(error)) from error


def make(
    experiment: Experiment, command: Any, settings: Any, data: Any, folder: ResultsFolder | None
) -> int:
    """Makes what is missing, and shows it; there is a folder on the first process only."""
    start = time.monotonic()
    curves: Mapping[str, CurvesFile] = {}
    if folder is not None:
        points = experiment.points(settings, data, folder.rows)
        say_what_is_made(experiment, command, settings, points, folder)
        stop_at_once(
            f"Stopped. What was finished is kept in {folder.path}; the same command makes what is "
            "missing."
        )
        curves = open_curves(experiment, folder)
        if experiment.measure is not None:
            experiment.measure(settings, data, folder)
    made = Result((), {})
    if experiment.setup is not None:
        task = ExperimentTask(experiment, settings, data, **others(command))

        def draw(points: Sequence[Point]) -> None:
            rows = wanted_rows(experiment, settings, list(folder.rows), points)
            results = Results(settings, data, rows, curves, command)
            experiment.plot(results, folder.path / FIGURE)

        made = make_runs(task, folder, curves, command, draw)
        if made.exit_code:
            print(STOPPED, file=sys.stderr)
            raise SystemExit(made.exit_code)
    if folder is None:
        return int(bool(made.failures))
    keep_failures(folder, made.failures)
    rows = wanted_rows(experiment, settings, folder.rows, made.points)
    results = Results(settings, data, rows, curves, command)
    show(experiment, results, folder)
    return last_words(experiment, results, folder, made.failures, start)


def settings_of(experiment: Experiment, command: Any) -> Any:
    """The settings of the scale with what the command line changes, checked."""
    if command.scale not in experiment.scales:
        known = ", ".join(experiment.scales)
        raise SystemExit(f"--scale {command.scale} found; expected one of {known}.")
    settings = experiment.scales[command.scale]
    names = {field.name for field in dataclasses.fields(settings)}
    options = {field.name: getattr(command, field.name) for field in dataclasses.fields(command)}
    unset = (None, (), "")
    changed = {
        name: value
        for name, value in options.items()
        if name in names and value not in unset and value is not False
    }
    if hasattr(command, "execution"):
        check_execution(command.execution)
    if command.out is not None and command.out == Path():
        raise SystemExit("--out names no folder; expected one, such as --out runs/my_figure.")
    for name, value in changed.items():
        if isinstance(value, int) and value < 1:
            raise SystemExit(f"--{name} {value} found; expected at least 1.")
        if isinstance(value, tuple) and len(set(value)) < len(value):
            raise SystemExit(f"--{name} {' '.join(map(str, value))} found; expected no repetition.")
        for each in value if name in experiment.choices else ():
            if each not in experiment.choices[name]:
                known = ", ".join(experiment.choices[name])
                raise SystemExit(f"--{name} {each} found; expected some of {known}.")
        for seed in value if name == "seeds" else ():
            if not 0 <= seed < 2**32:
                raise SystemExit(f"--seeds {seed} found; expected 0 <= seed < 2**32.")
    try:
        return experiment.check(dataclasses.replace(settings, **changed), command)
    except ValueError as error:
        raise SystemExit(str(error)) from None


def open_folder(experiment: Experiment, command: Command, settings: Any) -> ResultsFolder:
    """Opens the folder that the command names, by default ``runs/NAME-SCALE``."""
    return ResultsFolder(
        command.out or Path("runs") / f"{experiment.name}-{command.scale}",
        {**dataclasses.asdict(settings), **others(command)},
        grid=experiment.grid,
        columns=experiment.columns,
        key=experiment.key,
    )


def others(command: Any) -> dict[str, str]:
    """The options besides the settings that the rows depend on, where they are not the default."""
    default = {field.name: field.default for field in dataclasses.fields(command)}
    names = [name for name in ("dtype", "optimizer") if name in default]
    given = {name: getattr(command, name) for name in names}
    return {name: value for name, value in given.items() if value != default[name]}


def open_curves(experiment: Experiment, folder: ResultsFolder) -> dict[str, CurvesFile]:
    """Opens the files with several lines of each run."""
    found = {}
    for name, lines in experiment.lines.items():
        columns = (*experiment.key, *lines.columns)
        found[name] = CurvesFile(folder, columns=columns, key=experiment.key, name=name)
        found[name].check()
    return found


def say_what_is_made(
    experiment: Experiment, command: Any, settings: Any, points: Sequence[Point], folder: Any
) -> None:
    """Prints what is going to be made, on what, and where it goes."""
    devices, words = jax.devices(), [counted(points, "run")] if points else []
    if hasattr(settings, "dataset"):
        words.insert(0, settings.dataset)
    about = f"{', '.join(words)} on " if words else ""
    print(
        f"{experiment.title}, scale {command.scale}: {about}{len(devices)} "
        f"{devices[0].device_kind}; results in {folder.path.resolve()}",
        flush=True,
    )


def wanted_rows(
    experiment: Experiment, settings: Any, rows: Sequence[Row], points: Sequence[Point]
) -> list[Row]:
    """The rows that the settings ask for; a folder may have more, of other seeds, say."""

    def name(key: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(key[column]) for column in experiment.key)

    place = {name(point.key): index for index, point in enumerate(points)}
    if experiment.measure is None:
        found = [row for row in rows if name(row) in place]
    else:
        grid = {each.removesuffix("s"): getattr(settings, each) for each in experiment.grid}
        asked = {each: {"", *map(str, of)} for each, of in grid.items() if each in experiment.key}
        found = [row for row in rows if all(row[each] in of for each, of in asked.items())]
    # Measured rows, which are no points, come first.
    return sorted(found, key=lambda row: place.get(name(row), -1))


def show(experiment: Experiment, results: Results, folder: ResultsFolder) -> None:
    """Prints and writes the table, draws the figures."""
    text = experiment.table(results)
    print(f"\n{experiment.heading(results)}\n\n{text}".replace("\n\n\n", "\n\n"))
    if note := experiment.note(results):
        print(f"\n{note}")
    folder.write_text("table.txt", text + "\n")
    if results.rows:
        for name, plot in {FIGURE: experiment.plot, **experiment.figures}.items():
            folder.draw(name, lambda path, plot=plot: plot(results, path))


def keep_failures(folder: ResultsFolder, failures: Mapping[str, str]) -> None:
    """Writes the tracebacks of failed runs, or takes those of an earlier start away."""
    if failures:
        texts = [f"{label}:\n{trace}" for label, trace in failures.items()]
        folder.write_text("failures.txt", "\n".join(texts))
    else:
        with contextlib.suppress(OSError):
            (folder.path / "failures.txt").unlink(missing_ok=True)


def last_words(
    experiment: Experiment,
    results: Results,
    folder: ResultsFolder,
    failures: Mapping[str, str],
    start: float,
) -> int:
    """Prints which files there are now, and what they show; returns the exit code."""
    folder.settle()
    print(f"\n{time.monotonic() - start:.0f} s. In {folder.path.resolve()}:")
    figures = [FIGURE, *experiment.figures]
    for file in (
        *figures, *(Path(figure).with_suffix(".svg").name for figure in figures), "table.txt",
        "rows.csv", *experiment.lines,
        "settings.json", "failures.txt",
    ):  # fmt: skip
        if (folder.path / file).is_file():
            print(f"  {file}")
    if failures:
        print(f"Failed runs: {len(failures)}; the same command tries them again.")
    if results.rows and (seen := experiment.seen(results)):
        print(f"\n{seen}")
    sys.stdout.flush()
    for fault in folder.faults:
        print(fault, file=sys.stderr)
    return 1 if failures or folder.faults else 0


def stop_at_once(word: str = "Stopped before anything was made.") -> None:
    """Makes Ctrl-C and SIGTERM end the process at once: finished rows are on disk already."""

    def leave(number: int, _: Any) -> None:
        try:
            print(word, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # also where nobody reads the sentence any more
            os._exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


__all__ = ["main", "run", "settings_of"]
