"""Committed results folders open with today's code, and give the tables that were kept."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

from experiments.main import main
from tests.experiments.test_findings import texts

RESULTS = Path(__file__).parents[2] / "results"
QUICK = ("fixup_fig3_depth", "fixup_table3_translation", "rescale_calibration")
SLOW = (
    "fixup_fig4_ablation", "fixup_multipliers", "fixup_table1_resnet110",
    "fixup_table4_regularized", "rescale_imagenet", "rescale_multipliers", "skipinit_imagenet",
    "skipinit_table1_depth", "skipinit_table2_placement", "theory_bounds", "theory_signal",
    "theory_updates",
)  # fmt: skip


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_nothing_is_made_again_and_the_table_is_the_same(name, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(RESULTS / f"{name}-laptop", out)
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    assert main(experiment, experiment.command(scale="laptop", out=out)) == 0
    for file in ("table.txt", "rows.csv"):
        assert (out / file).read_text() == (RESULTS / f"{name}-laptop" / file).read_text()
    assert not list(out.glob("rows-*.jsonl"))
    # Titles, labels and ticks; the curves depend on Matplotlib's version in the last digits.
    for figure in (RESULTS / f"{name}-laptop").glob("*.svg"):
        assert texts(out / figure.name) == texts(figure)
