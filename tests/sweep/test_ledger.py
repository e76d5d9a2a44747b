"""What a ledger promises, in SQLite and in PostgreSQL; and what it refuses to open."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import sqlite3
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from nf_resnets.sweep import schema
from nf_resnets.sweep.ledger import LedgerError, NewRun, Worker, open_ledger, this_worker

EPOCH = {"epoch", "step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds",
         "measures"}  # fmt: skip


def run(position: int, program: str = "p", **settings) -> NewRun:
    text = json.dumps({"seed": position, **settings}, sort_keys=True)
    return NewRun(text, program, position, json.dumps({"num_steps": 10 * position}))


@pytest.fixture
def ledger(where):
    with open_ledger(where) as opened:
        yield opened


@pytest.fixture
def worker():
    return this_worker("cpu", {"jax": "0.10.2"})


@pytest.fixture
def other():
    return this_worker("cpu", {"jax": "0.10.2"})


def everything(ledger):
    """All that a worker can write, without the times."""
    attempts = [
        {name: value for name, value in row.items() if not name.endswith("_at")}
        for row in ledger.attempts()
    ]
    return ledger.rows(), ledger.epochs(), attempts


# Adding and claiming


def test_adding_leaves_what_is_there_untouched(ledger):
    runs = [run(2), run(0), run(1)]
    assert ledger.add(runs) == 3
    before = ledger.rows()
    assert [row["seed"] for row in before] == [0, 1, 2]
    changed = NewRun(runs[0].settings, "other", -5, '{"num_steps": 1}')
    # One is there, one is new, and one is new and given twice.
    assert ledger.add([changed, run(7), run(8), run(8)]) == 2
    assert ledger.rows()[:3] == before
    assert ledger.add([]) == 0
    added = [run(0), run(1), run(2), run(7), run(8)]
    assert [row["key"] for row in ledger.rows()] == [row.key for row in added]


def test_rows_have_the_value_that_a_runs_text_leaves_out(ledger):
    """Without it the runs of sgd have no optimizer beside those of adamw."""
    ledger.add([run(0), run(1, optimizer="adamw")])
    assert [row["optimizer"] for row in ledger.rows()] == ["sgd", "adamw"]
    assert [row["optimizer"] for row in ledger.rows([run(0).key])] == ["sgd"]
    # Of other settings nothing is known.
    assert "dtype" not in ledger.rows()[0]


def test_a_claim_takes_runs_of_one_program_in_order(ledger, worker, other):
    ledger.add([run(0, "b"), run(1, "a"), run(2, "b"), run(3, "b"), run(4, "a")])
    claims = ledger.claim(worker, limit=2)
    assert [(c.settings, c.program, c.attempt) for c in claims] == [
        (run(0).settings, "b", 1),
        (run(2).settings, "b", 1),
    ]
    assert json.loads(claims[1].resolved) == {"num_steps": 20}
    # The first waiting run is now of another program, and one is left of the first.
    assert [c.program for c in ledger.claim(other, limit=5)] == ["a", "a"]
    assert [c.key for c in ledger.claim(worker, limit=5)] == [run(3).key]
    assert ledger.claim(worker, limit=5) == []
    assert ledger.counts() == {
        "waiting": 0, "running": 5, "finished": 0, "diverged": 0, "failed": 0, "oom": 0
    }  # fmt: skip


def test_a_claim_can_name_and_avoid_programs(ledger, worker):
    ledger.add([run(i, "abcd"[i // 50]) for i in range(200)])
    assert [c.program for c in ledger.claim(worker, program="c")] == ["c"]
    assert ledger.claim(worker, program="nothing") == []
    # The first run of neither a nor b, behind more runs than one look reads.
    (claim,) = ledger.claim(worker, not_programs=("a", "b"))
    assert claim.key == run(101).key
    assert len(ledger.claim(worker, not_programs=("a", "b", "c"), limit=60)) == 50
    # No other waits: the first that was to be avoided.
    (claim,) = ledger.claim(worker, not_programs=["a", "b", "c", "d"])
    assert claim.key == run(0).key


def test_a_claim_can_be_limited_to_a_part_of_the_ledger(ledger, worker):
    runs = [run(i, "ab"[i % 2]) for i in range(400)]
    ledger.add(runs)
    # Far behind the others, so that the looks go over several pages.
    part = frozenset(r.key for r in runs[300:310])
    claims = [ledger.claim(worker, keys=part)[0] for _ in range(4)]
    assert [c.key for c in claims] == [r.key for r in runs[300:308:2]]
    assert ledger.counts(part)["running"] == 4 and ledger.counts()["running"] == 4
    # One goes back to where has been looked already; in the end it is found all the same.
    assert ledger.release(claims[0], worker)
    rest = {c.key for _ in range(7) for c in ledger.claim(worker, keys=part)}
    assert rest == part - {c.key for c in claims[1:]}
    assert ledger.claim(worker, keys=part) == []
    assert ledger.claim(worker, keys=()) == []
    # Any collection will do, and a later run is found too.
    ledger.add([run(1000)])
    assert [c.key for c in ledger.claim(worker, keys=[*part, run(1000).key])] == [run(1000).key]
    assert sorted(row["key"] for row in ledger.rows(part)) == sorted(part)
    everyone = [r.key for r in runs] * 3
    assert len(ledger.rows(everyone)) == 400 and ledger.counts(everyone)["running"] == 10


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"lease_seconds": 0}, {"lease_seconds": -1}])
def test_a_claim_of_nothing_is_refused(ledger, worker, arguments):
    with pytest.raises(LedgerError, match="expected at least 1 run and more than 0 seconds"):
        ledger.claim(worker, **arguments)


# Leases


def test_a_lease_that_ran_out_lets_another_worker_take_the_run(ledger, worker, other):
    ledger.add([run(0)])
    (stale,) = ledger.claim(worker, lease_seconds=0.05)
    assert ledger.record(stale, worker, [{"epoch": 1, "train_loss": 1.0}])
    time.sleep(0.1)
    (claim,) = ledger.claim(other)
    assert (claim.key, claim.attempt) == (stale.key, 2)
    assert ledger.record(claim, other, [{"epoch": 1, "train_loss": 2.0}])
    before = everything(ledger)
    # The first worker can write nothing any more.
    assert ledger.heartbeat(worker, [stale.key]) == set()
    assert not ledger.record(stale, worker, [{"epoch": 1, "train_loss": 3.0}])
    assert not ledger.finish(stale, worker, "finished", {"steps": 3}, [{"epoch": 2}])
    assert ledger.fail(stale, worker, "late", max_attempts=1) == "running"
    assert not ledger.release(stale, worker)
    # Nor can one worker with another's claim, or with its own earlier attempt.
    assert not ledger.record(claim, worker, [{"epoch": 3}])
    assert not ledger.record(stale, other, [{"epoch": 3}])
    assert everything(ledger) == before
    assert ledger.finish(claim, other, "finished", {"steps": 9})
    assert [row["outcome"] for row in ledger.attempts()] == ["lost", "finished"]
    assert [row["train_loss"] for row in ledger.epochs()] == [2.0]


def test_a_heartbeat_keeps_runs(ledger, worker, other):
    ledger.add([run(0), run(1)])
    first, second = ledger.claim(worker, limit=2, lease_seconds=0.3)
    assert ledger.heartbeat(worker, [first.key], lease_seconds=60) == {first.key}
    time.sleep(0.35)
    # Only the run that was not renewed is to be had.
    assert [c.key for c in ledger.claim(other, limit=2)] == [second.key]
    assert ledger.heartbeat(worker, [first.key, second.key, "nothing"]) == {first.key}
    assert ledger.heartbeat(other, [first.key, second.key]) == {second.key}
    assert ledger.heartbeat(worker, []) == set()


def test_the_runs_of_a_dead_worker_are_taken_at_once(ledger, worker, other):
    gone = subprocess.Popen(["true"])
    gone.wait()
    dead = dataclasses.replace(worker, pid=gone.pid)
    ledger.add([run(0), run(1)])
    (lost,) = ledger.claim(dead, lease_seconds=3600)
    claims = ledger.claim(other, limit=2)
    assert [(claim.key, claim.attempt) for claim in claims] == [(lost.key, 2), (run(1).key, 1)]
    assert [row["outcome"] for row in ledger.attempts(lost.key)] == ["lost", None]
    assert not ledger.finish(lost, dead, "finished", {})


def test_a_lease_that_ran_out_can_be_renewed_until_another_takes_the_run(ledger, worker):
    ledger.add([run(0)])
    (claim,) = ledger.claim(worker, lease_seconds=0.01)
    time.sleep(0.05)
    # A worker does not take its runs from itself.
    assert ledger.claim(worker) == []
    assert ledger.heartbeat(worker, [claim.key]) == {claim.key}
    assert ledger.record(claim, worker, [{"epoch": 1}])
    assert ledger.claim(worker) == []


def test_leases_go_by_the_clock_of_the_database(ledger, worker, other, monkeypatch):
    ledger.add([run(0)])
    # A machine whose clock is a day late.
    monkeypatch.setattr(time, "time", lambda: 0.0)
    ledger.claim(worker, lease_seconds=60)
    monkeypatch.undo()
    assert ledger.claim(other) == []
    (row,) = ledger.attempts()
    # Both clocks are this machine's; a claim takes no minute.
    assert abs(row["started_at"] - time.time()) < 60


# Results


def test_epochs_are_written_once_each_and_written_anew(ledger, worker):
    ledger.add([run(0), run(1)])
    claim, _ = ledger.claim(worker, limit=2)
    row = {
        "epoch": np.int64(1), "step": 5, "train_loss": np.float32(0.5), "train_accuracy": math.nan,
        "test_loss": math.inf, "test_accuracy": np.array(0.25), "seconds": None, "measures": None,
    }  # fmt: skip
    assert row.keys() == EPOCH
    assert ledger.record(claim, worker, [row, {"epoch": 2}])
    assert ledger.record(claim, worker, [{"epoch": 2, "train_loss": -math.inf, "step": 10}])
    assert ledger.record(claim, worker, [])
    common = {"key": claim.key, "attempt": 1, "train_accuracy": None, "test_loss": None,
              "seconds": None, "measures": {}}  # fmt: skip
    assert ledger.epochs(claim.key) == ledger.epochs() == [
        {**common, "epoch": 1, "step": 5, "train_loss": 0.5, "test_accuracy": 0.25},
        {**common, "epoch": 2, "step": 10, "train_loss": None, "test_accuracy": None},
    ]  # fmt: skip
    assert type(ledger.epochs()[0]["step"]) is int
    assert ledger.epochs("nothing") == []


def test_a_finished_run_has_its_result_and_its_epochs(ledger, worker):
    ledger.add([run(0, rate=0.5)])
    (claim,) = ledger.claim(worker)
    result = {"steps": np.int32(20), "test_accuracy": np.float64(0.75), "test_loss": math.nan,
              "train_loss": 0.5, "message": "fine", "seconds": 1}  # fmt: skip
    assert ledger.finish(claim, worker, "finished", result, [{"epoch": 1, "step": 20}])
    (row,) = ledger.rows()
    finished_at = row.pop("finished_at")
    assert abs(finished_at - time.time()) < 60
    assert row == {
        "seed": 0, "rate": 0.5, "key": claim.key, "program": "p", "state": "finished",
        "attempts": 1, "steps_done": 20, "test_accuracy": 0.75, "test_loss": None,
        "train_loss": 0.5, "train_accuracy": None, "seconds": 1.0, "message": "fine",
        "position": 0, "resolved": {"num_steps": 0},
        "measures": {},
    }  # fmt: skip
    assert [row["step"] for row in ledger.epochs()] == [20]
    (attempt,) = ledger.attempts(claim.key)
    assert attempt["outcome"] == "finished" and attempt["versions"] == {"jax": "0.10.2"}
    assert (attempt["worker"], attempt["pid"]) == (worker.id, os.getpid())
    assert attempt["started_at"] <= attempt["ended_at"]
    # Saying it again changes nothing, and is no error; saying something else is none either.
    before = everything(ledger)
    assert ledger.finish(claim, worker, "finished", {"steps": 1}, [{"epoch": 9}])
    assert not ledger.finish(claim, worker, "diverged", {"steps": 1})
    assert not ledger.record(claim, worker, [{"epoch": 3}])
    assert everything(ledger) == before
    assert ledger.claim(worker) == []


@pytest.mark.parametrize("state", ["diverged", "oom"])
def test_other_ends_are_kept_as_they_are(ledger, worker, state):
    ledger.add([run(0, steps=100)])
    (claim,) = ledger.claim(worker)
    assert ledger.finish(claim, worker, state, {"steps": 3, "train_loss": math.nan})
    (row,) = ledger.rows()
    assert row["state"] == ledger.attempts()[0]["outcome"] == state
    # `steps` is a setting, the budget, and the result of a run, too.
    assert (row["steps"], row["steps_done"]) == (100, 3)
    assert ledger.claim(worker) == []


def test_measures_are_kept_with_runs_and_epochs(ledger, worker):
    """Any mapping that JSON can hold, numbers of NumPy as well; NaN and infinity are None."""
    ledger.add([run(0), run(1)])
    claim, other = ledger.claim(worker, limit=2)
    first = {"multipliers": np.float32([0.5, 1.5]), "norm": {"w": np.float64(2.0)}}
    ledger.record(claim, worker, [{"epoch": 0, "measures": first}, {"epoch": 1}])
    curve = [[10, 2.5, math.nan], (20, math.inf, np.float32(0.5))]
    result = {"steps": 20, "measures": {"curve": curve, "text": "\0\N{SNOWMAN}", "n": np.int32(3)}}
    assert ledger.finish(claim, worker, "finished", result, [{"epoch": 2, "measures": {"a": 1}}])
    assert [row["measures"] for row in ledger.rows()] == [
        {"curve": [[10, 2.5, None], [20, None, 0.5]], "text": "\0\N{SNOWMAN}", "n": 3}, {}
    ]  # fmt: skip
    kept = [{"multipliers": [0.5, 1.5], "norm": {"w": 2.0}}, {}, {"a": 1}]
    assert [row["measures"] for row in ledger.epochs()] == kept
    # They go with the result of which they are a part.
    assert ledger.retry(["finished"]) == 1
    assert ledger.rows()[0]["measures"] == {}
    (claim,) = ledger.claim(worker)
    ledger.record(claim, worker, [{"epoch": 0}])
    assert [row["measures"] for row in ledger.epochs()] == [{}, *kept[1:]]


def test_a_run_that_diverged_has_no_epochs_after_its_end(ledger, worker):
    ledger.add([run(0)])
    (claim,) = ledger.claim(worker)
    ledger.record(claim, worker, [{"epoch": e, "step": 10 * e} for e in (1, 2, 3)])
    ledger.release(claim, worker)
    (claim,) = ledger.claim(worker)
    ledger.finish(claim, worker, "diverged", {"steps": 15}, [{"epoch": 2, "step": 15}])
    assert [(row["step"], row["attempt"]) for row in ledger.epochs()] == [(10, 1), (15, 2)]


@pytest.mark.parametrize(
    ("state", "result", "epochs", "said"),
    [
        ("failed", {}, (), "state is 'failed'; expected 'finished'"),
        ("finished", {"acuracy": 1}, (), "the result has 'acuracy'; expected some of steps"),
        ("finished", {"steps": "many"}, (), "steps is 'many'; expected a number"),
        ("finished", {}, [{"epoch": 1, "loss": 1}], "an epoch's row has 'loss'; expected some of"),
        ("finished", {}, [{"step": 1}], "has no number of the epoch"),
        ("finished", {"measures": [1]}, (), r"measures is \[1\]; expected a mapping"),
        ("finished", {"measures": {"a": {1}}}, (), "measures cannot be kept as JSON: Object of ty"),
        ("finished", {}, [{"epoch": 1, "measures": 0.5}], "measures is 0.5; expected a mapping"),
    ],
)
def test_a_result_that_cannot_be_kept_is_refused(ledger, worker, state, result, epochs, said):
    ledger.add([run(0)])
    (claim,) = ledger.claim(worker)
    before = everything(ledger)
    with pytest.raises(LedgerError, match=said):
        ledger.finish(claim, worker, state, result, epochs)
    assert everything(ledger) == before


def test_a_transaction_happens_whole_or_not_at_all(ledger, worker, monkeypatch):
    ledger.add([run(0)])
    (claim,) = ledger.claim(worker)
    before = everything(ledger)

    def breaks(*arguments, **changes):
        raise RuntimeError("in between")

    monkeypatch.setattr(ledger, "_end", breaks)
    with pytest.raises(RuntimeError, match="in between"):
        ledger.finish(claim, worker, "finished", {"steps": 1}, [{"epoch": 1}])
    assert everything(ledger) == before


# Failures


def test_a_run_that_raises_is_tried_again_and_then_failed(ledger, worker):
    ledger.add([run(0), run(1)])
    states = []
    for attempt in (1, 2, 3):
        (claim,) = ledger.claim(worker, keys=[run(0).key])
        assert claim.attempt == attempt
        states.append(ledger.fail(claim, worker, f"Traceback ...\nValueError: {attempt}\n"))
    assert states == ["waiting", "waiting", "failed"]
    assert ledger.claim(worker, keys=[run(0).key]) == []
    row = ledger.rows()[0]
    assert (row["state"], row["attempts"], row["message"]) == ("failed", 3, "ValueError: 3")
    assert row["finished_at"] is not None and row["test_accuracy"] is None
    attempts = ledger.attempts(run(0).key)
    assert [(a["outcome"], a["traceback"]) for a in attempts] == [
        ("raised", f"Traceback ...\nValueError: {attempt}\n") for attempt in (1, 2, 3)
    ]
    # Saying it again is not counted, and other runs are as they were.
    assert ledger.fail(claim, worker, "again") == "failed"
    assert len(ledger.attempts()) == 3
    assert ledger.rows()[1]["state"] == "waiting"
    with pytest.raises(LedgerError, match="has no run nothing"):
        ledger.fail(type(claim)("nothing", "", "", 1, ""), worker, "")


def test_a_released_run_waits_again_and_has_not_failed(ledger, worker):
    ledger.add([run(0)])
    for _ in range(3):
        (claim,) = ledger.claim(worker)
        assert ledger.release(claim, worker)
        # Idempotent as well.
        assert ledger.release(claim, worker)
    assert [a["outcome"] for a in ledger.attempts()] == ["released"] * 3
    (claim,) = ledger.claim(worker)
    assert claim.attempt == 4
    assert ledger.fail(claim, worker, "E: x") == "waiting"


def test_runs_can_be_tried_anew(ledger, worker):
    ledger.add([run(i) for i in range(4)])
    for i, claim in enumerate(ledger.claim(worker, limit=4)):
        if i < 2:
            ledger.fail(claim, worker, "E: x", max_attempts=1)
        else:
            state = ("oom", "finished")[i - 2]
            ledger.finish(claim, worker, state, {"steps": 1, "message": "m"}, [{"epoch": 1}])
    assert ledger.retry() == 3
    assert ledger.counts()["waiting"] == 3 and ledger.counts()["finished"] == 1
    row = ledger.rows()[0]
    assert (row["steps_done"], row["message"], row["finished_at"]) == (None, None, None)
    assert len(ledger.attempts()) == 4 and len(ledger.epochs()) == 2
    # Counted anew: one failure is not the second.
    (claim,) = ledger.claim(worker)
    assert claim.attempt == 2
    assert ledger.fail(claim, worker, "E: y", max_attempts=2) == "waiting"
    assert ledger.retry(["finished"]) == 1
    assert ledger.retry() == 0
    with pytest.raises(LedgerError, match="states has 'running'"):
        ledger.retry(["running"])


def test_any_text_can_be_kept(ledger, worker):
    ledger.add([run(0)])
    (claim,) = ledger.claim(worker)
    trace = "File '\udcff\0.py'\nUnicodeError: \N{SNOWMAN} '; DROP TABLE runs; --"
    assert ledger.fail(claim, worker, trace, max_attempts=1) == "failed"
    (attempt,) = ledger.attempts()
    assert attempt["traceback"] == trace.replace("\udcff", "\\udcff").replace("\0", "\\0")
    assert ledger.rows()[0]["message"].endswith("\N{SNOWMAN} '; DROP TABLE runs; --")


def test_facts_are_kept(ledger):
    assert ledger.measured("p", "cpu") is None
    for seconds in (0.5, np.float32(0.25)):
        ledger.measure("p", "cpu", runs_per_device=4, seconds_per_step=seconds, compile_seconds=2)
    ledger.measure("p", "tpu", runs_per_device=8, seconds_per_step=math.nan, compile_seconds=1)
    assert ledger.measured("p", "cpu") == {
        "runs_per_device": 4, "seconds_per_step": 0.25, "compile_seconds": 2.0
    }  # fmt: skip
    assert ledger.measured("p", "tpu")["seconds_per_step"] is None


# Threads


def test_several_threads_share_a_ledger(ledger):
    """Two threads of one worker, another worker and a heartbeat: each run exactly once."""
    ledger.add([run(i, f"p{i % 3}") for i in range(60)])
    mine, another = (this_worker("cpu", {}) for _ in range(2))
    claimed, errors, done = [], [], threading.Event()

    def work(worker):
        while claims := ledger.claim(worker, limit=2):
            for claim in claims:
                claimed.append(claim.key)
                assert ledger.record(claim, worker, [{"epoch": 1}])
                assert ledger.finish(claim, worker, "finished", {"steps": 1})

    def beat():
        while not done.wait(0.002):
            ledger.heartbeat(mine, [run(i).key for i in range(60)])
            ledger.counts()

    def safely(work, *arguments):
        try:
            work(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=safely, args=(work, d)) for d in (mine, mine, another)]
    heart = threading.Thread(target=safely, args=(beat,))
    for thread in (*threads, heart):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    heart.join()
    assert errors == []
    assert len(claimed) == 60 and len(set(claimed)) == 60
    assert ledger.counts()["finished"] == len(ledger.epochs()) == len(ledger.attempts()) == 60


# Cost


def test_the_work_of_a_claim_does_not_grow_with_the_ledger(tmp_path, worker):
    """Counted in instructions of SQLite's virtual machine, which are the same each time."""
    counts = {}
    for size in (500, 5_000):
        with open_ledger(tmp_path / f"{size}.db") as ledger:
            # As many programs in both, in turns; a worker holds some runs, and some are done.
            runs = [run(i, f"p{i % 20}") for i in range(size)]
            assert ledger.add(runs) == size
            whole, half = (frozenset(r.key for r in runs[start:]) for start in (0, size // 2))
            for claim in ledger.claim(worker, limit=5):
                ledger.finish(claim, worker, "finished", {"steps": 1})
            ledger.claim(worker, limit=5)
            # A part's runs of a program are looked through once.
            for part in (whole, half):
                for number in range(20):
                    ledger.claim(worker, keys=part, program=f"p{number}")

            steps = [0]

            def count(steps=steps):
                steps[0] += 1
                return 0

            def counted(connection, record, proxy, count=count):
                connection.set_progress_handler(count, 1)

            sa.event.listen(ledger._engine, "checkout", counted)

            def cost(steps=steps, ledger=ledger, **arguments):
                steps[0] = 0
                (claim,) = ledger.claim(worker, **arguments)
                assert ledger.record(claim, worker, [{"epoch": 1}])
                assert ledger.heartbeat(worker, [claim.key])
                assert ledger.finish(claim, worker, "finished", {"steps": 1})
                return steps[0]

            counts[size] = {
                "any": cost(),
                "program": cost(program="p7"),
                "not": cost(not_programs=("p0", "p1")),
                "whole": cost(keys=whole),
                "half": cost(keys=half),
            }
    for kind, small in counts[500].items():
        # The same plan over the same number of rows; a tenth is left for the depth of the trees.
        assert small > 100 and counts[5_000][kind] < 1.1 * small, (kind, counts)


def test_a_claim_reads_one_end_of_an_index(tmp_path, worker):
    with open_ledger(tmp_path / "ledger.db") as ledger:
        ledger.add([run(i) for i in range(10)])
        ledger.claim(worker)
        said = []

        def note(connection, cursor, statement, values, context, many):
            if statement.startswith(("SELECT", "UPDATE")):
                said.append((statement, values))

        sa.event.listen(ledger._engine, "before_cursor_execute", note)
        ledger.claim(worker)
        ledger.claim(worker, keys=frozenset(run(i).key for i in range(5)))
        sa.event.remove(ledger._engine, "before_cursor_execute", note)
        plans = [
            " | ".join(
                row[3]
                for row in ledger._read(
                    lambda connection, said=(statement, values): connection.exec_driver_sql(
                        f"EXPLAIN QUERY PLAN {said[0]}", said[1]
                    ).all()
                )
            )
            for statement, values in said
        ]
    assert len(plans) > 10
    assert sum("runs_by_program (state=? AND program=?)" in plan for plan in plans) >= 3
    for plan in plans:
        assert not re.search("SCAN (runs|drivers|attempts)", plan), plan
        assert "FOR ORDER BY" not in plan, plan


# Opening


def test_a_ledger_is_opened_again_as_it_was_left(where, worker):
    with open_ledger(where) as ledger:
        ledger.add([run(0), run(1)])
        (claim,) = ledger.claim(worker)
        ledger.finish(claim, worker, "finished", {"steps": 1})
        before = everything(ledger)
    with open_ledger(where, create=False) as ledger:
        assert everything(ledger) == before
    # It may be used after close, too.
    assert ledger.counts()["finished"] == 1
    ledger.close()


def test_another_version_is_refused_and_left_alone(where):
    with open_ledger(where) as ledger:
        ledger._write(
            lambda connection: connection.execute(
                sa.update(schema.notes).values(value="7"),
            )
        )
    with pytest.raises(LedgerError, match=r"has version '7'; this nf_resnets .* version 3 and has"):
        open_ledger(where)
    engine = sa.create_engine(schema.locate(where)[0])
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT value FROM notes")) == "7"
    engine.dispose()


def test_somebody_elses_tables_are_refused_and_left_alone(where):
    engine = sa.create_engine(schema.locate(where)[0])
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE runs (x INTEGER)"))
    with pytest.raises(
        LedgerError, match=r"not a ledger of nf_resnets \(it holds the table 'runs'"
    ):
        open_ledger(where)
    with engine.connect() as connection:
        assert sa.inspect(connection).get_table_names() == ["runs"]
    engine.dispose()


def test_there_must_be_a_ledger_where_none_is_to_be_made(where):
    with pytest.raises(LedgerError, match="there is no ledger"):
        open_ledger(where, create=False)
    # It did not make one.
    with pytest.raises(LedgerError, match="there is no ledger"):
        open_ledger(where, create=False)


def test_a_file_is_found_by_path_and_by_url(tmp_path, worker):
    path = tmp_path / "new" / "folder" / "ledger.db"
    with open_ledger(path) as ledger:
        ledger.add([run(0)])
        assert ledger.name == str(path)
        files = {p.name for p in path.parent.iterdir()}
        assert files == {"ledger.db", "ledger.db-wal", "ledger.db-shm"}
        with ledger._engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1
            assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
    # Closed, it is one file that can be mailed.
    assert [p.name for p in path.parent.iterdir()] == ["ledger.db"]
    with open_ledger(f"sqlite:///{path}") as ledger:
        assert ledger.counts()["waiting"] == 1


def _other_database(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE mine (x)")
    connection.commit()
    connection.close()


def _cut_ledger(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.add([run(i) for i in range(100)])
    os.truncate(path, path.stat().st_size // 2)


def _cut_page(path: Path) -> None:
    """Less than a page: SQLite takes it for an empty file."""
    _cut_ledger(path)
    content = path.read_bytes()
    path.write_bytes(content[:28] + (1).to_bytes(4, "big") + content[32:2000])


def _flipped_ledger(path: Path) -> None:
    with open_ledger(path) as ledger:
        ledger.add([run(i) for i in range(1000)])
    content = bytearray(path.read_bytes())
    # The header of a page in the middle.
    page = int.from_bytes(content[16:18], "big")
    middle = len(content) // page // 2 * page
    content[middle : middle + 4] = b"\xff\xff\xff\xff"
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(bytes(range(256)) * 32), "file is not a database"),
        (lambda path: path.write_text("rate,accuracy\n0.1,0.9\n"), "file is not a database"),
        (_other_database, r"not a ledger of nf_resnets \(it holds the table 'mine'\)"),
        (_cut_ledger, r"is cut short: \d+ bytes found, \d+ expected"),
        (_cut_page, "is cut short: 2000 bytes found, 4096 expected"),
        (_flipped_ledger, "is damaged|is malformed"),
        (lambda path: path.mkdir(), "is a folder or a device; expected a file"),
    ],
)
def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path, make, said):
    path = tmp_path / "ledger.db"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError, match=said) as caught:
        open_ledger(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert before is None or path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger_if_asked(tmp_path):
    """It is what is left of a worker that was killed while it made one."""
    path = tmp_path / "ledger.db"
    path.touch()
    with pytest.raises(LedgerError, match="there is no ledger in"):
        open_ledger(path, create=False)
    with open_ledger(path) as ledger:
        assert ledger.rows() == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    # Root may write anywhere but into the kernel's own files.
    for path in ("/proc/ledger.db", "/proc/new/ledger.db"):
        with pytest.raises(LedgerError, match=rf"the ledger {path} cannot be (opened|made): \w+"):
            open_ledger(path)
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be made: (File exists|Not a directory)"):
        open_ledger(tmp_path / "file" / "ledger.db")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a folder that is read-only")
def test_a_folder_that_is_read_only_is_said(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match="cannot be opened: unable to open database file"):
        open_ledger(tmp_path / "ledger.db")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mysql://me:hunter2@host/name", r"postgresql://\.\.\., not mysql://"),
        ("postgresql+psycopg2://me:hunter2@host/name", r"not postgresql\+psycopg2://"),
        ("postgresql://me:hunter2@host:port/name", "URL cannot be read; expected postgresql://"),
        ("postgresql://me:pass@hunter2@host/name", "an @ or a slash too many; .* written %40"),
        ("postgresql://me:hunter2@127.0.0.1:1/name", r"postgresql://127.0.0.1:1/name cannot be op"),
        ("postgresql://me@127.0.0.1:1/name?password=hunter2", "cannot be opened: .*refused"),
        ("sqlite://", "is a file, sqlite:///PATH"),
        ("sqlite:///:memory:", "is a file, sqlite:///PATH"),
        ("", "empty name; expected a path or a URL"),
    ],
)
def test_urls_that_lead_nowhere_are_refused_without_the_password(where, said):
    if "127.0.0.1" in where:
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(LedgerError, match=said) as caught:
        open_ledger(where)
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


def test_a_missing_psycopg_is_said(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(LedgerError, match=r"pip install 'nf_resnets\[postgresql\]'"):
        open_ledger("postgresql://host/name")


def test_a_file_system_without_shared_memory_is_said(tmp_path):
    """SQLite's own file system "dotfile" has no shared memory, as some network file systems."""
    path = tmp_path / "ledger.db"
    engine = sa.create_engine(
        "sqlite://",
        creator=lambda: sqlite3.connect(f"file:{path}?vfs=unix-dotfile", uri=True),
        poolclass=sa.pool.NullPool,
    )
    with pytest.raises(
        LedgerError, match=r"cannot have a write-ahead log \(.*'delete'\): its file"
    ):
        schema.prepare(engine, str(path), create=True, patience=0.0)


def test_a_full_disk_is_said_and_nothing_is_half_written(tmp_path, worker):
    with open_ledger(tmp_path / "ledger.db") as ledger:
        ledger.add([run(0), run(1)])
        (claim,) = ledger.claim(worker)
        before = everything(ledger)

        def full(connection, record, proxy):
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")

        sa.event.listen(ledger._engine, "checkout", full)
        with pytest.raises(LedgerError, match="failed: database or disk is full") as caught:
            rows = [{"epoch": e, "train_loss": 0.1} for e in range(10_000)]
            ledger.finish(claim, worker, "finished", {"steps": 1}, rows)
        assert "\n" not in str(caught.value)
        assert everything(ledger) == before


def test_a_file_that_stays_locked_is_said_after_the_patience(tmp_path, worker):
    path = tmp_path / "ledger.db"
    with open_ledger(path, patience=0.3) as ledger:
        ledger.add([run(0)])
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        # Reading does not wait.
        assert ledger.counts()["waiting"] == 1
        with pytest.raises(LedgerError, match="failed: database is locked"):
            ledger.claim(worker)
    # A lock that ends is waited for.
    with open_ledger(path) as ledger:
        released = threading.Timer(0.05, holder.execute, ["ROLLBACK"])
        released.start()
        assert len(ledger.claim(worker)) == 1
        released.join()
        holder.close()


def test_a_transaction_that_writes_has_the_lock_from_its_beginning(tmp_path, worker):
    """Else two that read the same run as waiting fail, one of them, when they write."""
    path = tmp_path / "ledger.db"
    with open_ledger(path) as ledger, open_ledger(path, patience=0.05) as other:
        ledger.add([run(0)])
        with ledger._writer.begin():
            with pytest.raises(LedgerError, match="database is locked"):
                other.claim(worker)
            assert other.counts()["waiting"] == 1
        assert len(other.claim(worker)) == 1


def test_two_workers_are_never_one():
    first, second = (this_worker("cpu", {"jax": "1"}) for _ in range(2))
    assert first.id != second.id and isinstance(first, Worker)
    assert (first.host, first.boot, first.pid, first.start) == (
        second.host, second.boot, second.pid, second.start
    )  # fmt: skip
