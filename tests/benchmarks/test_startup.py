"""That cold is cold and warm is warm, and that the clock runs from the process's start."""

import dataclasses
import subprocess
import sys
import time

import pytest

from benchmarks import fresh, startup
from benchmarks.cases import Case

TINY = Case("cifar-resnet-8", batch=2, side=8)


def test_imports_are_compared_with_the_bare_ones(monkeypatch):
    codes = []
    monkeypatch.setattr(subprocess, "run", lambda words, **_: codes.append(words[-1]))
    row = startup.imports(rounds=2)
    assert row.what == startup.IMPORTS["ours"] and row.ratio.value > 0
    assert sorted(codes) == sorted([*startup.IMPORTS.values()] * 3)


def test_a_process_that_measures_others_brings_nothing_along():
    code = "import sys, benchmarks.startup; print('jax' in sys.modules, 'torch' in sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=fresh.ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_the_first_step_of_processes_cold_and_warm(monkeypatch):
    processes = []
    call = fresh.call

    def kept(*arguments, **environment):
        processes.append(call(*arguments, **environment))
        return processes[-1]

    monkeypatch.setattr(fresh, "call", kept)
    (row,) = startup.first_steps(TINY, rounds=1, torch=False)
    assert row.compared.endswith("no cache / filled cache") and row.ratio.value > 0
    filling, *others = processes
    assert len(others) == 2
    # The one that fills finds a program that its own beginning has compiled, if any.
    assert filling["misses"] > 0
    assert sorted(bool(each["hits"]) for each in others) == [False, True]
    for each in processes:
        times = [each[f"{part}_s"] for part in ("imported", "prepared", "compiled", "first_step")]
        assert times == sorted(times) and times[0] > 0
    # One initialisation, one batch.
    assert len({each["loss"] for each in processes}) == 1


@pytest.mark.parametrize(
    ("name", "hits", "misses"), [("warm", 0, 5), ("warm", 5, 1), ("warm", 0, 0), ("cold", 1, 0)]
)
def test_a_cache_that_does_not_do_what_it_says_is_an_error(name, hits, misses):
    good = {"cold": [{"hits": 0, "misses": 0}], "warm": [{"hits": 5, "misses": 0}]}
    startup.check_warmth(good)
    bad = {**good, name: [*good[name], {"hits": hits, "misses": misses}]}
    with pytest.raises(RuntimeError, match=f"began {name} found .*'misses': {misses}"):
        startup.check_warmth(bad)


@pytest.mark.slow
def test_torch_makes_the_same_step():
    pytest.importorskip("torch")
    case = dataclasses.asdict(TINY)
    found = fresh.call("benchmarks.startup:first_step_in_torch", time.time(), case)
    assert 0 < found["imported_s"] < found["prepared_s"] <= found["first_step_s"]
    # PyTorch's own initialisation is no Fixup: the loss is not log 10, and finite.
    assert 0 < found["loss"] < 100
