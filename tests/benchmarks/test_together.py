"""What the rows on runs at a time are made of: the same work on both sides."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import together
from benchmarks.together import Small, Trainer

TINY = Small("wrn-10-1", 1, steps=1)


@pytest.fixture(scope="module")
def alone():
    trainer = Trainer(TINY, 1)
    return trainer, trainer.losses()


@pytest.mark.slow
def test_a_row_says_which_is_faster(alone):
    row = together.on_one_device(*alone, 2, "vmap", 2)
    assert row.part == "together" and row.at_least and row.limit is None  # no GPU here
    assert row.compared == "runs/s, 2 at a time (vmap) / one after another"
    assert 0 < row.ratio.low <= row.ratio.high
    assert row.numbers["runs"] == 2 and row.numbers["steps_a_run"] == 1


@pytest.mark.slow
def test_threads(alone):
    row = together.in_threads(*alone, 2, 2)
    assert row.compared == "runs/s, 2 threads / 1 thread" and row.ratio.value > 0


def test_other_losses_are_refused():
    losses = np.array([[2.3, 2.2]])
    together.refuse_other_losses(losses, losses + 1e-6, "two runs")
    for other in (losses + 0.1, losses * np.nan):
        with pytest.raises(RuntimeError, match="^two runs: losses differ by"):
            together.refuse_other_losses(losses, other, "two runs")


@pytest.mark.slow
def test_runs_that_stop_early_are_refused(alone):
    trainer = alone[0]
    counts = trainer.counts
    trainer.counts = counts * 0
    with pytest.raises(RuntimeError, match=r"^\[0\] steps found; expected 1 of each run"):
        trainer.losses()
    trainer.counts = counts


def test_a_call_must_not_be_cut_by_the_end_of_an_epoch():
    with pytest.raises(ValueError, match="^steps=5 found; expected a divisor of 22"):
        Trainer(Small("wrn-10-1", 1, steps=5), 1)
