"""Two processes that work as one: runs spread over all devices, or one run over all of them."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GRID = ("--grid", "peak_lr=2^-4:2^-2", "scheme=fixup", "--model", "wrn-10-1",
        "--stem-channels", "2")  # fmt: skip
RESULTS = ("state", "steps_done", "test_accuracy", "test_loss", "train_loss")


def environment(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags, "COLUMNS": "100"}


def start(out, *arguments, devices=2):
    """Starts the two; the second one has a folder of its own, as on another machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [
                sys.executable, "-m", "nf_resnets", "sweep", *GRID, *arguments,
                "--out", str(out if index == 0 else out.with_name(f"{out.name}-other")),
                "--coordinator", f"127.0.0.1:{port}", "--num-processes", "2",
                "--process-id", str(index),
            ],
            cwd=ROOT, env=environment(devices), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for index in range(2)
    ]  # fmt: skip


def finish(processes, timeout=240):
    try:
        return [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def rows(out):
    with open(out / "rows.csv", newline="") as stream:
        return {row["key"]: row for row in csv.DictReader(stream)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    out = tmp_path_factory.mktemp("alone") / "out"
    command = [sys.executable, "-m", "nf_resnets", "sweep", *GRID, "--epochs", "2"]
    command += ["--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=environment(1), check=True, timeout=240,
                   capture_output=True)  # fmt: skip
    return rows(out)


@pytest.mark.slow
@pytest.mark.parametrize("devices_per_run", [1, 4])
def test_the_numbers_are_those_of_one_process(devices_per_run, alone, tmp_path):
    out = tmp_path / "out"
    processes = start(out, "--epochs", "2", "--devices-per-run", str(devices_per_run))
    texts = finish(processes)
    assert [process.returncode for process in processes] == [0, 0], texts
    assert "3 finished" in texts[0]
    assert "finished" not in texts[1]  # one tells, and one writes
    assert not (tmp_path / "out-other").exists()
    found = rows(out)
    assert set(found) == set(alone)
    for key, row in found.items():
        assert (row["state"], row["steps_done"]) == ("finished", "44")
        for name in ("test_accuracy", "test_loss", "train_loss"):
            # A run on one device is the same run. One over four sums float32 in another order,
            # carried through 44 steps.
            allowed = 1e-6 if devices_per_run == 1 else 1e-2
            assert float(row[name]) == pytest.approx(float(alone[key][name]), rel=allowed)


def saved(out):
    """The newest step of the wave that has begun; all three runs are in it."""
    return max((int(path.stem) for path in (out / "checkpoints").glob("*/*.npz")), default=0)


@pytest.mark.slow  # two starts of two processes
def test_a_signal_to_one_stops_both_and_they_go_on_where_they_stood(tmp_path):
    out, step = tmp_path / "out", 0
    for told in (1, 0):  # the one that does not lead, and the one that does
        processes = start(out, "--epochs", "300", "--save-seconds", "0")
        deadline = time.monotonic() + 120
        while saved(out) <= step:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        processes[told].send_signal(signal.SIGTERM)
        texts = finish(processes)
        assert [process.returncode for process in processes] == [143, 143], texts
        assert "goes on" in texts[0]
        step = saved(out)
