"""The experiment on RescaleNet's variance as a user runs it, and its numbers."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from experiments import rescale_variance as experiment
from experiments.main import settings_of
from tests.experiments.as_a_user import one_device

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_smoke_scale_runs_and_shows_the_claim(tmp_path):
    command = [
        *(sys.executable, "-m", "experiments.rescale_variance", "--scale", "smoke"),
        *("--out", str(tmp_path)),
    ]
    options = {"cwd": ROOT, "env": one_device(), "text": True, "timeout": 240}
    first = subprocess.run(command, capture_output=True, **options)
    assert first.returncode == 0, first.stderr
    with open(tmp_path / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 8 and tuple(rows[0]) == experiment.EXPERIMENT.columns
    transitions = [int(row["k"]) for row in rows if row["transition"] == "True"]
    assert transitions == [1, 3, 5, 7]
    moment = [float(row["second_moment"]) for row in rows]
    # The drops are those of down-sampling (the last stage here is a single pixel).
    assert moment[2] < 0.7 * moment[1] and moment[4] < 0.7 * moment[3]
    assert all(float(row["eta"]) < 30 for row in rows)
    assert Image.open(tmp_path / "figure.png").size[0] > 1000
    second = subprocess.run(command, capture_output=True, **options)
    assert second.returncode == 0, second.stderr
    with open(tmp_path / "rows.csv", newline="") as stream:
        assert list(csv.DictReader(stream)) == rows


def test_means_and_errors_over_seeds():
    names = ("variance", "second_moment", "share", "eta", "form")
    rows = [
        {"k": "1", "name": "stage_1/first", "transition": "True", **dict.fromkeys(names, value)}
        for value in ("1.0", "3.0")
    ]
    (found,) = experiment.averaged(rows)
    assert found["eta"] == 2.0 and found["eta_error"] == pytest.approx(1.0)


def test_repeated_seeds_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="--seeds 1 1 found"):
        settings_of(experiment.EXPERIMENT, experiment.Command(seeds=(1, 1), out=tmp_path))
