"""Case 5: SIGTERM. All runs are saved where they stand, the exit code is 143, handlers come back.

That previous handlers are restored is asserted by each worker of these tests; `Preemption` by
itself is tested in tests/training/test_preemption.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import FOUR, ROOT

CASE = "5 SIGTERM in the middle of an epoch (preemption)"
CHUNKS = {"workers": 2, "call_seconds": 1e-9}  # a step at a time
# Steps that last, so that a signal comes within a run.
LASTING = pytest.param({"seconds": 0.004}, id="counting")
NETWORKS = pytest.param(None, marks=pytest.mark.slow, id="networks")


def assert_no_step_twice(folder):
    with sweeping.opened(folder) as book:
        keys = [row["key"] for row in book.rows()]
    for key in keys:
        for step, values in enumerate(sweeping.curve(folder, key)):
            assert len(values) == 1, f"{key} made step {step} {len(values)} times"


def terminated(folder, number=signal.SIGTERM, **options):
    # In the second epoch of the first two runs, whichever comes there first: two others wait.
    options |= {"terminate_at": 30, "terminate_by": number, "code": 128 + number}
    return sweeping.run(folder, FOUR, **CHUNKS, **options)


@pytest.mark.parametrize("counting", [LASTING, NETWORKS])
def test_it_saves_and_leaves_and_another_one_goes_on(tmp_path, counting):
    process = terminated(tmp_path, counting=counting)
    with sweeping.opened(tmp_path) as book:
        assert book.counts()["running"] == 0 < book.counts()["waiting"]
        outcomes = {each["outcome"] for each in book.attempts()}
    assert "released" in outcomes <= {"released", "finished"}
    last_of = {event["key"]: event["step"] for event in process.events("step")}
    saved = {event["key"]: event["step"] for event in process.events("saved")}
    left = [e["key"] for e in process.events("run_end") if e["state"] == "waiting"]
    assert any(saved[key] % 22 for key in left), "none was cut within an epoch"
    assert all(saved[key] == last_of[key] for key in left)

    sweeping.run(tmp_path, FOUR, counting=counting, **CHUNKS)
    sweeping.assert_twins(tmp_path, sweeping.twin(FOUR, counting=counting))
    assert sweeping.assert_nothing_twice(tmp_path) == 0
    assert_no_step_twice(tmp_path)


def leave_without_saving():
    """Control: runs are released, and not saved where they stand."""
    from nf_resnets.sweep import worker

    leave = worker.Slots._leave

    def leave_only(self):
        # Of these slots alone: another thread leaves at the same time.
        self._save = lambda slot: None
        leave(self)

    worker.Slots._leave = leave_only


@pytest.mark.slow
@pytest.mark.parametrize("counting", [LASTING, NETWORKS])
def test_what_is_not_saved_is_noticed(tmp_path, counting):
    prepare = "tests.faults.test_case_05_sigterm:leave_without_saving"
    terminated(tmp_path, prepare=prepare, counting=counting)
    sweeping.run(tmp_path, FOUR, counting=counting, **CHUNKS)
    # The numbers are the same all the same.
    sweeping.assert_twins(tmp_path, sweeping.twin(FOUR, counting=counting))
    with pytest.raises(AssertionError, match="made step .* 2 times"):
        assert_no_step_twice(tmp_path)


@pytest.mark.slow
def test_ctrl_c(tmp_path):
    terminated(tmp_path, signal.SIGINT)
    sweeping.run(tmp_path, FOUR, **CHUNKS)
    sweeping.assert_twins(tmp_path, sweeping.twin(FOUR))


@pytest.mark.slow
def test_the_command(tmp_path):
    command = [
        sys.executable, "-m", "nf_resnets.sweep", "--grid", "peak_lr=2^-3:2^-2", "seed=0:2",
        "--model", "wrn-10-1", "--stem-channels", "4", "--epochs", "3", "--workers", "1",
        "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    started = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    )
    for line in started.stdout:
        if line.startswith("[1/4]"):  # a run has ended, and others are being made
            break
    started.send_signal(signal.SIGTERM)
    said = started.stdout.read()
    assert started.wait(60) == 143, said
    assert "the same command goes on" in said
    # The twin is made by the command as well: on a CPU it steps with other kernels than programs
    # that are stored, as those of the other tests are.
    for out in ("out", "twin"):
        done = subprocess.run(
            [*command[:-1], str(tmp_path / out)],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    rows, epochs = sweeping.outcome(tmp_path / "out")
    twin_rows, twin_epochs = sweeping.outcome(tmp_path / "twin")
    assert {key: row["test_loss"] for key, row in rows.items()} == {
        key: row["test_loss"] for key, row in twin_rows.items()
    }
    assert epochs == twin_epochs
