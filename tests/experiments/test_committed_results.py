"""Committed results are read by today's code, and give the tables that were kept."""

import pytest

from docs.machinery.figures import as_made, redraw
from docs.machinery.results import committed

RESULTS = {
    result.name: result
    for result in committed()
    if result.module not in ("benchmarks", "experiments.skipinit_lr_batch")
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_table_is_the_same(name):
    experiment, results = as_made(RESULTS[name])
    kept = (RESULTS[name].folder / "table.txt").read_text()
    assert experiment.table(results) + "\n" == kept


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
def test_the_figures_are_drawn_again(name, tmp_path):
    redraw(RESULTS[name], tmp_path / "out")
    drawn = {path.name for path in (tmp_path / "out").glob("*.svg")}
    assert {path.name for path in RESULTS[name].figures} <= drawn | {"tests.svg"}
