"""Case 10: a run raises. Its traceback is kept, the others go on, retries are capped."""

from __future__ import annotations

import dataclasses

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import TWO

CASE = "10 a run raises, of several in one program"

AXES = ["seed=0:3"]
RAISING = "tests.faults.test_case_10_run_raises:raise_in_{}"


def raise_in_begin():
    """What an initialisation does that cannot cope with its draw."""

    def wrap(program, run):
        def begin(states, slot, settings):
            if settings.seed == 1:
                raise ValueError("no weights for seed 1")
            return program.begin(states, slot, settings)

        return dataclasses.replace(program, begin=begin)

    sweeping.change_programs(wrap)


def raise_in_put():
    """What a disk or a device does that fails when a run goes on."""

    def wrap(program, run):
        def put(states, slot, state):
            if state.seed == 1:
                raise OSError("seed 1 cannot be read")
            return program.put(states, slot, state)

        return dataclasses.replace(program, put=put)

    sweeping.change_programs(wrap)


def raise_in_steps(times):
    """What a device does that fails for everybody now and then."""
    left = [times]

    def wrap(program, run):
        def steps(states, counts):
            if left[0]:
                left[0] -= 1
                raise RuntimeError("the device has hiccups")
            return program.steps(states, counts)

        return dataclasses.replace(program, steps=steps)

    sweeping.change_programs(wrap)


def seeds(folder, state):
    return sorted(seed for seed, row in sweeping.rows_by(folder).items() if row["state"] == state)


def attempts(folder, seed):
    return sweeping.attempts(folder, sweeping.rows_by(folder)[seed]["key"])


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        (TWO, {"counting": {}}),
        (AXES, {"counting": {}, "workers": 1, "runs_per_device": 3}),
        pytest.param(AXES, {"workers": 1, "runs_per_device": 3}, marks=pytest.mark.slow),
    ],
)
def test_it_fails_alone_after_three_attempts_and_can_be_retried(tmp_path, axes, options):
    sweeping.run(tmp_path, axes, prepare=RAISING.format("begin"), seconds=60, **options)
    assert seeds(tmp_path, "failed") == [1]
    others = [seed for seed in range(3 if axes == AXES else 2) if seed != 1]
    assert seeds(tmp_path, "finished") == others
    tried = attempts(tmp_path, 1)
    assert [each["outcome"] for each in tried] == ["raised"] * 3
    for each in tried:
        assert "in begin" in each["traceback"]
        assert each["traceback"].endswith("ValueError: no weights for seed 1\n")
    assert all(len(attempts(tmp_path, seed)) == 1 for seed in others)
    assert sweeping.rows_by(tmp_path)[1]["message"] == "ValueError: no weights for seed 1"

    # Negative control: what has failed differs from the twin, until it is retried with success.
    twin = sweeping.twin(axes, **options)
    with pytest.raises(AssertionError):
        sweeping.assert_twins(tmp_path, twin)
    with sweeping.opened(tmp_path) as book:
        assert book.retry() == 1
    sweeping.run(tmp_path, axes, **options)
    sweeping.assert_twins(tmp_path, twin)
    assert len(attempts(tmp_path, 1)) == 4


# Steps that last, so that a kill comes within the runs.
LASTING = pytest.param({"seconds": 0.004}, id="counting")
COUNTING = pytest.param({}, id="counting")
NETWORKS = pytest.param(None, marks=pytest.mark.slow, id="networks")


@pytest.mark.parametrize("counting", [LASTING, NETWORKS])
def test_it_fails_where_it_goes_on(tmp_path, counting):
    """The run that raises is another one than those that train."""
    options = {"workers": 1, "runs_per_device": 3, "counting": counting}
    process = sweeping.start(tmp_path, AXES, **options)
    process.until("saved", 3)
    process.kill()
    sweeping.run(tmp_path, AXES, prepare=RAISING.format("put"), seconds=60, **options)
    assert seeds(tmp_path, "failed") == [1]
    assert seeds(tmp_path, "finished") == [0, 2]
    assert [len(attempts(tmp_path, seed)) for seed in (0, 2)] == [2, 2]


@pytest.mark.parametrize("counting", [COUNTING, NETWORKS])
@pytest.mark.parametrize("runs", [1, 3])
def test_what_passes_costs_an_attempt_and_no_run(tmp_path, runs, counting):
    options = {"workers": 1, "runs_per_device": runs, "counting": counting}
    sweeping.run(tmp_path, AXES, prepare=[RAISING.format("steps"), 2], seconds=60, **options)
    sweeping.assert_twins(tmp_path, sweeping.twin(AXES, **options))
    assert sweeping.assert_nothing_twice(tmp_path) == 0
    with sweeping.opened(tmp_path) as book:
        outcomes = [each["outcome"] for each in book.attempts()]
    # All that are in slots when it raises have to begin again.
    assert sorted(outcomes) == ["finished"] * 3 + ["raised"] * 2 * runs
