"""What is imported in the processes that are timed."""

import subprocess

from benchmarks import startup


def test_imports_are_compared_with_the_bare_ones(monkeypatch):
    codes = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: codes.append(words[-1]))
    rows = list(startup.measure(quick=True))
    assert [row.what for row in rows] == list(startup.IMPORTS.values())[1:]
    assert sorted(codes) == sorted([*startup.IMPORTS.values()] * 3)
