"""SkipInit's sweep of rate and batch size, as a user calls it."""

from __future__ import annotations

import itertools

import pytest

from experiments import skipinit_lr_batch as experiment
from nf_resnets.sweep import make_sweep, settings
from tests.experiments.as_a_user import lines_of, make


@pytest.mark.slow
def test_smoke_makes_every_point_and_draws_it(tmp_path):
    shown = make("skipinit_lr_batch", "--scale", "smoke", "--out", tmp_path)
    points = {
        (row["scheme"], int(row["batch_size"]), float(row["peak_lr"]))
        for row in lines_of(tmp_path / "rows.csv")
    }
    axes = experiment.SCALES["smoke"][0]
    assert points == {*itertools.product(axes["scheme"], axes["batch_size"], axes["peak_lr"])}
    for name in ("report.html", "table.txt", "figure.png"):
        assert (tmp_path / name).stat().st_size > 100
    assert "2 programs compiled." in shown


@pytest.mark.parametrize("scale", experiment.SCALES)
def test_every_scale_is_a_grid_that_can_be_made(scale):
    command = experiment.Command(scale=scale, grid=("steps=390",))
    points = settings.points(*experiment.resolve(command))
    assert len(points) > 1
    assert all((point.steps, point.ghost_batch) == (390, 64) for point in points)


def test_an_axis_of_the_command_line_takes_the_place_of_the_scale_s():
    command = experiment.Command(scale="smoke", grid=("seed=0:2", "epochs=1,2"))
    axes, base = experiment.resolve(command)
    assert tuple(axes["seed"]) == (0, 1, 2) and axes["epochs"] == (1.0, 2.0)
    assert "epochs" not in base


def test_the_laptop_scale_fits_the_digits():
    sweep = make_sweep(*experiment.resolve(experiment.Command()))
    assert sweep.size == 320
    # BatchNorm's statistics are estimated from four batches, or what an epoch has.
    batches = {
        plan.settings["batch_size"]: sweep.task.of(plan)[1].how
        for plan in {plan.program: plan for plan in sweep.plans}.values()
    }
    assert {size: how.bn_estimate_batches for size, how in batches.items()} == {
        8: 4, 32: 4, 128: 4, 512: 2
    }  # fmt: skip
