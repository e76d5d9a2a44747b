"""What the rows on runs at a time are made of: the same work on both sides."""

import pytest

from benchmarks import together
from benchmarks.together import Trainer


@pytest.mark.slow
def test_other_losses_and_runs_that_stop_early_are_refused():
    trainer = Trainer(channels=1, steps=1, runs=1)
    losses = trainer.losses()
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        together.on_one_device(trainer, losses + 0.1, 2, "vmap", 1)
    trainer.counts = trainer.counts * 0
    with pytest.raises(RuntimeError, match=r"^\[0\] steps found"):
        trainer.losses()
