"""Without Matplotlib commands write rows, and name the extra that draws."""

import importlib.util
import sys

import pytest

from nf_resnets.cli import analyze
from nf_resnets.plotting.style import NO_MATPLOTLIB
from tests.test_main import run


@pytest.fixture(autouse=True)
def without_matplotlib(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "matplotlib" else find_spec(name, *rest),
    )
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_a_sweep_writes_rows_and_table(monkeypatch, capsys, tmp_path):
    assert run(
        monkeypatch, "sweep", "--grid", "peak_lr=0.1", "--model", "wrn-10-1", "--stem-channels",
        "4", "--steps", "2", "--out", str(tmp_path / "sweep"),
    ) == 0  # fmt: skip
    assert capsys.readouterr().err.count(NO_MATPLOTLIB) == 1
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {
        "rows-0-of-1.jsonl", "rows.csv", "settings.json", "table.txt"
    }  # fmt: skip


def test_analyze_writes_its_table(capsys, tmp_path):
    analyze.Analyze(model="wrn-10-1", out=tmp_path / "page")()
    assert NO_MATPLOTLIB in capsys.readouterr().err
    assert {path.name for path in (tmp_path / "page").iterdir()} == {"blocks.csv"}
