"""Case 11: a worker is killed with two runs at work. Nothing is made twice, nothing is lost."""

from __future__ import annotations

import time

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import FOUR

CASE = "11 a worker killed with two runs at work; another one takes up its runs"
HERE = "tests.faults.test_case_11_worker_killed"
# Two programs, so that the two runs are in threads of different ones.
AXES = ["scheme=fixup,skipinit", "seed=0:2"]


LASTING = {"seconds": 0.01}


def killed_with_two_at_work(folder, axes, counting):
    process = sweeping.start(folder, axes, workers=2, counting=counting)
    process.until("saved", 2)
    process.kill()
    with sweeping.opened(folder) as book:
        running = [row["key"] for row in book.rows() if row["state"] == "running"]
    assert len(running) == 2
    return process


@pytest.mark.parametrize(
    ("axes", "counting"),
    [
        (FOUR, LASTING),
        pytest.param(FOUR, None, marks=pytest.mark.slow),
        pytest.param(AXES, None, marks=pytest.mark.slow),
    ],
)
def test_nothing_twice_nothing_lost(tmp_path, axes, counting):
    first = killed_with_two_at_work(tmp_path, axes, counting)
    # At once, although the leases last for ten minutes.
    second = sweeping.run(tmp_path, axes, workers=2, counting=counting)
    sweeping.assert_twins(tmp_path, sweeping.twin(axes, counting=counting))
    if counting is None:
        sweeping.assert_moved(tmp_path)
    assert sweeping.assert_nothing_twice(tmp_path) <= 2
    with sweeping.opened(tmp_path) as book:
        attempts = book.attempts()
    lost = {each["key"] for each in attempts if each["outcome"] == "lost"}
    assert len(lost) == 2
    assert {each["pid"] for each in attempts if each["key"] in lost} == {first.pid, second.pid}
    ended = {e["key"] for e in first.events("run_end")}
    assert not ended & {e["key"] for e in second.events("run_begin")}


def believe_all_alive():
    """Control: workers that are not known to be dead."""
    from nf_resnets.sweep import ledger

    ledger.is_dead = lambda worker: False


@pytest.mark.slow
def test_it_is_because_the_worker_is_known_dead(tmp_path):
    killed_with_two_at_work(tmp_path, FOUR, LASTING)
    prepare = f"{HERE}:believe_all_alive"
    second = sweeping.start(tmp_path, FOUR, workers=2, counting=LASTING, prepare=prepare)
    # It takes the other two, and then waits.
    second.until("run_end", 2)
    time.sleep(1)
    with sweeping.opened(tmp_path) as book:
        assert book.counts()["running"] == 2
    second.kill()
