"""Committed results are read by today's code, and give the tables that were kept."""

import csv
import importlib
import io
import shlex

import pytest
import tyro

from docs.machinery.results import committed, read_committed
from experiments.experiment import Results
from experiments.main import Command, chosen
from nf_resnets import schemes
from nf_resnets.sweep.settings import RunSettings

RESULTS = {
    result.name: result
    for result in committed()
    if result.module not in ("benchmarks", "experiments.skipinit_lr_batch")
}


def as_made(result):
    """The experiment of a committed result, and its rows in the order of its runs."""
    experiment = importlib.import_module(result.module).EXPERIMENT
    command = tyro.cli(Command, args=shlex.split(result.command)[3:])
    with schemes.registered(*experiment.schemes):
        points = chosen(experiment, command)
        titles = [experiment.title({**vars(RunSettings()), **p}) for p in points if "scheme" in p]
    titles = list(dict.fromkeys(titles))
    rows = read(result.folder / "rows.csv")
    places = [tuple(row.get(name) for name in ("part", "network", "depth")) for row in rows]
    rows.sort(key=lambda row: (
        places.index(tuple(row.get(name) for name in ("part", "network", "depth"))),
        place(row.get("title", ""), titles),
    ))  # fmt: skip
    lines = [line for name in ("curves.csv", "tests.csv") for line in read(result.folder / name)]
    return experiment, Results(points, rows, lines)


def place(title, titles):
    """Where a title stands; earlier versions called a network by the first of its words."""
    same = [at for at, each in enumerate(titles) if each == title]
    begun = [at for at, each in enumerate(titles) if each.startswith(f"{title},")]
    return [*same, *begun, len(titles)][0]


def read(path):
    if not path.exists():
        return []
    with io.StringIO(read_committed(path), newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_is_the_same(name):
    experiment, results = as_made(RESULTS[name])
    kept = (RESULTS[name].folder / "table.txt").read_text()
    assert experiment.table(results) + "\n" == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_the_figures_are_drawn_again(name, tmp_path):
    experiment, results = as_made(RESULTS[name])
    for file, draw in {"figure.png": experiment.figure, **experiment.figures}.items():
        draw(results, tmp_path / file)
    drawn = {path.name for path in tmp_path.glob("*.svg")}
    assert {path.name for path in RESULTS[name].figures} <= drawn | {"tests.svg"}
