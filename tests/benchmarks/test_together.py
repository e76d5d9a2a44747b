"""What the rows on runs at a time are made of: the same work on both sides."""

import pytest

from benchmarks import together
from benchmarks.together import Trainer


@pytest.fixture(scope="module")
def alone():
    trainer = Trainer(channels=1, steps=1, runs=1)
    return trainer, trainer.losses()


@pytest.mark.slow
def test_a_row_says_which_is_faster(alone):
    row = together.on_one_device(*alone, 2, "vmap", 2)
    assert row.at_least and row.limit is None  # no GPU here
    assert row.compared == "runs/s, 2 at a time (vmap) / one after another"
    assert 0 < row.ratio.low <= row.ratio.high
    row = together.in_threads(*alone, 2, 2)
    assert row.compared == "runs/s, 2 threads / 1 thread" and row.ratio.value > 0


@pytest.mark.slow
def test_other_losses_and_runs_that_stop_early_are_refused(alone):
    trainer, losses = alone
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        together.on_one_device(trainer, losses + 0.1, 2, "vmap", 1)
    trainer.counts = trainer.counts * 0
    with pytest.raises(RuntimeError, match=r"^\[0\] steps found; expected 1 of each run"):
        trainer.losses()
    trainer.counts = trainer.counts + 1
