"""Case 17: out of memory at one batch size. These runs are `oom`, not tried again; others run."""

from __future__ import annotations

import dataclasses

import pytest

from tests.faults import sweeping

CASE = "17 out of memory at one batch size"
HERE = "tests.faults.test_case_17_out_of_memory"
AXES = ["batch_size=64,128", "seed=0:2"]
MESSAGE = "RESOURCE_EXHAUSTED: Out of memory allocating 68719476736 bytes."


def exhaust(where):
    """What a device says that is too small for batches of 128, while it does one of its tasks."""
    import jax

    def refuse(*args):
        raise jax.errors.JaxRuntimeError(MESSAGE)

    def wrap(program, run):
        if run.settings["batch_size"] == 64:
            return program
        if where == "build":
            refuse()
        return dataclasses.replace(program, **{where: refuse})

    sweeping.change_programs(wrap)


def assert_out_of_memory(folder):
    rows, _ = sweeping.outcome(folder)
    states = {(row["batch_size"], row["seed"]): row["state"] for row in rows.values()}
    assert states == {
        (64, 0): "finished", (64, 1): "finished", (128, 0): "oom", (128, 1): "oom"
    }  # fmt: skip
    for key, row in rows.items():
        tried = [each["outcome"] for each in sweeping.attempts(folder, key)]
        assert tried == [row["state"]]
        if row["state"] == "oom":
            assert row["message"] == MESSAGE


# Where a device's memory runs out: compiling, first arrays, weights, training, testing.
PLACES = ("build", "empty", "begin", "steps", "test")


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", [p if p == "begin" else pytest.param(p, marks=pytest.mark.slow) for p in PLACES]
)
def test_the_others_run(tmp_path, where):
    prepare = [f"{HERE}:exhaust", where]
    sweeping.run(tmp_path, AXES, prepare=prepare, workers=1, seconds=60)
    assert_out_of_memory(tmp_path)


@pytest.mark.slow
def test_with_more_memory_they_can_be_retried(tmp_path):
    prepare = [f"{HERE}:exhaust", "steps"]
    sweeping.run(tmp_path, AXES, prepare=prepare, workers=1, seconds=60)
    # By itself the sweep does not try again.
    assert sweeping.run(tmp_path, AXES, workers=1).events("run_begin") == []
    with sweeping.opened(tmp_path) as book:
        assert book.retry() == 2
    sweeping.run(tmp_path, AXES, workers=1)
    sweeping.assert_twins(tmp_path, sweeping.twin(AXES, workers=1))
    # Negative control: now they are out of memory no more.
    with pytest.raises(AssertionError):
        assert_out_of_memory(tmp_path)
