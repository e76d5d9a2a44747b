"""The parts that one GPU makes: their order, their time limits, and what a cut leaves."""

import os
import time
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu import Task

pytestmark = pytest.mark.usefixtures("as_before")


def script(folder, name, text):
    """A module of that name in a folder."""
    (folder / f"{name}.py").write_text(text)


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
