"""The files for clouds and clusters, read by the engines' own parsers; and what keeps results."""

import argparse
import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
import tyro
import yaml

from experiments.cloud import keep
from nf_resnets.sweep import __main__ as sweep
from nf_resnets.sweep import settings
from nf_resnets.training.hosts import _address

ROOT = Path(__file__).parents[2]
CLOUD = ROOT / "experiments" / "cloud"
KEEP = "experiments/cloud/keep.py"
TASKS = ["tpu.yaml", "gpu.yaml"]
SCRIPTS = ["slurm.sh", "gke.sh"]
# What SkyPilot tells a node; the second of two.
NODE = {
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
}


def record(file, name):
    """A command of that name, which writes down its arguments and exits with the variable CODE."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"#!/bin/bash\nprintf '%s\\0' {name} \"$@\" $'\\n' >>$CALLS\nexit ${{CODE:-0}}\n"
    )
    file.chmod(0o755)


def calls_of(script, tmp_path, **environment):
    """The recorded commands that a script calls, and its exit code."""
    for name in ("python", "xpk", "srun", "scontrol", "pip"):
        record(tmp_path / "venv" / "bin" / name, name)
    path = f"{tmp_path}/venv/bin:/usr/bin:/bin"
    environment |= {"HOME": str(tmp_path), "PATH": path, "CALLS": str(tmp_path / "calls")}
    code = subprocess.run(["bash", "-c", script], env=environment, timeout=30).returncode
    calls = (tmp_path / "calls").read_text().split("\0\n\0")[:-1]
    return [call.split("\0") for call in calls], code


def check_sweep(words):
    """Parses what follows ``nf_resnets.sweep`` as the sweep does, and returns its options."""
    command = tyro.cli(sweep.Command, args=words[words.index("nf_resnets.sweep") + 1 :])
    assert set(settings.parse(command.grid)) == {"peak_lr", "batch_size", "seed"}
    assert command.options.out == Path("runs/lr-sweep")
    return command.options


@pytest.mark.parametrize("name", [*TASKS, *SCRIPTS])
def test_each_file_is_short(name):
    assert len((CLOUD / name).read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", TASKS)
def test_a_task_keeps_what_the_sweep_makes(name, tmp_path):
    task = yaml.safe_load((CLOUD / name).read_text())
    assert task["resources"]["use_spot"] and task["workdir"] == "."
    assert task["file_mounts"]["/results"] == {"source": "${BUCKET}", "mode": "MOUNT"}
    assert subprocess.run(["bash", "-n"], input=task["setup"], text=True).returncode == 0
    extra = re.search(r"--editable '\.\[(\w+),postgresql\]'", task["setup"])[1]
    assert re.search(rf"^{extra} =$", (ROOT / "setup.cfg").read_text(), re.M)

    ((python, script, *words),), code = calls_of(task["run"], tmp_path, **NODE)
    assert (python, script, code) == ("python", KEEP, 0)
    assert words[:3] == ["runs/lr-sweep", "/results", "--"]
    options = check_sweep(words)
    if name == "gpu.yaml":
        assert _address(options.coordinator) == ("10.0.0.7", 1234)
        assert (options.num_processes, options.process_id) == (2, 1)
    else:
        assert options.coordinator is None


@pytest.mark.parametrize("name", TASKS)
def test_skypilot_reads_a_task(name, monkeypatch):
    sky = pytest.importorskip("sky", reason="SkyPilot is not installed: pip install skypilot")
    monkeypatch.chdir(ROOT)
    task = sky.Task.from_yaml(str(CLOUD / name))
    (resources,) = task.resources
    assert resources.use_spot and task.storage_mounts["/results"].mode is sky.StorageMode.MOUNT
    assert list(resources.accelerators) == [{"tpu.yaml": "tpu-v6e-16", "gpu.yaml": "A100"}[name]]


@pytest.mark.parametrize(
    "words",
    [
        "--gpus tpu-v5litepod-16",
        "--infra gcp --no-use-spot --config gcp.managed_instance_group.run_duration=14400",
        "--infra k8s --no-use-spot --gpus tpu-v5-lite-podslice:4 "
        "--config kubernetes.dws.enabled=true",
    ],
)
def test_skypilot_reads_the_options_for_other_machines(words):
    assert words in (ROOT / "docs" / "how_to" / "tpu_pod.md").read_text()
    pytest.importorskip("sky", reason="SkyPilot is not installed: pip install skypilot")
    from sky import Resources
    from sky.client.cli import command

    # The command refuses a --config that SkyPilot does not have.
    found = command.jobs_launch.make_context("launch", ["tpu.yaml", *words.split()]).params
    assert found["use_spot"] is (False if "--no-use-spot" in words else None)
    if found["gpus"]:
        assert Resources(accelerators=found["gpus"]).accelerators


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, False), (143, True)])
def test_slurm_starts_an_element_again_when_its_time_is_over(code, again, tmp_path):
    script = (CLOUD / "slurm.sh").read_text()
    options = re.findall(r"^#SBATCH (.+)$", script, re.M)
    assert all(re.fullmatch(r"--[a-z-]+(=\S+)?", option) for option in options)
    # Slurm reads no option behind the first command.
    assert script.rindex("#SBATCH") < script.index("set -euo pipefail")
    environment = {"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}
    ledger = "postgresql://me@host/sweeps"
    found = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert found.returncode == 1 and "expected postgresql://" in found.stderr

    calls, found = calls_of(script, tmp_path, CODE=str(code), LEDGER=ledger, **environment)
    # The recorded scontrol exits with CODE, too.
    assert found == code
    assert check_sweep(calls[0]).ledger == ledger
    assert calls[1:] == ([["scontrol", "requeue", "9_3"]] if again else [])


@pytest.mark.parametrize(
    ("tpu", "capacity"), [(None, None), ("v5litepod-16", "--flex"), ("v6e-16", "--on-demand")]
)
def test_xpk_reads_its_commands(tpu, capacity, tmp_path):
    script = (CLOUD / "gke.sh").read_text()
    environment = {"PROJECT": "p", "ZONE": "us-central1-c", "BUCKET": "b"}
    environment |= {"TPU": tpu, "CAPACITY": capacity} if tpu else {}
    calls, code = calls_of(script, tmp_path, **environment)
    assert code == 0 and [call[:3] for call in calls] == [
        ["xpk", "cluster", "create"],
        ["xpk", "storage", "attach"],
        ["xpk", "workload", "create"],
    ]
    assert (capacity or "--spot") in calls[0]
    assert all(f"--tpu-type={tpu or 'tpu7x-16'}" in calls[index] for index in (0, 2))
    (command,) = [word[10:] for word in calls[2] if word.startswith("--command=")]
    (tmp_path / "calls").unlink()
    (install, (python, script, *words)), code = calls_of(command, tmp_path)
    assert (install[:2], python, script, code) == (["pip", "install"], "python", KEEP, 0)
    assert words[:3] == ["runs/lr-sweep", "/results", "--"]
    check_sweep(words)

    parser = pytest.importorskip("xpk.parser.core", reason="XPK is not installed: pip install xpk")
    xpk = argparse.ArgumentParser()
    parser.set_parser(xpk)
    for call in calls:
        xpk.parse_args(call[1:])
    from xpk.core import system_characteristics

    assert (tpu or "tpu7x-16") in system_characteristics.UserFacingNameToSystemCharacteristics


class Machine:
    """A machine with a disk of its own, on which commands run that are lines of Python."""

    def __init__(self, home, bucket):
        self.home = home
        self.bucket = bucket
        self.folder = home / "runs" / "x"
        self.process = None
        home.mkdir()

    def start(self, code, every=60):
        words = [sys.executable, ROOT / KEEP, "--every", str(every), "runs/x", self.bucket, "--"]
        self.process = subprocess.Popen(
            [*words, sys.executable, "-c", code],
            cwd=self.home,
            start_new_session=True,
            stderr=subprocess.PIPE,
            text=True,
        )
        return self.process

    def run(self, code):
        return self.start(code).wait(60)

    def lose(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def machines(tmp_path):
    """Machines by name, which mount one bucket."""
    (tmp_path / "bucket").mkdir()
    found = {}

    def machine(name):
        found[name] = Machine(tmp_path / name, tmp_path / "bucket")
        return found[name]

    yield machine
    for one in found.values():
        if one.process:
            one.lose()


def add_row(value):
    """Python that adds a row to the folder's ledger, of which a part stays in SQLite's log."""
    return (
        "import os, signal, sqlite3, time; os.makedirs('runs/x', exist_ok=True); "
        "ledger = sqlite3.connect('runs/x/ledger.db', isolation_level=None); "
        "ledger.execute('PRAGMA journal_mode = WAL'); "
        "ledger.execute('CREATE TABLE IF NOT EXISTS runs (name)'); "
        f"ledger.execute('INSERT INTO runs VALUES ({value})'); "
    )


def rows(folder):
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        return [value for (value,) in ledger.execute("SELECT name FROM runs")]


def names(archive):
    if not archive.exists():
        return []
    with tarfile.open(archive) as tar:
        return tar.getnames()


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_after_a_lost_machine_another_one_goes_on(machines):
    first, second, third = map(machines, ("first", "second", "third"))
    first.start(add_row(1) + "open('runs/x/up', 'w'); time.sleep(60)", every=0.1)
    wait_for(lambda: "up" in names(first.bucket / "x.tar"))
    first.lose()
    assert second.run(add_row(2)) == 0
    assert rows(second.folder) == [1, 2]
    # What a machine has is not replaced by what is kept; a failed command's results are kept, too.
    assert second.run(add_row(3) + "raise SystemExit(7)") == 7
    assert third.run("") == 0
    assert rows(third.folder) == [1, 2, 3]
    assert [file.name for file in third.bucket.iterdir()] == ["x.tar"]


def test_a_command_that_is_asked_to_stop_saves_and_is_kept(machines):
    machine, other = machines("machine"), machines("other")
    save = (
        "save = lambda *_: (ledger.execute('INSERT INTO runs VALUES (2)'), os._exit(143)); "
        "signal.signal(signal.SIGTERM, save); open('up', 'w'); time.sleep(60)"
    )
    process = machine.start(add_row(1) + save)
    wait_for((machine.home / "up").exists)
    process.terminate()
    assert process.wait(60) == 143
    assert other.run("") == 0
    assert rows(other.folder) == [1, 2]


def test_a_host_that_writes_nothing_replaces_nothing(machines):
    first, second = machines("first"), machines("second")
    assert first.run(add_row(1)) == 0
    kept = first.bucket / "x.tar"
    before = kept.stat().st_mtime_ns
    compiled = "os.mkdir('runs/x/compiled'); open('runs/x/compiled/program', 'w')"
    assert second.run(f"import os; {compiled}") == 0
    assert kept.stat().st_mtime_ns == before


def test_results_that_cannot_be_kept_are_an_error(machines):
    machine = machines("machine")
    (machine.bucket / "x.tar.part").mkdir()
    assert machine.run(add_row(1)) == 1
    assert "runs/x could not be copied to" in machine.process.stderr.read()
    machine.bucket = machine.home / "elsewhere"
    assert machine.run(add_row(2)) == 2
    assert f"{machine.bucket} is no folder" in machine.process.stderr.read()
    assert rows(machine.folder) == [1]


def test_an_archive_of_a_folder_in_use_is_whole(tmp_path):
    folder, archive = tmp_path / "out", tmp_path / "out.tar"
    (folder / "checkpoints" / "step_9").mkdir(parents=True)
    (folder / "checkpoints" / "step_9" / "leaves").write_bytes(b"\0" * 1000)
    (folder / "z.csv").write_text("a,b\n")
    with contextlib.closing(sqlite3.connect(folder / "ledger.db")) as ledger:
        ledger.execute("PRAGMA journal_mode=WAL")
        ledger.execute("CREATE TABLE runs (name TEXT)")
        ledger.execute("INSERT INTO runs VALUES ('kept')")
        ledger.commit()
        ledger.execute("INSERT INTO runs VALUES ('not yet')")
        # What is committed is still in the log: the file alone has no such table.
        (tmp_path / "ledger.db").write_bytes((folder / "ledger.db").read_bytes())
        with pytest.raises(sqlite3.OperationalError, match="no such table"):
            rows(tmp_path)
        keep.pack(folder, archive)
    # The ledger is last.
    assert names(archive) == ["checkpoints/step_9/leaves", "z.csv", "ledger.db"]
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "copy", filter="data")
    assert rows(tmp_path / "copy") == ["kept"]
