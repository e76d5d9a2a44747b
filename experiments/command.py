"""What the experiments' command lines have in common: options, checks, the first and last words."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from experiments.folder import ResultsFolder
from nf_resnets import data


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of an experiment that has no others."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; paper: as published."""
    seeds: tuple[int, ...] = ()
    """Seeds, with spaces between; by default those of the scale."""
    steps: int = 0
    """Steps of each run; 0 for the scale's number."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    out: Path | None = None
    """The results folder; by default runs/NAME-SCALE. Started again with the same folder, the
    command makes only what is missing."""
    workers: int = 0
    """Runs at a time; 0 for two on a CPU of two cores or more, else one."""


def resolve(command: Any, scales: Mapping[str, Any], grid: Sequence[str]) -> Any:
    """The scale's settings with what the command line changes, checked.

    Args:
      command: a :class:`Command`, or one with more options, which then are settings of the grid.
      scales: the settings of each scale.
      grid: names of the settings that are tuples, of which every combination is a run.

    Raises:
      SystemExit: if an option is out of its range, with one sentence that says which.
    """
    settings = scales[command.scale]
    for name in grid:
        if getattr(command, name, ()):
            settings = dataclasses.replace(settings, **{name: getattr(command, name)})
    if command.steps:
        settings = dataclasses.replace(settings, steps=command.steps)
    if command.workers < 0:
        raise SystemExit(f"--workers {command.workers} found; expected at least 1, or 0 to choose.")
    if command.out is not None and command.out == Path():
        raise SystemExit("--out names no folder; expected one, such as --out runs/my_figure.")
    if settings.steps is not None and settings.steps < 1:
        raise SystemExit(f"--steps {settings.steps} found; expected at least 1.")
    for name in grid:
        values = getattr(settings, name)
        if len(set(values)) < len(values):
            raise SystemExit(
                f"--{name} {' '.join(map(str, values))} found; expected no repetition."
            )
    for seed in settings.seeds:
        if not 0 <= seed < 2**32:
            raise SystemExit(f"--seeds {seed} found; expected 0 <= seed < 2**32.")
    return settings


def load_data(name: str, data_dir: str | None) -> data.Dataset:
    """Loads a data set by name, or ends with the sentence that says why not."""
    try:
        return data.load(name, data_dir)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from None


def open_folder(
    name: str, command: Any, settings: Any, *, grid: Sequence[str], columns: Any, key: Any
) -> ResultsFolder:
    """Opens the folder that the command names, by default ``runs/NAME-SCALE``."""
    out = command.out or Path("runs") / f"{name}-{command.scale}"
    return ResultsFolder(out, dataclasses.asdict(settings), grid=grid, columns=columns, key=key)


def workers_of(command: Any) -> int:
    """How many runs are made at a time."""
    on_cpu = jax.default_backend() == "cpu"
    return command.workers or (2 if on_cpu and (os.cpu_count() or 1) > 1 else 1)


def first_words(title: str, command: Any, dataset: str, grid: str, folder: ResultsFolder) -> None:
    """Says what is going to be made, on what, and where it goes."""
    devices = jax.devices()
    print(
        f"{title}, scale {command.scale}: {dataset}, {grid} on {len(devices)} "
        f"{devices[0].device_kind}; results in {folder.path.resolve()}",
        flush=True,
    )


def keep_failures(folder: ResultsFolder, failures: Sequence[str]) -> None:
    """Writes the tracebacks of failed runs, or takes those of an earlier start away."""
    if failures:
        folder.write_text("failures.txt", "\n".join(failures))
    else:
        with contextlib.suppress(OSError):
            (folder.path / "failures.txt").unlink(missing_ok=True)


FILES = (
    "figure.png", "tests.png", "table.txt", "rows.csv", "curves.csv", "tests.csv", "settings.json",
    "failures.txt",
)  # fmt: skip


def last_words(folder: ResultsFolder, failures: Sequence[str], start: float) -> int:
    """Says which files there are now; returns the exit code.

    Args:
      folder: where they are.
      failures: what went wrong.
      start: by ``time.monotonic()``, when the first run began.
    """
    folder.settle()
    print(f"\n{time.monotonic() - start:.0f} s. In {folder.path.resolve()}:")
    for file in FILES:
        if (folder.path / file).is_file():
            print(f"  {file}")
    if failures:
        print(f"Failed runs: {len(failures)}; the same command tries them again.")
    sys.stdout.flush()
    for fault in folder.faults:
        print(fault, file=sys.stderr)
    return 1 if failures or folder.faults else 0


__all__ = [
    "Command",
    "first_words",
    "keep_failures",
    "last_words",
    "load_data",
    "open_folder",
    "resolve",
    "workers_of",
]
