"""Commands that are killed, stopped, or run out of disk, each against its uninterrupted twin."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nf_resnets.sweep import Rows
from nf_resnets.training.checkpoint import Checkpoints
from tests.faults.commands import assert_twins, rows, run, start, twin

SECONDS = 4.0  # in which a signal is answered
TRAIN = ("train", "--model", "wrn-10-1", "--stem-channels", "2", "--epochs", "2")
WIDE = ("--runs-per-device", "3", "--workers", "1")


def began(process):
    """The steps at which runs began."""
    return [event["step"] for event in process.events("run_begin")]


def saved(folder):
    """The newest step of each wave that has begun."""
    places = (Path(folder) / "sweep" / "checkpoints").glob("*")
    return {path.name: (Checkpoints(path).steps() or [0])[-1] for path in places}


# --- SIGKILL -------------------------------------------------------------------------------------

MOMENTS = ("run_begin", "step", "epoch", "saved")


def killed(folder, moment, count, delay, *arguments):
    """The command, killed some time after an event."""
    process = start(folder, *arguments)
    process.until(moment, count)
    time.sleep(delay)
    process.kill()
    return process


def test_a_killed_sweep_ends_with_the_numbers_of_its_twin(tmp_path):
    killed(tmp_path, "step", 3, 0.05)
    there, steps = len(rows(tmp_path)), saved(tmp_path)
    process = run(tmp_path)
    assert_twins(tmp_path)
    # What was made is not made again, and what was saved is where it goes on.
    assert len(began(process)) == 4 - there
    assert sorted(step for step in began(process) if step) == sorted(filter(None, steps.values()))


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), WIDE], ids=["threads", "slots"])
def test_killed_again_and_again(tmp_path, options):
    rng = random.Random(1)
    while len(rows(tmp_path)) < 3:
        killed(tmp_path, rng.choice(MOMENTS), 1, rng.uniform(0, 0.3), *options)
    run(tmp_path, *options)
    assert_twins(tmp_path)


SEAMS = {
    "a row is half written": ("nf_resnets.sweep.rows:Rows._append", "within", 2),
    "a row is written": ("nf_resnets.sweep.rows:Rows.add", "after", 2),
    "a checkpoint is written, and not in its place": ("pathlib:Path.rename", "before", 3),
    "a checkpoint is in its place": ("pathlib:Path.rename", "after", 3),
    "checkpoints are removed": ("nf_resnets.training.checkpoint:Checkpoints.delete", "before", 1),
    "an old checkpoint is removed": ("pathlib:Path.unlink", "after", 1),
    "the table is written": ("nf_resnets.sweep.command:write_csv", "before", 1),
}


@pytest.mark.every(len(SEAMS))
@pytest.mark.parametrize("seam", SEAMS)
def test_killed_where(tmp_path, seam):
    run(tmp_path, prepare=["kill_at", *SEAMS[seam]], code=-signal.SIGKILL)
    damaged = Rows(tmp_path / "sweep").damaged
    assert len(damaged) == (seam == "a row is half written")
    said = run(tmp_path).said()
    assert all(f"Damaged, passed over and made again: {line}." in said for line in damaged)
    assert_twins(tmp_path)


@pytest.mark.slow
def test_shards_of_which_one_is_killed(tmp_path):
    shards = [start(tmp_path, "--shard", str(index), "2") for index in range(2)]
    shards[0].until("step", 3)
    shards[0].kill()
    assert shards[1].wait() == 0
    assert len(rows(tmp_path)) == 2
    run(tmp_path, "--shard", "0", "2")
    assert_twins(tmp_path)


# --- SIGTERM and Ctrl-C -------------------------------------------------------------------------


def told(process, number, code):
    """Sends a signal, and asserts when and how the command ends; what it said."""
    before = time.monotonic()
    process.send(number)
    assert process.wait() == code, process.said()
    assert time.monotonic() - before < SECONDS
    assert "Traceback" not in process.said()
    return process.said()


@pytest.mark.every(4)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", [(), WIDE], ids=["threads", "slots"])
def test_a_signal_saves_where_the_runs_stand(tmp_path, number, options):
    process = start(tmp_path, *options)
    process.until("step", 12)
    said = told(process, number, 128 + number)
    assert "Stopped; all runs are kept where they stood, and the same command goes on." in said
    steps, last = saved(tmp_path), {}
    for event in process.events("step"):
        last[event["key"]] = event["step"]
    over = rows(tmp_path)
    assert set(steps.values()) == {step for key, step in last.items() if key not in over} != {0}
    again = run(tmp_path, *options)
    assert set(filter(None, began(again))) == set(steps.values())
    assert_twins(tmp_path)


@pytest.mark.every(2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_does_not_wait_for_a_compilation(tmp_path, number):
    process = start(tmp_path, prepare="compile_for_long")
    process.until("compile_begin")
    told(process, number, 128 + number)
    run(tmp_path)
    assert_twins(tmp_path)


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_wait_for_a_step(tmp_path):
    process = start(tmp_path, prepare="last")
    process.until("run_begin")
    process.send(signal.SIGINT)
    time.sleep(0.5)
    said = told(process, signal.SIGINT, 130)
    assert "Stopped; what was finished is kept." in said
    run(tmp_path)
    assert_twins(tmp_path)


# --- The disk ------------------------------------------------------------------------------------


def sentence(process):
    """The one sentence with which a command ends that the user can help."""
    lines = process.said().splitlines()
    assert "Traceback" not in process.said()
    (found,) = (line for line in lines if "cannot be written" in line)
    return found


@pytest.fixture
def mounted(tmp_path):
    """A function that mounts a folder with options, or makes it read-only, for root alone."""
    places = []

    def mount(place, *options):
        place.mkdir(exist_ok=True)
        if os.geteuid() != 0 or subprocess.run(["mount", *options, str(place)]).returncode:
            pytest.skip("no disk can be mounted here")
        places.append(place)

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_said_once_and_costs_nothing_that_was_made(tmp_path, mounted):
    disk = tmp_path / "sweep"
    mounted(disk, "-t", "tmpfs", "-o", "size=40k", "tmpfs")
    process = run(tmp_path, "--workers", "2", code=2)
    assert sentence(process).endswith("cannot be written: No space left on device.")
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    there = len(rows(tmp_path))
    assert len(began(run(tmp_path))) == 4 - there
    assert_twins(tmp_path)


def test_a_read_only_folder_is_refused_before_anything_begins(tmp_path, mounted):
    place = tmp_path / "sweep"
    mounted(place, "-t", "tmpfs", "-o", "ro", "tmpfs")
    process = run(tmp_path, code=2)
    assert process.events() == [] and "Read-only file system" in process.said()
    assert process.said().count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("act", ["move", "remove"])
def test_a_folder_that_vanishes_is_said_once(tmp_path, act):
    folder = tmp_path / "sweep"
    process = run(tmp_path, "--workers", "1", prepare=["at_row", 2, act, str(folder)], code=2)
    assert sentence(process).startswith(f"{folder}/rows-0-of-1.jsonl cannot be written: No such")
    shutil.rmtree(folder, ignore_errors=True)  # what a thread may have made of it since
    if act == "move":
        os.rename(f"{folder}-away", folder)
        assert len(rows(tmp_path)) == 1
    run(tmp_path)
    assert_twins(tmp_path)


# --- Two commands on one folder ------------------------------------------------------------------


def test_a_second_sweep_in_the_folder_says_so_before_it_begins(tmp_path):
    first = start(tmp_path)
    first.until("run_begin")
    second = run(tmp_path / "other", out=tmp_path / "sweep", code=2)
    assert second.events() == []
    assert f"another process is writing {tmp_path}/sweep/rows-0-of-1.jsonl" in second.said()
    assert first.wait() == 0
    assert_twins(tmp_path)


# --- A single training ---------------------------------------------------------------------------


@pytest.mark.slow  # a real network
def test_a_training_is_killed_stopped_and_started_twice(tmp_path):
    out = tmp_path / "net"
    for moment, count in (("step", 1), ("saved", 3), ("epoch", 1)):
        process = start(tmp_path, *TRAIN, out=out)
        process.until(moment, count)
        process.kill()
        assert not out.exists()
    process = start(tmp_path, *TRAIN, out=out)
    process.until("step", 2)
    process.send(signal.SIGSTOP)  # or it may be over before the second one looks
    second = run(tmp_path / "second", *TRAIN, out=out, code=2)
    process.send(signal.SIGCONT)
    assert f"another process is training for {out}; wait for it" in second.said()
    assert second.events() == []
    assert "Stopped; step " in told(process, signal.SIGTERM, 143)
    process = run(tmp_path, *TRAIN, out=out)
    assert began(process)[0] > 22
    assert out.read_bytes() == (twin(*TRAIN) / "sweep").read_bytes()
    assert not out.with_name("net.unfinished").exists()
