"""Case 1: SIGKILL at random moments: while compiling, training, testing, saving, finishing."""

from __future__ import annotations

import random
import time

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import FOUR, TWO

CASE = "1 SIGKILL at random moments of a sweep (compiling, training, testing, saving, ending)"

# What a kill waits for before it waits for a random time besides.
MOMENTS = ("compile_begin", "step", "epoch", "saved", "run_end")


def killed_at_random(process, moment, count, delay):
    """Whether it was; it may have ended before."""
    end = time.monotonic() + 120
    while len(process.events(moment)) < count and time.monotonic() < end:
        if sweeping.ask(wait=process.pid, seconds=0.005) is not None:
            break
    time.sleep(delay)
    if sweeping.ask(wait=process.pid, seconds=0) is not None:
        assert process.wait() == 0, process.said()
        return False
    process.kill()
    return True


def killed_often(folder, axes, base, moments, rng, **options):
    """Kills one worker after the other, and lets the last one come to its end; counts the kills."""
    kills = 0
    for moment, count in moments:
        process = sweeping.start(folder, axes, base, **options)
        kills += killed_at_random(process, moment, count, rng.uniform(0, 0.1))
    sweeping.run(folder, axes, base, **options)
    return kills


@pytest.mark.slow
def test_three_kills(tmp_path, record_property):
    moments = [("compile_begin", 1), ("epoch", 2), ("step", 5)]
    kills = killed_often(tmp_path, FOUR, {}, moments, random.Random(1), workers=2)
    assert kills == 3
    record_property("tries", kills)
    sweeping.assert_twins(tmp_path, sweeping.twin(FOUR))
    sweeping.assert_moved(tmp_path)
    # At most the epoch of each of the two threads was cut by a kill.
    assert sweeping.assert_nothing_twice(tmp_path) <= 2 * kills
    assert not sweeping.trained_together(tmp_path)


LEDGER = "nf_resnets.sweep.ledger:Ledger"
SEAMS = {
    "claimed, and not begun": (f"{LEDGER}.claim", "after", 1),
    "before the first step": ("nf_resnets.sweep.worker:Slots._make_steps", "before", 1),
    "before a test": ("nf_resnets.sweep.worker:Slots._end_epochs", "before", 2),
    "saved, before the ledger knows": (f"{LEDGER}.record", "before", 1),
    "the ledger knows, before it is saved": (f"{LEDGER}.record", "after", 1),
    "saved": ("nf_resnets.training.checkpoint:Checkpoints.save", "after", 2),
    "before it is finished": (f"{LEDGER}.finish", "before", 1),
    "finished, before its checkpoints go": (f"{LEDGER}.finish", "after", 1),
    "while the second one ends": (f"{LEDGER}.finish", "before", 2),
}
NETWORKS = pytest.param(None, marks=pytest.mark.slow, id="networks")
COUNTING = pytest.param({}, id="counting")


def killed_at(folder, seam, counting):
    place, when, number = SEAMS[seam]
    prepare = ["tests.faults.sweeping:kill_at", place, when, number]
    sweeping.run(folder, TWO, prepare=prepare, workers=1, counting=counting, code=-9)


@pytest.mark.parametrize("counting", [COUNTING, NETWORKS])
@pytest.mark.parametrize("seam", SEAMS)
def test_each_seam(tmp_path, seam, counting):
    killed_at(tmp_path, seam, counting)
    sweeping.run(tmp_path, TWO, workers=1, counting=counting)
    sweeping.assert_twins(tmp_path, sweeping.twin(TWO, counting=counting))
    # The epoch that was not saved yet, and the next one, which was trained meanwhile.
    assert sweeping.assert_nothing_twice(tmp_path) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("counting", [COUNTING, NETWORKS])
def test_a_run_that_begins_anew_is_noticed(tmp_path, counting):
    """Negative control: what restores nothing trains epochs again."""
    killed_at(tmp_path, "saved", counting)
    # The worker notices by itself: it does not save a step that is older than what is there.
    prepare = "tests.faults.sweeping:restore_nothing"
    process = sweeping.run(tmp_path, TWO, prepare=prepare, workers=1, counting=counting, code=1)
    assert "holds a checkpoint" in process.said()
    with pytest.raises(AssertionError, match="began at step 0, and was saved at"):
        sweeping.assert_nothing_twice(tmp_path)


def other_seed():
    """A step that does not use the run's seed."""
    from nf_resnets.training import steps

    order = steps.epoch_order
    steps.epoch_order = lambda seed, epoch, examples: order(7, epoch, examples)


@pytest.mark.slow
def test_other_numbers_are_noticed(tmp_path):
    """Negative control: twins are compared by what they have learnt."""
    sweeping.run(tmp_path, TWO, prepare="tests.faults.test_case_01_sigkill:other_seed")
    with pytest.raises(AssertionError):
        sweeping.assert_twins(tmp_path, sweeping.twin(TWO))


@pytest.mark.slow
def test_ten_kills_of_the_acceptance_sweep(tmp_path, record_property):
    """8 rates x 4 batch sizes x 2 seeds x 2 schemes."""
    axes = [
        "peak_lr=2^-7:2^0",
        "batch_size=32,64,128,256",
        "seed=0:2",
        "scheme=fixup,skipinit",
    ]
    base = {"epochs": 2.0}
    rng = random.Random(20)
    moments = [(rng.choice(MOMENTS), 1 + rng.randrange(12)) for _ in range(9)]
    moments = [(kind, 1 if kind == "compile_begin" else count) for kind, count in moments]
    # One within the compilation of the programs that come later, one near the end.
    moments.append(("compile_begin", 2))
    kills = killed_often(tmp_path, axes, base, moments, rng, workers=2)
    assert kills == 10
    record_property("tries", kills)
    sweeping.assert_twins(tmp_path, sweeping.twin(axes, base, workers=2))
    assert sweeping.assert_nothing_twice(tmp_path) <= 2 * kills
    assert not sweeping.trained_together(tmp_path)
    rows, _ = sweeping.outcome(tmp_path)
    assert len(rows) == 8 * 4 * 2 * 2
    assert len(set(sweeping.parameters(tmp_path).values())) == len(sweeping.parameters(tmp_path))
