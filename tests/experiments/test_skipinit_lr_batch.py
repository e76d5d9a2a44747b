"""SkipInit's sweep of rate and batch size, as a user calls it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from experiments import skipinit_lr_batch as experiment
from nf_resnets.sweep import make_sweep, settings

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_smoke_makes_every_point_and_draws_it(tmp_path):
    command = [sys.executable, "-m", "experiments.skipinit_lr_batch", "--scale", "smoke",
               "--out", str(tmp_path / "out")]  # fmt: skip
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True,
                          timeout=280, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open(tmp_path / "out" / "rows.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = {(r["scheme"], int(r["batch_size"]), float(r["peak_lr"])) for r in rows}
    axes = experiment.SCALES["smoke"][0]
    assert found == {
        (scheme, size, rate)
        for scheme in axes["scheme"]
        for size in axes["batch_size"]
        for rate in axes["peak_lr"]
    }
    for name in ("report.html", "table.txt", "figure.png"):
        assert (tmp_path / "out" / name).stat().st_size > 100
    assert "compiling 2 programs" in done.stdout


@pytest.mark.parametrize("scale", experiment.SCALES)
@pytest.mark.parametrize("grid", [(), ("steps=390",)])
def test_every_scale_is_a_grid_that_can_be_made(scale, grid):
    command = experiment.Command(scale=scale, grid=grid)
    axes, base = experiment.resolve(command)
    points = settings.points(axes, base)
    assert len(points) > 1
    for point in points:
        assert bool(point.steps) == bool(grid)
        if point.scheme == "batchnorm":
            assert point.ghost_batch == 64


def test_the_laptop_scale_has_the_paper_s_protocol():
    axes = experiment.SCALES["laptop"][0]
    assert set(axes["scheme"]) == {"batchnorm", "skipinit", "regularized_skipinit", "fixup"}
    assert len(axes["seed"]) > 1
    ratios = {b / a for a, b in zip(axes["peak_lr"], axes["peak_lr"][1:], strict=False)}
    assert ratios == {2.0}


def test_an_axis_of_the_command_line_takes_the_place_of_the_scale_s():
    command = experiment.Command(scale="smoke", grid=("seed=0:2", "epochs=1,2"))
    axes, base = experiment.resolve(command)
    assert axes["seed"] == (0, 1, 2) and axes["epochs"] == (1.0, 2.0)
    assert "epochs" not in base
    with pytest.raises(SystemExit, match="--grid: peak_lr='' found; expected a finite number"):
        experiment.resolve(experiment.Command(grid=("peak_lr=",)))


def test_the_laptop_scale_fits_the_digits():
    sweep = make_sweep(*experiment.resolve(experiment.Command()))
    assert sweep.size == 320
    # BatchNorm's statistics are estimated from four batches, or what an epoch has.
    batches = {
        plan.settings["batch_size"]: sweep.task.parts(plan)[3]
        for plan in {plan.program: plan for plan in sweep.plans}.values()
    }
    assert {size: how.bn_estimate_batches for size, how in batches.items()} == {
        8: 4, 32: 4, 128: 4, 512: 2
    }  # fmt: skip
