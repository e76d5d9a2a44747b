"""Draws the committed figures again from their rows: ``python -m docs.machinery.figures``.

Nothing is trained. ``--names`` are folders in ``results/``, by default all.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import io
import json
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tyro

from docs.machinery.results import Result, committed, read_committed
from experiments import skipinit_lr_batch
from experiments.experiment import Results
from experiments.main import open_curves, open_folder, settings_of, show, wanted_rows
from nf_resnets.sweep import results
from nf_resnets.sweep.rows import RESULTS
from nf_resnets.sweep.settings import FIELDS

CURVE_LINES = "points"
"""The setting that says how many lines of a run ``curves.csv`` has, which changes no number."""


def as_made(result: Result) -> tuple[Any, Any, Any]:
    """The experiment of a result, the options in its command, and the settings of its rows.

    Raises:
      ValueError: if the rows were made with other settings than these, but for the grid.
    """
    experiment = importlib.import_module(result.module).EXPERIMENT
    wanted = tyro.cli(experiment.command, args=shlex.split(result.command)[3:])
    settings = settings_of(experiment, wanted)
    now = json.loads(json.dumps(dataclasses.asdict(settings)))
    made = json.loads(read_committed(result.folder / "settings.json"))["settings"]
    other = [
        f"{name}={made[name]}, and not {now[name]}"
        for name in made.keys() & now.keys() - {*experiment.grid, CURVE_LINES}
        if made[name] != now[name]
    ]
    if other:
        raise ValueError(
            f"results/{result.name} was made with {'; '.join(other)}, as {result.command} has it."
        )
    return experiment, wanted, settings


def redraw(result: Result, out: Path, data_dir: str | None = None) -> None:
    """Makes table and figures of a result in a copy of its folder.

    Args:
      result: that of an experiment.
      out: the copy, which must not be there yet.
      data_dir: where tensorflow-datasets keeps its data.

    Raises:
      ValueError: if the command in the folder's name has other settings, a figure cannot be drawn,
        or the table is not the committed one.
    """
    experiment, wanted, settings = as_made(result)
    shutil.copytree(result.folder, out)
    wanted = dataclasses.replace(wanted, out=out)
    if hasattr(wanted, "data_dir"):
        wanted = dataclasses.replace(wanted, data_dir=data_dir)
    kept = json.loads((out / "settings.json").read_text())
    with open(out / "rows.csv", newline="") as stream:
        there = list(csv.DictReader(stream))
    # Only the runs that were made, with settings that came later as they are now.
    grid = {}
    for name in experiment.grid:
        values, column = kept["settings"].get(name), name.removesuffix("s")
        if isinstance(values, list):
            made = {row[column] for row in there} if column in experiment.key else set()
            grid[name] = tuple(value for value in values if not made or str(value) in made)
    settings = dataclasses.replace(settings, **grid)
    kept["settings"] |= dataclasses.asdict(settings)
    (out / "settings.json").write_text(json.dumps(kept))
    experiment = dataclasses.replace(experiment, **experiment.adapt(settings))
    data, folder = experiment.load(settings, wanted), open_folder(experiment, wanted, settings)
    points = experiment.points(settings, data, folder.rows)
    rows = wanted_rows(experiment, settings, folder.rows, points)
    curves = open_curves(experiment, folder)
    show(experiment, Results(settings, data, rows, curves, wanted), folder)
    if folder.faults:
        raise ValueError(" ".join(folder.faults))
    if (out / "table.txt").read_bytes() != (result.folder / "table.txt").read_bytes():
        raise ValueError(f"the table of {result.name} is not what is committed any more.")


def redraw_sweep(result: Result, out: Path) -> None:
    """As :func:`redraw`, for the sweep, with its report."""
    kept = json.loads(read_committed(result.folder / "settings.json"))
    with io.StringIO(read_committed(result.folder / "rows.csv"), newline="") as stream:
        rows = [
            {name: _value(text) if name not in ("key", "program") else text
             for name, text in row.items() if name in FIELDS or name in RESULTS}
            for row in csv.DictReader(stream)
        ]  # fmt: skip
    axes = {name: tuple(values) for name, values in kept["grid"].items()}
    swept = results.Result(rows, axes, kept["settings"], kept["runs"], {}, 0, 0, kept["made"])
    out.mkdir()
    results.draw(swept, out, title=skipinit_lr_batch.TITLE, chance=0.1)


def _value(text: str) -> Any:
    """A value of the table: JSON, a word or nothing."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def redraw_all(names: Sequence[str] = (), data_dir: str | None = None) -> None:
    """Replaces the committed figures of some results, or of all.

    Args:
      names: of folders in ``results/``; () for all.
      data_dir: where tensorflow-datasets keeps its data.
    """
    chosen = set(names)
    for result in committed():
        if result.module == "benchmarks" or (chosen and result.name not in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder:
            if result.module == "experiments.skipinit_lr_batch":
                redraw_sweep(result, Path(folder, "out"))
            else:
                redraw(result, Path(folder, "out"), data_dir)
            for file in Path(folder, "out").iterdir():
                if file.suffix in (".png", ".svg", ".html"):
                    shutil.copyfile(file, result.folder / file.name)


if __name__ == "__main__":
    tyro.cli(redraw_all)
