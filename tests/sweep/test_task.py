"""What a worker does with any task: rows of epochs, probes, results, saves within an epoch."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from nf_resnets.sweep import enter, open_ledger, run_sweep
from nf_resnets.sweep.ledger import this_worker
from nf_resnets.sweep.programs import Execution
from nf_resnets.training.checkpoint import Checkpoints
from tests.sweep.counting import Counting, state
from tests.sweep.small import Log

STEPS, PER_EPOCH = 10, 4


def sweep(folder, task, seeds=(0,), **how):
    runs = [task.resolve({"seed": seed}) for seed in seeds]
    log = Log()
    with open_ledger(folder / "ledger.db") as book:
        enter(runs, book)
        run_sweep(
            task, runs, book, folder / "checkpoints", log, stop=lambda: task.stopped,
            execution=Execution(workers=1, max_attempts=1, call_seconds=0.01, **how),
        )  # fmt: skip
        return book.rows(), book.epochs(), log


def test_an_epoch_has_a_row_and_every_second_one_a_test(tmp_path):
    (row,), epochs, _ = sweep(tmp_path, Counting(evaluate_every=2))
    assert (row["state"], row["steps_done"]) == ("finished", STEPS), row["message"]
    assert [(each["epoch"], each["step"]) for each in epochs] == [(1, 4), (2, 8), (3, 10)]
    assert [each["test_loss"] is None for each in epochs] == [True, False, False]
    # Harmonic sums, in float32.
    assert epochs[0]["train_loss"] == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4, rel=1e-6)
    assert epochs[2]["train_loss"] == pytest.approx((1 / 9 + 1 / 10) / 2, rel=1e-6)


def test_probes_see_the_state_before_the_first_step_and_after_each_epoch(tmp_path):
    task, probed = Counting(), []

    def probe(program, run, state, step):
        probed.append((int(state.step), step))
        return {"w": float(state.params["w"])}

    task.probe = probe
    _, epochs, _ = sweep(tmp_path, task, seeds=(3,))
    assert probed == [(0, 0), (4, 4), (8, 8), (10, 10)]
    sums = [3 + sum(1 / (step + 1) for step in range(count)) for count, _ in probed]
    assert [each["measures"]["w"] for each in epochs] == pytest.approx(sums, rel=1e-6)


def test_a_run_is_measured(tmp_path):
    task = Counting(seconds=0.001, waits=True)
    task.finish = lambda program, run, state: {"last": int(state.step)}
    (row,), _, log = sweep(tmp_path, task)
    measures = row["measures"]
    assert (measures["first_loss"], measures["last"]) == (1.0, STEPS)
    assert measures["last_loss"] == pytest.approx(0.1)
    assert measures["last_grad_norm"] == pytest.approx(1.1)
    assert measures["seconds_per_step"] >= 0.001
    # Four points at most, of three steps each and the rest.
    assert measures["curve"]["step"] == [3, 6, 9, 10]
    assert measures["curve"]["loss"][0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3, rel=1e-6)
    # Half of the time in steps was spent waiting for batches; sleeps are seldom much longer.
    assert 0.1 < measures["input_fraction"] <= 0.6 and measures["input_wait"] > 0
    assert 0 < log.of("on_step")[-1][2]["input_fraction"][0] <= 0.6


def test_a_diverged_run_keeps_its_curve_to_the_last_step(tmp_path):
    task = Counting(diverges_at=5)
    (row,), epochs, _ = sweep(tmp_path, task)
    assert (row["state"], row["steps_done"]) == ("diverged", 6)
    assert row["message"] == "loss nan, grad_norm nan at step 6"
    assert row["measures"]["first_loss"] == 1.0
    assert row["measures"]["last_loss"] is None or math.isnan(row["measures"]["last_loss"])
    assert [each["epoch"] for each in epochs] == [1]


def test_a_run_goes_on_in_the_middle_of_an_epoch(tmp_path):
    """Told to stop at step 6 of epochs of 4, it is saved there, and its curve with it."""
    (row,), _, _ = sweep(tmp_path, Counting(seconds=0.012, stop_at=6))
    assert row["state"] == "waiting"
    (row,), epochs, log = sweep(tmp_path, Counting())
    ((_, label, settings, step, num_steps),) = log.of("on_run_begin")
    assert (label, settings, num_steps) == ("seed 0", {"seed": 0}, STEPS)
    assert step == 6
    whole = tmp_path / "whole"
    whole.mkdir()
    (twin,), twin_epochs, _ = sweep(whole, Counting())
    assert row["measures"]["curve"] == twin["measures"]["curve"]
    assert row["measures"]["resumed_at"] == step
    for one, other in zip(epochs, twin_epochs, strict=True):
        assert one["train_loss"] == other["train_loss"]


def test_a_long_epoch_is_saved_within(tmp_path, monkeypatch):
    saved = []
    save = Checkpoints.save

    def noted(self, step, tree):
        saved.append(step)
        assert np.isnan(tree["curve"][step:]).all() and not np.isnan(tree["curve"][:step]).any()
        return save(self, step, tree)

    monkeypatch.setattr(Checkpoints, "save", noted)
    task = Counting(seconds=0.02)
    sweep(tmp_path, task, checkpoint_seconds=0.01, checkpoint_fraction=1.0, checkpoint_epochs=0)
    assert [step for step in saved if step % PER_EPOCH], saved
    saved.clear()
    other = tmp_path / "other"
    other.mkdir()
    sweep(other, task, checkpoint_seconds=0.0, checkpoint_fraction=1.0)
    assert saved == [4, 8]


def test_checkpoints_of_another_form_are_refused(tmp_path):
    """Those of an earlier version lack the curve; the run fails with a sentence, and stays."""
    task = Counting()
    run = task.resolve({"seed": 0})
    earlier = Checkpoints(
        tmp_path / "checkpoints" / run.key[:20],
        {"format": 1, "settings": json.loads(run.text)},
    )
    earlier.save(4, {"state": state(), "losses": np.zeros(4, np.float32)})
    earlier.close()
    with open_ledger(tmp_path / "ledger.db") as book:
        enter([run], book)
        worker = this_worker("cpu", {})
        (claim,) = book.claim(worker)
        book.record(claim, worker, [{"epoch": 1, "step": 4}])
        book.release(claim, worker)
    (row,), _, _ = sweep(tmp_path, task)
    assert row["state"] == "failed"
    assert "format" in row["message"], row["message"]
    assert (tmp_path / "checkpoints" / run.key[:20] / "step_4").is_dir()
