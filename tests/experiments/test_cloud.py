"""The files for clouds and clusters: what they start, and what keeps its results."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro
import yaml

from nf_resnets.cli.sweep import Sweep
from nf_resnets.sweep import settings
from nf_resnets.sweep.options import Processes

CLOUD = Path(__file__).parents[2] / "experiments" / "cloud"
KEEP = "experiments/cloud/keep.sh"
# What SkyPilot tells a node; the second of two.
NODE = {
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
}


def calls_of(script, tmp_path, **environment):
    """The commands that a script calls, each with its arguments, and its exit code.

    They are recorded and not run; each exits with the variable CODE.
    """
    calls, folder = tmp_path / "calls", tmp_path / "venv" / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("bash", "pip", "scontrol", "srun", "xpk"):
        text = f"#!/bin/sh\nprintf '%s\\0' {name} \"$@\" '\n' >>{calls}\nexit ${{CODE:-0}}\n"
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    calls.unlink(missing_ok=True)
    environment |= {"HOME": str(tmp_path), "PATH": f"{folder}:/usr/bin:/bin"}
    code = subprocess.run(["/bin/bash", "-c", script], env=environment, timeout=30).returncode
    return [call.split("\0") for call in calls.read_text().split("\0\n\0")[:-1]], code


def options_of(words):
    """Parses what follows ``nf-resnets sweep`` as the sweep does."""
    command = tyro.cli(Sweep, args=words[words.index("sweep") + 1 :])
    assert set(settings.parse(command.grid)) == {"peak_lr", "batch_size", "seed"}
    assert command.options.out == Path("runs/lr-sweep")
    return command.options


@pytest.mark.parametrize(("name", "extra"), [("tpu.yaml", "tpu"), ("gpu.yaml", "cuda")])
def test_skypilot_starts_a_sweep_whose_results_are_kept(name, extra, tmp_path):
    task = yaml.safe_load((CLOUD / name).read_text())
    assert task["file_mounts"]["/results"] == {"source": "${BUCKET}", "mode": "MOUNT"}
    assert subprocess.run(["bash", "-n"], input=task["setup"], text=True).returncode == 0
    assert f"--editable '.[{extra},data,experiments]'" in task["setup"]
    ((shell, script, *words),), code = calls_of(task["run"], tmp_path, **NODE)
    assert (shell, script, code) == ("bash", KEEP, 0)
    assert words[:3] == ["runs/lr-sweep", "/results", "nf-resnets"]
    options = options_of(words)
    if name == "gpu.yaml":
        assert options.processes == Processes("10.0.0.7:1234", 2, 1)
    else:
        assert options.processes == Processes()


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (143, True)])
def test_slurm_starts_a_shard_again_when_its_time_is_over(code, again, tmp_path):
    script = (CLOUD / "slurm.sh").read_text()
    # Slurm reads no option behind the first command.
    assert script.rindex("#SBATCH") < script.index("set -euo pipefail")
    element = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "8"}
    calls, found = calls_of(script, tmp_path, CODE=str(code), **element)
    assert found == code  # the recorded scontrol exits with CODE, too
    assert options_of(calls[0]).shard == (3, 8)
    assert calls[1:] == ([["scontrol", "requeue", "9_3"]] if again else [])


def start(home, code, every=60):
    """Starts a command, which is Python, on a machine with a disk of its own."""
    home.mkdir(exist_ok=True)
    words = ["bash", CLOUD.parents[1] / KEEP, "runs/x", home.parent / "bucket", sys.executable]
    return subprocess.Popen(
        [*words, "-c", f"import os, signal, time; rows = open('runs/x/rows', 'a', 1); {code}"],
        cwd=home, env={"PATH": "/usr/bin:/bin", "EVERY": str(every)},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_after_a_lost_machine_another_one_goes_on(tmp_path):
    kept = tmp_path / "bucket" / "x" / "rows"
    kept.parents[1].mkdir()
    first = start(tmp_path / "first", "print(1, file=rows); time.sleep(5)", every=0.1)
    wait_for(lambda: kept.exists() and kept.read_text() == "1\n")
    first.kill()
    first.wait(60)
    # A failed command's rows are kept, too; what a machine has is not fetched again.
    for text, code in ((2, 0), (3, 7)):
        line = f"print({text}, file=rows); raise SystemExit({code})"
        assert start(tmp_path / "second", line).wait(60) == code
    assert kept.read_text() == "1\n2\n3\n"


def test_a_command_that_is_told_to_stop_saves_and_is_kept(tmp_path):
    (tmp_path / "bucket").mkdir()
    save = (
        "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), print(2, file=rows), "
        "os._exit(143))); open('up', 'w'); time.sleep(60)"
    )
    process = start(tmp_path / "machine", save)
    wait_for((tmp_path / "machine" / "up").exists)
    process.terminate()
    assert process.wait(60) == 143
    assert (tmp_path / "bucket" / "x" / "rows").read_text() == "2\n"


def test_a_host_that_writes_no_rows_replaces_none(tmp_path):
    (tmp_path / "bucket" / "x").mkdir(parents=True)
    kept = tmp_path / "bucket" / "x" / "rows"
    kept.write_text("1\n")
    other = start(tmp_path / "other", "open('up', 'w'); time.sleep(1)")
    wait_for((tmp_path / "other" / "up").exists)
    kept.write_text("1\n2\n")  # by process 0, on its own host
    assert other.wait(60) == 0 and kept.read_text() == "1\n2\n"
