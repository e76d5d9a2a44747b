"""Case 12: two workers on one ledger, of which one is stopped for longer than its leases."""

from __future__ import annotations

import signal
import time

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import FOUR, TWO

CASE = "12 two workers on one ledger; one killed, or stopped beyond its lease and continued"
HERE = "tests.faults.test_case_12_two_workers"


# Steps that last: two workers are at work at the same time.
LASTING = {"seconds": 0.004}
EITHER = pytest.mark.parametrize(
    "counting",
    [
        pytest.param(LASTING, id="counting"),
        pytest.param(None, marks=pytest.mark.slow, id="networks"),
    ],
)


def begun_once(folder):
    keys = [event["key"] for event in sweeping.events(folder, "run_begin")]
    assert len(keys) == len(set(keys)), "a run was begun twice"


@EITHER
def test_side_by_side_each_point_is_made_once(tmp_path, record_property, counting):
    twin = sweeping.twin(FOUR, counting=counting)
    workers = [sweeping.start(tmp_path, FOUR, workers=1, counting=counting) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    begun_once(tmp_path)
    record_property("tries", len(sweeping.events(tmp_path, "run_begin")))
    assert all(worker.events("run_end") for worker in workers), "one worker did nothing"
    sweeping.assert_twins(tmp_path, twin)
    assert sweeping.assert_nothing_twice(tmp_path) == 0
    with sweeping.opened(tmp_path) as book:
        assert [row["attempts"] for row in book.rows()] == [1] * 4


def claim_carelessly():
    """Claims that look, and write nothing down."""
    from nf_resnets.sweep import ledger

    def claim(self, worker, **options):
        with self._engine.connect() as connection:
            (name, *_) = self._waiting_programs(connection, ())
            (run,) = self._take(connection, name, 1, None)
        names = ("key", "settings", "program", "resolved")
        return [ledger.Claim(**{name: run[name] for name in names}, attempt=1)]

    ledger.Ledger.claim = claim


def test_claims_without_compare_and_set_are_noticed(tmp_path):
    """Negative control."""
    options = {"workers": 1, "prepare": f"{HERE}:claim_carelessly", "counting": LASTING}
    workers = [sweeping.start(tmp_path, TWO, **options) for _ in range(2)]
    for worker in workers:
        worker.until("run_begin")
        worker.kill()
    with pytest.raises(AssertionError, match="begun twice"):
        begun_once(tmp_path)


@EITHER
def test_the_runs_of_a_killed_one_are_taken_up_at_once(tmp_path, counting):
    """The lease would last for ten minutes more."""
    twin = sweeping.twin(FOUR, counting=counting)
    first, second = (sweeping.start(tmp_path, FOUR, workers=1, counting=counting) for _ in range(2))
    first.until("saved")
    first.kill()
    assert second.wait(60) == 0
    sweeping.assert_twins(tmp_path, twin)
    assert sweeping.assert_nothing_twice(tmp_path) <= 1
    with sweeping.opened(tmp_path) as book:
        outcomes = [each["outcome"] for each in book.attempts()]
    assert sorted(outcomes) == ["finished"] * 4 + ["lost"]


AT = {"run_begin": {"kind": "run_begin"}, "saved": {"kind": "step", "step": 44}}


def stopped(folder, moment):
    """A worker that was stopped at a moment, and the run that it was training."""
    first = sweeping.start(folder, TWO, workers=1, lease_seconds=1.5)
    # While it tests its second epoch, and not within a transaction: SQLite's lock would be stopped
    # with it, for everybody.
    key = first.until(**AT[moment])["key"]
    first.send(signal.SIGSTOP)
    return first, key


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["saved", "run_begin"])
def test_one_that_was_stopped_drops_its_runs(tmp_path, moment):
    """With a checkpoint, whose folder the stopped process holds, and before it has any."""
    twin = sweeping.twin(TWO)
    first, key = stopped(tmp_path, moment)
    second = sweeping.start(tmp_path, TWO, workers=1, lease_seconds=1.5)
    taken_by(tmp_path, key, 2)
    first.send(signal.SIGCONT)
    continued = time.time()
    assert [first.wait(60), second.wait(60)] == [0, 0], first.said()
    tried = sweeping.attempts(tmp_path, key)
    assert tried[0]["outcome"] == "lost"
    assert tried[-1]["outcome"] == "finished"
    sweeping.assert_twins(tmp_path, twin)
    # Of the run that was taken from it the stopped one has written nothing, unless it got it back.
    if all(each["pid"] == second.pid for each in tried[1:]):
        late = [
            event
            for kind in ("saved", "run_end")
            for event in first.events(kind)
            if event["key"] == key and event["time"] >= continued
        ]
        # Only the save that it was stopped in, whose lock it held all along, may come to an end.
        assert [event["kind"] for event in late].count("saved") <= 1
        assert all(event["state"] == "lost" for event in late if event["kind"] == "run_end")


def taken_by(folder, key, attempt, seconds=30):
    """Waits until a run has been claimed so often."""
    end = time.monotonic() + seconds
    with sweeping.opened(folder) as book:
        while len(book.attempts(key)) < attempt:
            assert time.monotonic() < end, f"{key} was never claimed again"
            time.sleep(0.02)


def never_beat():
    """A heartbeat that always comes too late, as after a machine was asleep."""
    from nf_resnets.sweep import claims

    claims.Claims.beat = lambda self: None


@EITHER
def test_a_worker_does_not_take_its_runs_from_itself(tmp_path, counting):
    """Two threads, whose leases have run out by the time at which they claim."""
    options = {"workers": 2, "lease_seconds": 0.05, "prepare": f"{HERE}:never_beat"}
    sweeping.run(tmp_path, FOUR, counting=counting, seconds=60, **options)
    sweeping.assert_twins(tmp_path, sweeping.twin(FOUR, counting=counting))
    begun_once(tmp_path)


@pytest.fixture
def postgres():
    from tests.sweep.postgres import NoServer, server

    try:
        with server() as url:
            yield url
    except NoServer as reason:
        pytest.skip(str(reason))


@pytest.mark.slow
def test_on_postgresql(tmp_path, postgres):
    twin = sweeping.twin(FOUR)
    first, *others = (sweeping.start(tmp_path, FOUR, workers=1, ledger=postgres) for _ in range(3))
    first.until("step")
    first.kill()
    assert [worker.wait(120) for worker in others] == [0, 0]
    sweeping.assert_twins(tmp_path, twin, ledger=postgres)
    assert sweeping.assert_nothing_twice(tmp_path) <= 1
