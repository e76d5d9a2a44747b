"""Several processes on one SQLite file: sharing, killed, stopped and forked workers."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from nf_resnets.sweep import ledger as module
from nf_resnets.sweep.ledger import NewRun, is_dead, open_ledger, this_worker

ROOT = Path(__file__).parents[2]

# What a worker does, without the training: it waits for a line, then for each claim writes epochs
# and the end. With "hold" it claims, says so, and waits for another line before it ends its runs;
# with "together" it waits so after its first claim only.
WORKER = """
import sys, time
from nf_resnets.sweep.ledger import NewRun, open_ledger, this_worker
where, runs, mode, lease = sys.argv[1], int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
with open_ledger(where) as ledger:
    new = [NewRun('{"seed": %d}' % i, f"p{i % 4}", i) for i in range(runs)]
    print("added", ledger.add(new), flush=True)
    worker = this_worker("cpu", {})
    while claims := ledger.claim(worker, limit=5 if mode == "hold" else 3, lease_seconds=lease):
        print("claimed", *(claim.key for claim in claims), flush=True)
        if mode in ("hold", "together"):
            sys.stdin.readline()
        mode = "all" if mode == "together" else mode
        for claim in claims:
            kept = ledger.record(claim, worker, [{"epoch": 1, "step": 1}, {"epoch": 2, "step": 2}])
            if mode == "slow":
                time.sleep(0.01)
            ended = ledger.finish(claim, worker, "finished", {"steps": 3}, [{"epoch": 3}])
            print("ended", kept, ended, flush=True)
        if mode == "hold":
            break
"""


class Child:
    """A worker in a process of its own."""

    def __init__(self, where, runs, mode="all", lease=60.0):
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(where), str(runs), mode, str(lease)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, word):
        """The rest of its next line, which begins with the word."""
        line = self.process.stdout.readline().split()
        assert line[:1] == [word], line
        return line[1:]

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """All lines that are left, by their first words."""
        said = collections.defaultdict(list)
        for line in self.process.communicate(timeout=60)[0].splitlines():
            said[line.split()[0]].append(line.split()[1:])
        assert self.process.returncode == 0
        return said


@pytest.fixture
def child():
    started = []

    def start(*arguments, **options):
        started.append(Child(*arguments, **options))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
def test_two_processes_run_each_run_once(child, where):
    """Two workers that make the ledger at the same moment, and share its runs."""
    runs = 200
    both = [child(where, runs, "together") for _ in range(2)]
    for one in both:
        one.says("ready")
    for one in both:
        one.go()
    assert sum(int(one.says("added")[0]) for one in both) == runs
    # Neither goes on before both hold runs, however the machine shares its cores between them.
    shares = [one.says("claimed") for one in both]
    for one in both:
        one.go()
    said = [one.end() for one in both]
    for share, one in zip(shares, said, strict=True):
        assert share
        share += [key for line in one["claimed"] for key in line]
    assert sorted(shares[0] + shares[1]) == sorted(
        NewRun(f'{{"seed": {i}}}', "p", i).key for i in range(runs)
    )
    assert all(line == ["True", "True"] for one in said for line in one["ended"])
    with open_ledger(where, create=False) as ledger:
        assert ledger.counts()["finished"] == runs
        assert [row["outcome"] for row in ledger.attempts()] == ["finished"] * runs
        assert len({row["worker"] for row in ledger.attempts()}) == 2
        assert [row["epoch"] for row in ledger.epochs()] == [1, 2, 3] * runs


@pytest.mark.slow
def test_a_killed_workers_runs_are_taken_at_once(child, where):
    """A worker is killed that holds runs for an hour; another takes them at once."""
    killed = child(where, 5, "hold", 3600.0)
    killed.says("ready")
    killed.go()
    killed.says("added")
    with open_ledger(where) as ledger:
        worker = this_worker("cpu", {})
        # It took five of one program, of which there are two.
        assert len(killed.says("claimed")) == 2
        assert len(ledger.claim(worker, limit=9)) == 1
        assert [len(ledger.claim(worker, limit=9)) for _ in range(3)] == [1, 1, 0]
        killed.process.send_signal(signal.SIGKILL)
        # Dead, and still in the table of processes until its parent asks.
        os.waitid(os.P_PID, killed.process.pid, os.WEXITED | os.WNOWAIT)
        claims = ledger.claim(worker, limit=9)
        assert [claim.attempt for claim in claims] == [2, 2]
        outcomes = [row["outcome"] for row in ledger.attempts(claims[0].key)]
        assert outcomes == ["lost", None]
        assert ledger.finish(claims[0], worker, "finished", {"steps": 1})


@pytest.mark.slow
def test_a_worker_that_was_stopped_for_too_long_can_write_nothing(child, where):
    stopped = child(where, 1, "hold", 0.2)
    stopped.says("ready")
    stopped.go()
    stopped.says("added")
    (key,) = stopped.says("claimed")
    stopped.process.send_signal(signal.SIGSTOP)
    with open_ledger(where) as ledger:
        worker = this_worker("cpu", {})
        claims = []
        deadline = time.monotonic() + 20
        while not claims and time.monotonic() < deadline:
            claims = ledger.claim(worker)
            time.sleep(0.01)
        assert [claim.key for claim in claims] == [key]
        assert ledger.record(claims[0], worker, [{"epoch": 1, "step": 77}])
        stopped.process.send_signal(signal.SIGCONT)
        stopped.go()
        # Neither its epochs nor its end were taken, and it was told so.
        assert stopped.end()["ended"] == [["False", "False"]]
        assert ledger.counts()["running"] == 1
        assert [row["step"] for row in ledger.epochs()] == [77]


@pytest.mark.slow
def test_workers_killed_at_random_lose_and_repeat_nothing(child, where):
    runs, kills = 300, 10
    spread = random.Random(0)
    steady = child(where, runs, "slow")
    steady.says("ready")
    steady.go()
    for _ in range(kills):
        victim = child(where, runs, "slow", 3600.0)
        victim.says("ready")
        victim.go()
        victim.says("added")
        time.sleep(spread.uniform(0.0, 0.1))
        victim.process.kill()
        victim.process.communicate()
    steady.end()
    with open_ledger(where) as ledger:
        worker = this_worker("cpu", {})
        while claims := ledger.claim(worker, limit=3):
            for claim in claims:
                rows = [{"epoch": e} for e in (1, 2, 3)]
                assert ledger.finish(claim, worker, "finished", {"steps": 3}, rows)
        assert ledger.counts()["finished"] == runs
        ended = collections.Counter(row["outcome"] for row in ledger.attempts())
        assert ended["finished"] == runs and set(ended) <= {"finished", "lost"}
        assert ended["lost"] > 0, "no worker was killed while it held a run"
        assert [row["epoch"] for row in ledger.epochs()] == [1, 2, 3] * runs


def test_a_forked_process_has_connections_of_its_own(where):
    with open_ledger(where) as ledger:
        ledger.add([NewRun(f'{{"seed": {i}}}', "p", i) for i in range(40)])
        ledger.claim(this_worker("cpu", {}))
        parents = ledger._read(lambda connection: connection.connection.dbapi_connection)
        with warnings.catch_warnings():
            # Of JAX and of Python, about threads: the child below starts none and ends at once.
            warnings.simplefilter("ignore")
            forked = os.fork()
        worker = this_worker("cpu", {})
        own = False
        try:
            while claims := ledger.claim(worker):
                assert ledger.finish(claims[0], worker, "finished", {})
            now = ledger._read(lambda connection: connection.connection.dbapi_connection)
            own = now is not parents
        finally:
            if forked == 0:
                os._exit(0 if own and ledger.counts()["waiting"] == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0
        outcomes = [row["outcome"] for row in ledger.attempts()]
        assert outcomes == [None] + ["finished"] * 39


# Who is dead


def test_only_a_process_of_this_machine_can_be_known_dead():
    worker = this_worker("cpu", {})
    assert not is_dead(worker)
    if worker.start is not None:
        # Its number was given to another process.
        assert is_dead(dataclasses.replace(worker, start=worker.start - 1))
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead = dataclasses.replace(worker, pid=gone.pid)
    assert is_dead(dead)
    for other in ({"host": "elsewhere"}, {"boot": "before"}, {"boot": worker.boot + "1"}):
        assert not is_dead(dataclasses.replace(dead, **other))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")
def test_a_program_of_any_name_is_read(tmp_path):
    # The name stands in parentheses between the number and the state.
    program = tmp_path / "a) Z 1 (b"
    shutil.copy(shutil.which("sleep"), program)
    sleeper = subprocess.Popen([program, "60"])
    try:
        start, state = module._start(sleeper.pid)
        worker = dataclasses.replace(this_worker("cpu", {}), pid=sleeper.pid, start=start)
        assert state in "RSD" and not is_dead(worker)
        assert start >= this_worker("cpu", {}).start
    finally:
        sleeper.kill()
        # Until it is waited for it is a zombie, which will write nothing more.
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        assert is_dead(worker)
        sleeper.wait()


def test_without_proc_a_process_that_is_there_lives(monkeypatch):
    monkeypatch.setattr(module, "_start", lambda pid: (None, ""))
    worker = this_worker("cpu", {})
    assert worker.start is None and not is_dead(worker)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert is_dead(dataclasses.replace(worker, pid=gone.pid))


def test_another_users_process_lives(monkeypatch):
    def forbidden(pid, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", forbidden)
    assert not is_dead(dataclasses.replace(this_worker("cpu", {}), pid=2**22 + 1))


def test_a_machine_without_proc_is_told_by_its_hardware(monkeypatch):
    class NoFiles:
        def __init__(self, path):
            pass

        def read_text(self):
            raise FileNotFoundError

    assert "/" in module._boot.__wrapped__() or not Path("/proc").exists()
    monkeypatch.setattr(module, "Path", NoFiles)
    assert len(module._boot.__wrapped__()) == 12
