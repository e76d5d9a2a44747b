"""Both sides make the same number of runs, and the job in PyTorch is a training that learns."""

import pytest

pytest.importorskip("torch")

from benchmarks import whole_job
from nf_resnets.sweep import settings


@pytest.mark.parametrize("runs", whole_job.LIMITS)
def test_the_sweep_makes_as_many_runs_as_pytorch(runs):
    assert len(settings.points(settings.parse(whole_job.axes(runs)))) == runs


@pytest.mark.slow
def test_the_runs_in_torch_learn():
    (accuracy,) = whole_job.train_in_torch([3])
    assert accuracy > 0.8  # chance is 0.1; the sweep's runs of this rate end above 0.9
