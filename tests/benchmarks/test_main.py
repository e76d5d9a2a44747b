"""The command: what it prints and keeps, and when it says that a target was missed."""

from __future__ import annotations

import json
import sys
import types

import jax
import pytest

from benchmarks import __main__ as command
from benchmarks.timing import Ratio, Row


@pytest.fixture(autouse=True)
def compilation_cache():
    before = jax.config.jax_enable_compilation_cache
    yield
    jax.config.update("jax_enable_compilation_cache", before)


def part(monkeypatch, *rows, reason=None):
    """A part of the benchmarks that finds these rows."""
    module = types.ModuleType("benchmarks.depth")
    module.TITLE, module.unavailable = "Depth", lambda: reason
    module.measure = lambda *, quick: iter(rows)
    monkeypatch.setitem(sys.modules, "benchmarks.depth", module)


def row(value, limit=None, **options):
    return Row("depth", "wrn", "this / that", Ratio(value, value, value), limit, **options)


def run(out):
    return command.main(command.Settings(only=("depth",), out=out))


def test_it_keeps_what_it_found(monkeypatch, tmp_path, capsys):
    part(monkeypatch, row(0.8, 0.9, numbers={"step_ms": 3.0}), row(1.2))
    assert run(tmp_path / "new" / "mine") == 0
    kept = json.loads((tmp_path / "new" / "mine" / "bench.json").read_text())
    assert [each["ratio"]["value"] for each in kept["rows"]] == [0.8, 1.2]
    assert [each["held"] for each in kept["rows"]] == [True, None]
    assert kept["rows"][0]["numbers"] == {"step_ms": 3.0}
    assert kept["machine"].keys() >= {"date", "device", "processor", "jax", "python"}
    assert "this / that" in capsys.readouterr().out
    targets = (tmp_path / "new" / "mine" / "table.txt").read_text()
    assert targets == "wrn  this / that  0.80 (0.80 to 0.80)  at most 0.9\n"


@pytest.mark.parametrize(
    ("missed", "words"),
    [(row(1.0, 0.9), "at most 0.9: MISSED"), (row(3.9, 4, at_least=True), "at least 4: MISSED")],
)
def test_a_target_that_was_missed_is_said(monkeypatch, tmp_path, capsys, missed, words):
    part(monkeypatch, row(0.9, 0.9), missed)
    assert run(tmp_path / "mine") == 1
    said = capsys.readouterr().out
    assert words in said and said.count("MISSED") >= 1


def test_what_cannot_be_measured_here_is_left_out_with_the_reason(monkeypatch, tmp_path, capsys):
    part(monkeypatch, reason="no such thing")
    assert run(tmp_path / "mine") == 0
    assert "left out: no such thing" in capsys.readouterr().out
    assert json.loads((tmp_path / "mine" / "bench.json").read_text())["skipped"] == {
        "depth": "no such thing"
    }


def test_it_overwrites_nothing(monkeypatch, tmp_path, capsys):
    part(monkeypatch, row(0.8))
    (tmp_path / "mine").write_text("text")
    assert run(tmp_path / "mine") == 2
    assert "is there already; name a new folder" in capsys.readouterr().err
    assert (tmp_path / "mine").read_text() == "text"
