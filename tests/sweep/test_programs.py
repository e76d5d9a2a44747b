"""How many runs a device carries: tried from few to many, remembered, overridden."""

from __future__ import annotations

import time
import weakref
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from nf_resnets.sweep import open_ledger, programs

RUN = SimpleNamespace(program="p", label="a run")


def pretend(monkeypatch, seconds):
    """Programs whose step takes so long for so many runs; builds are counted."""
    built = []

    def build(runs):
        if seconds[runs] is None:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
        built.append(runs)
        return SimpleNamespace(runs=runs, compile_seconds=7.0)

    monkeypatch.setattr(programs, "seconds_per_step", lambda program, _: seconds[program.runs])
    return build, built


@pytest.mark.parametrize(
    ("seconds", "best", "tried"),
    [
        ({1: 1.0, 2: 2.0}, 1, [1, 2]),  # together they take longer: a CPU
        ({1: 1.0, 2: 0.95, 4: 0.1}, 1, [1, 2]),  # too little gained to go on
        ({1: 1.0, 2: 0.5, 4: 0.3, 8: 0.29}, 4, [1, 2, 4, 8]),
        ({1: 1.0, 2: 0.5, 4: 0.25, 8: 0.12, 16: 0.06}, 16, [1, 2, 4, 8, 16]),
        ({1: 1.0, 2: 0.5, 4: None}, 2, [1, 2]),  # four do not fit
    ],
)
def test_more_runs_are_tried_for_as_long_as_they_pay(monkeypatch, seconds, best, tried):
    build, built = pretend(monkeypatch, seconds)
    assert programs.measure(build, None) == (best, seconds[best], 7.0)
    assert built == tried


def test_a_program_that_does_not_fit_at_all_says_so(monkeypatch):
    build, _ = pretend(monkeypatch, {1: None})
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        programs.measure(build, None)


def test_what_was_measured_is_remembered_and_the_user_has_the_last_word(monkeypatch, tmp_path):
    build, built = pretend(monkeypatch, {1: 1.0, 2: 0.4, 4: 0.39})
    task = SimpleNamespace(
        start=lambda run: None,
        build=lambda run, mesh, *, runs_per_device, vectorize: build(runs_per_device),
    )

    def choose(wanted, platform, device="GPU"):
        chip = SimpleNamespace(platform=platform)
        mesh = SimpleNamespace(devices=np.array([[chip]], dtype=object))
        found = programs.Programs(
            task, mesh, None, programs.Execution(runs_per_device=wanted), book, device
        )
        return found._choose(RUN)

    with open_ledger(tmp_path / "ledger.db") as book:
        assert choose(3, "gpu") == 3
        assert choose(0, "cpu") == 1
        assert not built
        assert choose(0, "gpu") == 2
        assert built == [1, 2, 4]
        assert choose(0, "gpu") == 2
        assert built == [1, 2, 4]
        assert choose(0, "gpu", "another GPU") == 2
        assert len(built) == 6


def test_a_step_s_seconds_are_those_of_one_run():
    calls = []

    def steps(states, counts):
        calls.append(counts.tolist())
        time.sleep(0.02)
        return SimpleNamespace(states=states)

    program = SimpleNamespace(
        slots=4, empty=lambda: np.zeros(4), begin=lambda states, slot, run: states,
        steps=steps,
    )  # fmt: skip
    found = programs.seconds_per_step(program, None, at_least=0.05)
    # At least what was slept; a busy machine makes it longer.
    assert 0.005 <= found < 0.05
    assert calls[0] == [1, 1, 1, 1]


def test_a_sweep_s_time_is_its_runs_spread_over_workers():
    run = SimpleNamespace(num_steps=100)
    costs = [
        programs.Cost(run, runs=10, seconds_per_step=0.01, compile_seconds=5, known=True),
        programs.Cost(run, runs=20, seconds_per_step=0.02, compile_seconds=7, known=True),
    ]
    assert costs[0].seconds == pytest.approx(15)
    assert programs.total(costs, workers=1) == pytest.approx(15 + 47)
    assert programs.total(costs, workers=2) == pytest.approx(31)
    assert programs.total([], workers=2) == 0


@pytest.mark.parametrize(
    ("platform", "chosen", "stored"),
    [("cpu", None, None), ("gpu", None, "compiled"), ("tpu", "mine", "mine")],
)
def test_programs_are_stored_but_on_a_cpu(monkeypatch, tmp_path, platform, chosen, stored):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform=platform)])
    try:
        jax.config.update(names[0], chosen and str(tmp_path / chosen))
        programs.store_programs(tmp_path)
        assert jax.config.jax_compilation_cache_dir == (stored and str(tmp_path / stored))
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def test_a_program_is_kept_for_as_long_as_a_thread_uses_it():
    class Program:
        slots, mesh, compile_seconds = 1, SimpleNamespace(), 7.0

    class Task:
        def build(self, run, mesh, **_):
            return Program()

    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform="cpu")]))
    callback = SimpleNamespace(
        on_compile_begin=lambda *_: None, on_compile_end=lambda *_: None
    )  # fmt: skip
    made = programs.Programs(Task(), mesh, callback, programs.Execution())
    first = weakref.ref(made.get(RUN))
    assert made.get(RUN) is first()
    made.release("p")
    assert made.built == {"p": first()}
    made.release("p")
    assert first() is None and made.built == {}
    assert made.compiled == {"p": (1, Program.mesh, 7.0)}
    assert made.get(RUN) is made.built["p"]  # compiled anew
