"""The command: what it prints and keeps, and when it says that a target was missed."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import pytest

from benchmarks import __main__ as command
from benchmarks.timing import Ratio, Row

pytestmark = pytest.mark.usefixtures("as_before")


def part(monkeypatch, *rows):
    """A part of the benchmarks that finds these rows."""
    module = types.ModuleType("benchmarks.growth")
    module.TITLE = "Growth"
    module.measure = lambda *, quick: iter(rows)
    monkeypatch.setitem(sys.modules, "benchmarks.growth", module)


def row(value, limit=None, **options):
    return Row("wrn", "this / that", Ratio(value, value, value), limit, **options)


def run(out):
    return command.main(command.Settings(only=("growth",), out=out))


def test_it_keeps_what_it_found(monkeypatch, tmp_path):
    part(monkeypatch, row(0.8, 0.9, numbers={"step_ms": 3.0}), row(1.2))
    assert run(tmp_path / "new" / "mine") == 0
    kept = json.loads((tmp_path / "new" / "mine" / "bench.json").read_text())
    assert [each["ratio"]["value"] for each in kept["rows"]] == [0.8, 1.2]
    assert [each["held"] for each in kept["rows"]] == [True, None]
    assert kept["rows"][0]["numbers"] == {"step_ms": 3.0}
    targets = (tmp_path / "new" / "mine" / "table.txt").read_text()
    assert targets == "wrn  this / that  0.80 (0.80 to 0.80)  at most 0.9\n"


def test_a_target_that_was_missed_is_said(monkeypatch, tmp_path, capsys):
    part(monkeypatch, row(0.9, 0.9), row(1.0, 0.9))
    assert run(tmp_path / "mine") == 1
    assert "at most 0.9, missed" in capsys.readouterr().out


def test_it_overwrites_nothing(monkeypatch, tmp_path):
    part(monkeypatch, row(0.8))
    (tmp_path / "mine").write_text("text")
    assert run(tmp_path / "mine") == 2
    assert (tmp_path / "mine").read_text() == "text"


def test_without_pytorch_what_is_compared_with_it_is_left_out(monkeypatch, tmp_path):
    part(monkeypatch, row(0.8))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    command.main(command.Settings(only=(*command.AGAINST_TORCH, "growth"), out=tmp_path / "mine"))
    kept = json.loads((tmp_path / "mine" / "bench.json").read_text())
    assert list(kept["skipped"]) == [*command.AGAINST_TORCH] and len(kept["rows"]) == 1
