"""Case 14: order and augmentation after a resume within an epoch.

That they are pure functions of seed and step is tested in tests/data/test_order.py and
test_augment.py; here it is a run that is cut between any two steps, by the loss of every step.
"""

from __future__ import annotations

import functools
import os

import numpy as np
import pytest

from nf_resnets.sweep import image_task
from tests.faults import sweeping
from tests.faults.sweeping import TINY

CASE = "14 order and augmentation after a resume within an epoch; batches that do not divide"
HERE = "tests.faults.test_case_14_order_after_resume"
AXES = ["seed=0"]
# Case 16 looks at the same runs: of a network whose leaves all take one rate, which warms up.
BASE = {
    "padding": 1,
    "flip": True,
    "epochs": 2.0,
    "evaluate_every": 2,
    "scheme": "skipinit",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "warmup_epochs": 0.5,
}
# Within an epoch of 22 steps; the first steps of a worker are made 8 at a time.
CUT = 30


def cut_at(folder, *steps, prepare=None):
    """A run that was told to stop after these steps, and went on each time; its losses by step."""
    options = {"prepare": prepare, "workers": 1, "call_seconds": 1e-9}
    for step in steps:
        sweeping.run(folder, AXES, BASE, terminate_at=step, code=143, **options)
    sweeping.run(folder, AXES, BASE, **options)
    began = [event["step"] for event in sweeping.events(folder, "run_begin")]
    assert began == [0, *steps]
    with sweeping.opened(folder) as book:
        (row,) = book.rows()
    return sweeping.curve(folder, row["key"])


@functools.cache
def cut_once():
    """The folder of a run that was cut within its second epoch, and its losses."""
    folder = sweeping.new_folder()
    return folder, cut_at(folder, CUT)


def assert_same_curve(found, twin):
    assert all(len(values) == 1 for values in found), "a step was made twice"
    np.testing.assert_array_equal(np.ravel(found), np.ravel(twin))


@pytest.mark.slow
def test_each_step_has_the_loss_of_the_twin():
    whole = sweeping.twin(AXES, BASE)
    (key,) = sweeping.outcome(whole)[0]
    folder, losses = cut_once()
    assert_same_curve(losses, sweeping.curve(whole, key))
    sweeping.assert_twins(folder, whole)
    assert len(np.unique(sweeping.curve(whole, key))) == 44  # no batch comes twice


def order_of_the_process():
    """Control: an order that is carried along, and not a function of the step."""
    from nf_resnets.training import steps

    order = steps.epoch_order
    steps.epoch_order = lambda seed, epoch, examples: order(os.getpid(), epoch, examples)


def flips_of_the_process():
    """Control: flips that are drawn anew after a resume."""
    from nf_resnets.training import steps

    batch = steps.training_batch

    def other(data, order, seed, *args, **kwargs):
        return batch(data, order, seed + os.getpid(), *args, **kwargs)

    steps.training_batch = other


@pytest.mark.slow
@pytest.mark.parametrize("control", ["order_of_the_process", "flips_of_the_process"])
def test_an_order_that_is_carried_along_is_noticed(tmp_path, control):
    whole = sweeping.twin(AXES, BASE)
    (key,) = sweeping.outcome(whole)[0]
    with pytest.raises(AssertionError, match="not equal"):
        assert_same_curve(
            cut_at(tmp_path, CUT, prepare=f"{HERE}:{control}"), sweeping.curve(whole, key)
        )


@pytest.mark.slow
def test_cut_four_times(tmp_path, record_property):
    whole = sweeping.twin(AXES, BASE)
    (key,) = sweeping.outcome(whole)[0]
    assert_same_curve(cut_at(tmp_path, 8, 17, 26, 35), sweeping.curve(whole, key))
    record_property("tries", 4)


def test_batches_that_do_not_divide_the_set():
    """1,437 images: 22 batches of 64, and 29 images that are left out of each epoch."""
    (run,) = image_task.make_sweep({"batch_size": (64,)}, TINY).runs
    assert (run.steps_per_epoch, run.num_steps) == (22, 66)
    (run,) = image_task.make_sweep({"batch_size": (1437,)}, TINY).runs
    assert (run.steps_per_epoch, run.num_steps) == (1, 3)
    with pytest.raises(ValueError, match="batch_size=1438 is larger than the training split of"):
        image_task.make_sweep({"batch_size": (64, 1438)}, TINY)
