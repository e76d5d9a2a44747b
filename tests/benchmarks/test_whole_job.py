"""The job in PyTorch is a training that learns, or its seconds would say nothing."""

import pytest

pytest.importorskip("torch")

from benchmarks import whole_job


@pytest.mark.slow
def test_the_runs_in_torch_learn():
    (accuracy,) = whole_job.train_in_torch([3])
    assert accuracy > 0.8  # chance is 0.1; the sweep's runs of this rate end above 0.9
