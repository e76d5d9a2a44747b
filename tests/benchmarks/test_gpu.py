"""The parts that one GPU makes: their order, their time limits, and what a cut leaves."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tyro

from benchmarks import __main__ as command
from benchmarks import gpu
from benchmarks.gpu import Task
from experiments.main import Command


def script(folder, name, text):
    """A module of that name in a folder."""
    (folder / f"{name}.py").write_text(text)


@pytest.fixture(autouse=True)
def handler():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_a_part_that_is_cut_leaves_its_rows_and_the_next_has_its_time(tmp_path, monkeypatch, capfd):
    slow = (
        "import os, pathlib, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "pathlib.Path('child').write_text(str(child.pid))\n"
        "pathlib.Path('rows').write_text('one')\n"
        "time.sleep(60)\n"
    )
    script(tmp_path, "slow", slow)
    script(tmp_path, "fails", "raise SystemExit(3)")
    script(tmp_path, "fine", "import pathlib; pathlib.Path('fine').write_text('two')")
    monkeypatch.chdir(tmp_path)
    start = time.monotonic()
    todo = [Task("slow", 2, ("slow",)), Task("fails", 1, ("fails",)), Task("fine", 1, ("fine",))]
    assert gpu.run(todo, minutes=0.1) == 1
    assert time.monotonic() - start < 30
    assert (tmp_path / "rows").read_text() == "one" and (tmp_path / "fine").read_text() == "two"
    said = capfd.readouterr().out
    for words in ("slow: cut when its time was over", "fails: exit code 3", "fine: done"):
        assert words in said
    # Nothing that a part has started goes on.
    child = Path("/proc", (tmp_path / "child").read_text(), "stat")
    assert not child.exists() or child.read_text().split()[2] == "Z"


def test_a_part_that_is_told_to_stop_may_save(tmp_path):
    save = (
        "import pathlib, signal, sys, time\n"
        f"stop = lambda *_: (pathlib.Path({str(tmp_path / 'saved')!r}).touch(), sys.exit(143))\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "time.sleep(60)\n"
    )
    assert gpu.limited([sys.executable, "-c", save], 2.0) is None
    assert (tmp_path / "saved").exists()


def test_whoever_stops_it_stops_its_parts(tmp_path, monkeypatch):
    script(
        tmp_path, "stopped",
        "import os, pathlib, signal, time\n"
        "pathlib.Path('child').write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(60)\n",
    )  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        gpu.run([Task("stopped", 1, ("stopped",))], minutes=1)
    assert leaving.value.code == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "child").read_text()), 0)


def test_the_parts_come_in_their_order_and_name_what_there_is():
    names = [task.name for task in gpu.tasks(Path("out"), quick=False, data_dir=None)]
    assert names == [
        "against_torch", "against_batch_norm", "together", "fixup_fig3_depth",
        "skipinit_lr_batch",
    ]  # fmt: skip
    assert set(names[:3]) <= set(command.PARTS)
    for quick in (False, True):
        found = gpu.tasks(Path("out"), quick=quick, data_dir="data")
        assert sum(task.minutes for task in found) == 25
        for task in found[3:5]:
            assert task.words[-4:] == ("--data-dir", "data", "--out", f"out/{task.name}")
        # Each command has the options that it is given.
        for task in found:
            name, *words = task.words
            module = command if name == "benchmarks" else importlib.import_module(name)
            kind = getattr(module, "Command", command.Settings)
            kind = Command if hasattr(module, "EXPERIMENT") else kind
            options = tyro.cli(kind, args=words)
            assert getattr(options, "options", options).out == Path("out", task.name)


@pytest.mark.slow
def test_all_parts_on_a_cpu(tmp_path):
    words = [sys.executable, "-m", "benchmarks", "--gpu", "--quick", "--out", str(tmp_path / "out")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1 where a target of the machine is missed
    for task in gpu.tasks(tmp_path / "out", quick=True, data_dir=None):
        assert f"=== {task.name}: at most" in done.stdout
        assert f"{task.name}: done" in done.stdout or task.name in command.PARTS
    for name in ("against_batch_norm", "together"):
        assert json.loads((tmp_path / "out" / name / "bench.json").read_text())["rows"]
    for name in ("fixup_fig3_depth", "skipinit_lr_batch"):
        assert (tmp_path / "out" / name / "rows.csv").read_text().count("\n") > 1
