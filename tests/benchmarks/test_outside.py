"""What the rows on the time outside the step are made of."""

from __future__ import annotations

import dataclasses

import pytest

from benchmarks import outside
from nf_resnets import training
from nf_resnets.sweep import make_sweep

TINY = {"model": "wrn-10-1", "stem_channels": 1, "epochs": 2.0}


@pytest.fixture(scope="module")
def sweep():
    return make_sweep({"seed": (0,)}, TINY)


@pytest.fixture(scope="module")
def program(sweep):
    mesh = training.make_mesh(devices=training.make_mesh().devices.flat[:1])
    return sweep.task.build(sweep.runs[0], mesh)


@pytest.mark.slow
def test_runs_know_where_the_time_goes(program, tmp_path):
    runs = outside.Runs(program, TINY, tmp_path / "runs", runs=2)
    runs()
    runs()
    for wall, steps, tests, rest in zip(
        runs.walls, runs.in_steps, runs.in_tests, runs.outside(), strict=True
    ):
        assert steps > 0 and tests > 0 and rest > 0
        assert steps + tests + rest == pytest.approx(wall)
    assert sum(runs.saving) > 0
    runs.close()


@pytest.mark.slow
def test_a_run_that_ends_early_is_refused(program, tmp_path):
    runs = outside.Runs(program, {**TINY, "peak_lr": 1e30}, tmp_path / "runs", runs=1)
    runs()
    with pytest.raises(RuntimeError, match="^0 runs of 1 made all their steps"):
        runs.close()


@pytest.mark.slow
def test_both_kinds_of_epochs_can_be_called_again(program, sweep):
    for epoch in outside.epochs_of(program, sweep, sweep.runs[0]).values():
        epoch()
        epoch()
    early = dataclasses.replace(
        program, steps=lambda states, counts: program.steps(states, 0 * counts)
    )
    with pytest.raises(RuntimeError, match="a run that ends early is no measure"):
        outside.epochs_of(early, sweep, sweep.runs[0])["input"]()


def test_per_cent_of_the_time():
    found = outside.percent(outside.differences([2.0, 4.0], [1.0, 3.0]), [2.0, 4.0])
    assert found.value == 37.5 and (found.low, found.high) == (31.25, 43.75)  # of 50 and 25


@pytest.mark.slow
def test_tiny_runs():
    fractions, growth = outside.of_tiny_runs(12)
    assert 0 < fractions.ratio.value < 100 and growth.ratio.value > 0


def test_images_of_the_kind_of_cifar_10():
    dataset = outside.random_images(20, 4)
    assert dataset.train.images.shape == (20, 32, 32, 3) and dataset.test.labels.shape == (4,)
