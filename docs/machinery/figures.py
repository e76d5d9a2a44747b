"""Draws the committed figures again from their rows: ``python -m docs.machinery.figures``.

Nothing is trained. ``--names`` are folders in ``results/``, by default all.
"""

from __future__ import annotations

import csv
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
from experiments.experiment import Experiment, Results, Row
from experiments.main import Command, chosen
from nf_resnets import schemes
from nf_resnets.sweep import results
from nf_resnets.sweep.rows import RESULTS
from nf_resnets.sweep.settings import FIELDS, RunSettings


def as_made(result: Result) -> tuple[Experiment, Results]:
    """The experiment of a committed result, and its rows in the order of its runs."""
    experiment = importlib.import_module(result.module).EXPERIMENT
    command = tyro.cli(Command, args=shlex.split(result.command)[3:])
    with schemes.registered(*experiment.schemes):
        points = chosen(experiment, command)
        titles = [experiment.title({**vars(RunSettings()), **p}) for p in points if "scheme" in p]
    titles = list(dict.fromkeys(titles))
    rows = _rows(result.folder / "rows.csv")
    places = [tuple(row.get(name) for name in ("part", "network", "depth")) for row in rows]
    rows.sort(key=lambda row: (
        places.index(tuple(row.get(name) for name in ("part", "network", "depth"))),
        _place(row.get("title", ""), titles),
    ))  # fmt: skip
    lines = [line for name in ("curves.csv", "tests.csv") for line in _rows(result.folder / name)]
    return experiment, Results(points, rows, lines)


def _place(title: str, titles: Sequence[str]) -> int:
    """Where a title stands; earlier versions called a network by the first of its words."""
    same = [at for at, each in enumerate(titles) if each == title]
    begun = [at for at, each in enumerate(titles) if each.startswith(f"{title},")]
    return [*same, *begun, len(titles)][0]


def _rows(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with io.StringIO(read_committed(path), newline="") as stream:
        return list(csv.DictReader(stream))


def redraw(result: Result, out: Path) -> None:
    """Makes table and figures of a result in a new folder.

    Args:
      result: that of an experiment.
      out: the folder, which must not be there yet.

    Raises:
      ValueError: if the table is not the committed one.
    """
    experiment, made = as_made(result)
    out.mkdir()
    (out / "table.txt").write_text(experiment.table(made) + "\n")
    for name, draw in {"figure.png": experiment.figure, **experiment.figures}.items():
        draw(made, out / name)
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


def redraw_all(names: Sequence[str] = ()) -> None:
    """Replaces the committed figures of some results, or of all.

    Args:
      names: of folders in ``results/``; () for all.
    """
    chosen = set(names)
    for result in committed():
        if result.module == "benchmarks" or (chosen and result.name not in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder:
            if result.module == "experiments.skipinit_lr_batch":
                redraw_sweep(result, Path(folder, "out"))
            else:
                redraw(result, Path(folder, "out"))
            for file in Path(folder, "out").iterdir():
                if (result.folder / file.name).exists() and file.name != "table.txt":
                    shutil.copyfile(file, result.folder / file.name)


if __name__ == "__main__":
    tyro.cli(redraw_all)
