"""The experiment on signal propagation as a user runs it, and its numbers."""

import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from experiments import theory_signal as experiment
from nf_resnets import analysis, schemes
from tests.experiments.as_a_user import one_device

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_smoke_scale_runs_and_a_second_start_makes_nothing_anew(tmp_path):
    command = [
        *(sys.executable, "-m", "experiments.theory_signal", "--scale", "smoke"),
        *("--schemes", "alpha_one", "batchnorm", "--out", str(tmp_path)),
    ]
    options = {"cwd": ROOT, "env": one_device(), "text": True, "timeout": 240}
    first = subprocess.run(command, capture_output=True, **options)
    assert first.returncode == 0, first.stderr
    with open(tmp_path / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 2 * 2 * 3 and tuple(rows[0]) == experiment.COLUMNS
    assert all(float(row["form"]) > 0 for row in rows)
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    second = subprocess.run(command, capture_output=True, **options)
    assert second.returncode == 0 and "pre_activation, alpha_one" not in second.stdout


def test_without_the_relu_the_gains_alone_are_multiplied():
    form = analysis.propagate_rectified([2.0, 2.0, 2.0])
    found = experiment.without_relu(form, schemes.get("alpha_one"))
    np.testing.assert_allclose(found, [3, 9, 27], rtol=1e-6)
    form = analysis.propagate_rectified([1.0, 1.0, 1.0], normalized=True)
    found = experiment.without_relu(form, schemes.get("batchnorm"))
    np.testing.assert_allclose(found, [2, 3, 4], rtol=1e-6)


def test_rows_are_in_the_order_of_the_settings():
    settings = dataclasses.replace(experiment.SCALES["smoke"], schemes=("fixup", "alpha_one"))
    rows = [{"scheme": name, "k": str(k)} for k in (10, 9) for name in ("alpha_one", "fixup", "x")]
    found = [(row["scheme"], row["k"]) for row in experiment.wanted_rows(rows, settings)]
    assert found == [("fixup", "9"), ("fixup", "10"), ("alpha_one", "9"), ("alpha_one", "10")]


def test_an_unknown_scheme_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="did you mean 'fixup'"):
        experiment.main(experiment.Command(schemes=("fixpu",), out=tmp_path))
