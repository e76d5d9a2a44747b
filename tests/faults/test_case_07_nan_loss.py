"""Case 7: a NaN loss. The run has diverged at that step: no retry, no checkpoint, never best."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.sweep.select import optimum
from tests.faults import sweeping
from tests.faults.sweeping import TWO

CASE = "7 NaN loss: diverged at the exact step, its neighbours and the best rate undisturbed"
HERE = "tests.faults.test_case_07_nan_loss"
AXES = ["seed=0:4"]
OPTIONS = {"workers": 1, "runs_per_device": 2}
# Counted from 0, in the second epoch of 22: the loss of the 31st step is NaN.
STEP = 30


def nan_loss():
    """Logits that become NaN in one step of seed 1."""

    def wrap(step):
        def poisoned(state, batch, *, apply_fn, **kwargs):
            bad = (state.step == STEP) & (state.seed == 1)

            def apply(*args):
                logits, batch_stats = apply_fn(*args)
                return logits * jnp.where(bad, jnp.nan, 1.0), batch_stats

            return step(state, batch, apply_fn=apply, **kwargs)

        return poisoned

    sweeping.change_steps(wrap)


def nan_loss_unseen():
    """Control: and steps that do not look whether they are finite."""
    nan_loss()

    def wrap(program, run):
        def steps(states, counts):
            result = program.steps(states, counts)
            return result._replace(diverged=jnp.zeros_like(result.diverged))

        return dataclasses.replace(program, steps=steps)

    sweeping.change_programs(wrap)


def assert_diverged(folder, steps=STEP + 1):
    row = sweeping.rows_by(folder)[1]
    assert (row["state"], row["steps_done"]) == ("diverged", steps), row
    assert row["test_accuracy"] is row["test_loss"] is None
    assert [each["outcome"] for each in sweeping.attempts(folder, row["key"])] == ["diverged"]
    _, epochs = sweeping.outcome(folder)
    assert [epoch for key, epoch in epochs if key == row["key"]] == [1]
    assert [e["step"] for e in sweeping.events(folder, "saved") if e["key"] == row["key"]] == [22]
    assert sweeping.left_behind(folder) == []
    return row


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "options"), [(TWO, {}), (AXES, OPTIONS)])
def test_it_ends_at_that_step_and_alone(tmp_path, axes, options):
    """By itself, and in one of two slots, which are filled again."""
    sweeping.run(tmp_path, axes, prepare=f"{HERE}:nan_loss", **{"workers": 1, **options})
    row = assert_diverged(tmp_path)
    assert "loss nan" in row["message"]
    assert row["message"].endswith("at step 31")
    losses = sweeping.curve(tmp_path, row["key"])
    assert len(losses) == STEP + 1
    assert [np.isnan(value) for (value,) in losses] == [False] * STEP + [True]

    # The others are those of the twin, the one that took its slot among them.
    twin = sweeping.twin(axes, **options)
    rows, twins = sweeping.rows_by(tmp_path), sweeping.rows_by(twin)
    assert twins[1]["state"] == "finished"
    assert all(row == twins[seed] for seed, row in rows.items() if seed != 1)
    assert sweeping.parameters(twin).items() > sweeping.parameters(tmp_path).items()

    # Nor is it tried again.
    if options:
        again = sweeping.run(tmp_path, axes, **options)
        assert again.events("run_begin") == []
        assert_diverged(tmp_path)


def test_it_is_never_the_best():
    """A diverged run stands behind, whatever its numbers say; control: finished, it is the best."""
    rows = [
        {"peak_lr": rate, "seed": 0, "state": "finished", "test_accuracy": accuracy,
         "train_loss": 1.0}
        for rate, accuracy in ((0.1, 0.5), (0.2, 0.6), (0.4, 0.7))
    ]  # fmt: skip
    assert optimum(rows, metric="test_accuracy").best == 0.4
    rows[2] = {**rows[2], "state": "diverged"}
    assert optimum(rows, metric="test_accuracy").best == 0.2


@pytest.mark.slow
def test_steps_that_do_not_look_are_noticed(tmp_path):
    sweeping.run(tmp_path, AXES, prepare=f"{HERE}:nan_loss_unseen", **OPTIONS)
    # Only the test at the end of the epoch sees it.
    assert sweeping.rows_by(tmp_path)[1]["steps_done"] == 44
    with pytest.raises(AssertionError):
        assert_diverged(tmp_path)


@pytest.mark.slow
def test_at_the_same_step_after_a_kill(tmp_path):
    prepare = f"{HERE}:nan_loss"
    process = sweeping.start(tmp_path, AXES, prepare=prepare, **OPTIONS)
    process.until("saved", 2)
    process.kill()
    sweeping.run(tmp_path, AXES, prepare=prepare, **OPTIONS)
    row = sweeping.rows_by(tmp_path)[1]
    assert (row["state"], row["steps_done"]) == ("diverged", STEP + 1)
    assert sweeping.assert_nothing_twice(tmp_path) <= 2
