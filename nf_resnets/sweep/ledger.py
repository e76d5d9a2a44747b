"""The ledger of a sweep: which runs there are, who runs which, and what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import os
import random
import secrets
import socket
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from nf_resnets.sweep import schema
from nf_resnets.sweep.schema import (
    COVERED,
    EPOCH,
    RESULTS,
    SALVAGE,
    Damage,
    LedgerError,
    attempts,
    checksum,
    decoded,
    epochs,
    measurements,
    now,
    programs,
    runs,
    workers,
)  # fmt: skip
from nf_resnets.sweep.task import LATER

__all__ = [
    "COLUMNS", "Claim", "Ledger", "LedgerError", "NewRun", "Worker", "is_dead",
    "open_ledger", "this_worker",
]  # fmt: skip

T = TypeVar("T")
Row = sa.RowMapping

# What a row says of a run besides its settings.
COLUMNS = (
    "key", "program", "position", "state", "attempts", "steps_done", "test_accuracy", "test_loss",
    "train_loss", "train_accuracy", "seconds", "message", "finished_at", "resolved", "measures",
)  # fmt: skip
# `steps` is a field of the settings, too: the budget.
RENAMED = {"attempts": "attempt", "steps_done": "steps"}
# Seconds, four months: beyond it is no lease but a slip, or a damaged number.
LONGEST_LEASE = 10_000_000
CHANGED = (*COVERED["runs"], "measures")
WHOLE = sa.select(*(runs.c[name] for name in ("id", "settings", "checksum", *CHANGED)))
ORDER = (runs.c.position, runs.c.id)
ENDED = ("finished", "diverged", "failed", "oom")
IS_WAITING = runs.c.state == "waiting"
IS_RUNNING = runs.c.state == "running"


# Workers


@dataclasses.dataclass(frozen=True)
class Worker:
    """A process that claims runs; no two ever have the same id."""

    id: str
    host: str
    boot: str  # tells one start of a machine, and one container on it, from all others
    pid: int
    start: int | None  # of the process, in clock ticks since the boot, where that is known
    device: str
    versions: str  # JSON


def this_worker(device: str, versions: Mapping[str, str]) -> Worker:
    """A worker for the present process; its runs run on the device. Two calls make two workers."""
    host, pid = socket.gethostname(), os.getpid()
    name = f"{host}-{pid}-{secrets.token_hex(4)}"
    found = json.dumps(dict(versions), sort_keys=True)
    return Worker(name, host, _boot(), pid, _start(pid)[0], device, found)


@functools.cache
def _boot() -> str:
    """Tells this machine since its boot, and this container, from all others.

    Host names repeat between containers, and so do the numbers of processes, which belong to a
    namespace; its inode is one of the boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        # No Linux: the hardware address, and no containers.
        return f"{uuid.getnode():012x}"


def _start(pid: int) -> tuple[int | None, str]:
    """When a process started, and its state; None and "" where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None, ""
    # The name of the program, in parentheses, may itself hold spaces and parentheses.
    fields = stat.rpartition(")")[2].split()
    return int(fields[19]), fields[0]


def is_dead(worker: Worker) -> bool:
    """Whether a worker ran on this machine, since its last boot, and is gone.

    False if it lives, or if nothing is known about it.
    """
    if (worker.host, worker.boot) != (socket.gethostname(), _boot()):
        return False
    try:
        os.kill(worker.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        # It is there, and another user's.
        pass
    start, state = _start(worker.pid)
    # Z and X: it has ended, and its parent has not asked how.
    return state in ("Z", "X") or (
        start is not None and worker.start is not None and start != worker.start
    )


# Runs


@dataclasses.dataclass(frozen=True)
class NewRun:
    """A run to be added."""

    settings: str  # canonical JSON; a run exists once for each
    program: str  # runs of equal names share compiled functions
    position: int  # runs are claimed in this order
    resolved: str = "{}"  # JSON of what follows from the settings

    @property
    def key(self) -> str:
        """SHA-256 of `settings`, 64 hexadecimal digits."""
        return hashlib.sha256(self.settings.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run that a worker holds, as `NewRun`; the attempt tells this claim from later ones."""

    key: str
    settings: str
    program: str
    attempt: int
    resolved: str


# What is written


def _number(name: str, value: Any) -> float | int | None:
    """A number that both databases can hold and compare: NaN and infinity are NULL."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{name} is {value!r}; expected a number") from error
    if not math.isfinite(number):
        return None
    return int(number) if name in ("epoch", "step", "steps") else number


def _text(name: str, value: Any) -> str | None:
    """A text that both databases can hold: PostgreSQL has no NUL, and neither lone surrogates."""
    if value is None:
        return None
    return str(value).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _json(name: str, value: Any) -> str | None:
    """JSON of a mapping; NaN and infinity are null, arrays are lists, an empty mapping is NULL."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        # Of arrays and numbers of NumPy and JAX.
        return plain(value.tolist()) if hasattr(value, "tolist") else value

    if not isinstance(value, Mapping | None):
        raise LedgerError(f"{name} is {value!r}; expected a mapping")
    try:
        return json.dumps(plain(value), allow_nan=False) if value else None
    except (TypeError, ValueError) as error:
        raise LedgerError(f"{name} cannot be kept as JSON: {error}") from error


def _columns(what: str, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The columns of these names, and measures, with NULL for what is not given."""
    names = (*names, "measures")
    for name in given:
        if name not in names:
            # Its numbers would be lost.
            raise LedgerError(f"{what} has {name!r}; expected some of {', '.join(names)}")
    convert = {"message": _text, "measures": _json}
    values = {name: convert.get(name, _number)(name, given.get(name)) for name in names}
    if values.get("epoch", 0) is None:
        raise LedgerError(f"{what} has no number of the epoch: {dict(given)!r}")
    return values


# The ledger


def open_ledger(where: str | Path, *, create: bool = True, patience: float = 30.0) -> Ledger:
    """Opens a ledger, or makes one where nothing is yet.

    Args:
      where: the path of an SQLite file, `sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST/NAME`
        for workers on several machines.
      create: whether to make a ledger where there is none.
      patience: seconds to wait for a file that others have locked, or a server that is away.

    Raises:
      LedgerError: what is there is no ledger, or one of another version; it is left as it is. Or
        it cannot be opened.
    """
    url, name = schema.locate(where)
    engine = schema.open_engine(url, name, patience=patience)
    try:
        schema.prepare(engine, name, create=create, patience=patience)
    except BaseException:
        engine.dispose()
        raise
    return Ledger(engine, name, patience)


class Ledger:
    """Runs, their claims and their results in a database; `open_ledger` makes one.

    Several threads and processes may use it at once. Each method is one transaction: it happens
    whole or not at all. Each raises `LedgerError` if the database cannot do it, or if a row that it
    reads is not as it was written: the sentence names the row.

    Attributes:
      name: where it is, without user and password.
    """

    def __init__(self, engine: sa.Engine, name: str, patience: float) -> None:
        self.name = name
        self._engine = engine
        self._writer = engine.execution_options(writes=True)
        self._patience = patience
        self._is_file = engine.dialect.name == "sqlite"
        # INSERT that can say ON CONFLICT.
        self._insert: Any = sqlite.insert if self._is_file else postgresql.insert
        self._inode = self._find_inode()
        self._pid = os.getpid()
        # Threads of one process wait here: SQLite itself would have them sleep and try again.
        self._writing = threading.Lock()
        # The ids of waiting runs, for a part of the ledger and a program. See `_take`.
        self._queues: dict[tuple[frozenset[str], str], list[int]] = {}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections; the ledger opens new ones if it is used again."""
        self._engine.dispose()

    def _find_inode(self) -> tuple[int, int] | None:
        """Which file SQLite's is; None where it is gone, and for a server."""
        try:
            found = os.stat(str(self._engine.url.database)) if self._is_file else None
        except OSError:
            return None
        return found and (found.st_dev, found.st_ino)

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return self._transaction(self._engine, work)

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return self._transaction(self._writer, work)

    def _transaction(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        if self._pid != os.getpid():
            # A forked process must not touch the connections of its parent.
            self._engine.dispose(close=False)
            self._pid, self._writing = os.getpid(), threading.Lock()
        waits = self._is_file and engine is self._writer
        deadline = time.monotonic() + self._patience
        pause = 0.02
        while True:
            try:
                with self._writing if waits else contextlib.nullcontext(), engine.begin() as begun:
                    return work(begun)
            except sa.exc.SQLAlchemyError as error:
                # Every transaction may be done twice: if the first time did happen after all, the
                # second one finds that.
                if not _passes(error) or time.monotonic() > deadline:
                    fault = schema.one_line(error)
                    raise LedgerError(f"the ledger {self.name} failed: {fault}") from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 1.0)

    def _all(self, query: sa.Select[Any]) -> Sequence[Row]:
        return self._read(lambda connection: connection.execute(query).mappings().all())

    def _decoded(self, table: sa.Table, row: Row) -> dict[str, Any]:
        try:
            return decoded(table, row)
        except Damage as damage:
            raise LedgerError(f"the ledger {self.name} is damaged in {damage}; {SALVAGE}") from None

    def _change(self, connection: sa.Connection, rows: Sequence[Row], **changes: Any) -> None:
        """Changes runs that were read whole in this transaction; nobody holds them by default."""
        new = []
        for row in rows:
            self._decoded(runs, row)
            values = {name: row[name] for name in CHANGED} | changes
            new.append(
                {"worker": None, "lease_until": None, **values, "of_run": row["id"]}
                | {"checksum": checksum(runs, values)}
            )
        connection.execute(sa.update(runs).where(runs.c.id == sa.bindparam("of_run")), new)

    def _put(self, connection: sa.Connection, table: sa.Table, rows: Sequence[Any]) -> None:
        """Inserts rows, or updates what is there under their keys."""
        if rows:
            new = self._insert(table)
            others = {c.name: new.excluded[c.name] for c in table.c if not c.primary_key}
            new = new.on_conflict_do_update(index_elements=list(table.primary_key), set_=others)
            connection.execute(new, rows)

    def add(self, new: Sequence[NewRun]) -> int:
        """Adds the runs whose keys are not there yet; returns how many were new."""
        fresh = dict.fromkeys(CHANGED) | {"state": "waiting", "attempt": 0, "failures": 0}
        # In one order, so that two workers that add at once do not wait in a circle.
        rows = [fresh | vars(run) | {"key": run.key} for run in sorted(new, key=lambda r: r.key)]
        for row in rows:
            row["checksum"] = checksum(runs, row)
        names = [{"name": name} for name in sorted({run.program for run in new})]

        def work(connection: sa.Connection) -> int:
            if not rows:
                return 0
            connection.execute(self._insert(programs).on_conflict_do_nothing(), names)
            insert = self._insert(runs).on_conflict_do_nothing()
            if self._is_file:
                return connection.execute(insert, rows).rowcount
            # psycopg does not say how many of many rows were new.
            return len(connection.execute(insert.returning(runs.c.id), rows).all())

        return self._write(work)

    # Claims

    def claim(
        self, worker: Worker, *, program: str | None = None, not_programs: Collection[str] = (),
        limit: int = 1, lease_seconds: float = 60.0, keys: Collection[str] | None = None,
    ) -> list[Claim]:  # fmt: skip
        """Takes waiting runs of one program; no other worker gets them.

        Runs of others whose lease ran out wait again, and so do those of workers that are known
        dead, at once. The time it takes does not grow with the number of runs.

        Args:
          worker: who claims.
          program: of which program; None for that of the first waiting run.
          not_programs: programs to avoid, as long as runs of another one wait.
          limit: how many runs at most; none if no run waits.
          lease_seconds: for how long the runs are the worker's without a heartbeat.
          keys: claim none but these runs. A frozenset that is kept is looked at once; any other
            collection at each call.
        """
        if limit < 1 or not 0 < lease_seconds <= LONGEST_LEASE:
            raise LedgerError(
                f"limit={limit} and lease_seconds={lease_seconds} found; expected at least 1 run "
                f"and more than 0 seconds, at most {LONGEST_LEASE:,}"
            )
        part = None if keys is None else frozenset(keys)

        def work(connection: sa.Connection) -> list[Claim]:
            self._give_up_lost(connection, worker)
            names = [program] if program else self._waiting_programs(connection, not_programs)
            for name in names:
                taken = self._take(connection, name, limit, part)
                if taken:
                    return self._hold(connection, worker, taken, lease_seconds)
            return []

        return self._write(work)

    def _give_up_lost(self, connection: sa.Connection, worker: Worker) -> None:
        """Lets the runs of others wait again whose lease ran out or whose worker is dead."""
        holders = sa.select(runs.c.worker).where(IS_RUNNING)
        found = connection.execute(sa.select(workers).where(workers.c.id.in_(holders)))
        dead = [row.id for row in found if is_dead(Worker(*row))]
        is_lost = (runs.c.lease_until < now(connection)) | runs.c.worker.in_(dead)
        query = WHOLE.where(IS_RUNNING, is_lost, runs.c.worker != worker.id).with_for_update(
            skip_locked=True
        )
        for run in connection.execute(query).mappings().all():
            self._end(connection, run, "lost", state="waiting")

    def _waiting_programs(self, connection: sa.Connection, avoid: Collection[str]) -> list[str]:
        """The programs of waiting runs, in the order of the runs; those to avoid come last."""
        first = sa.select(sa.func.min(runs.c.position)).where(
            IS_WAITING, runs.c.program == programs.c.name
        )
        found = connection.execute(sa.select(programs.c.name, first.scalar_subquery()))
        order = [(name in avoid, first, name) for name, first in found if first is not None]
        return [name for _, _, name in sorted(order)]

    def _take(
        self, connection: sa.Connection, program: str, limit: int, part: frozenset[str] | None
    ) -> Sequence[Row]:
        """Locks the first waiting runs of a program, and passes over those others have locked.

        For a part of the ledger all waiting runs are looked through once, and again when none of
        those found then is left: a ledger with many other runs would else be read each time.
        """
        waiting = (IS_WAITING, runs.c.program == program)
        whole = WHOLE.where(*waiting).order_by(*ORDER).with_for_update(skip_locked=True)
        if part is None:
            return connection.execute(whole.limit(limit)).mappings().all()
        known = self._queues.get((part, program))
        for queue in (None,) if known is None else (known, None):
            if queue is None:
                query = sa.select(runs.c.id, runs.c.key).where(*waiting).order_by(*ORDER)
                queue = [row.id for row in connection.execute(query) if row.key in part]
            taken: list[Row] = []
            while queue and len(taken) < limit:
                some = limit - len(taken)
                these = whole.where(runs.c.id.in_(queue[:some]))
                taken += connection.execute(these).mappings()
                queue = queue[some:]
            self._queues[part, program] = queue
            if taken:
                return taken
        return []

    def _hold(
        self, connection: sa.Connection, worker: Worker, taken: Sequence[Row], lease: float
    ) -> list[Claim]:
        """Makes locked runs the worker's."""
        insert = self._insert(workers).on_conflict_do_nothing()
        connection.execute(insert, dataclasses.asdict(worker))
        time = now(connection)
        held = {"state": "running", "worker": worker.id, "lease_until": time + lease}
        claims = []
        for run in taken:
            number = run["attempt"] + 1
            settings = {name: run[name] for name in ("key", "settings", "program", "resolved")}
            claims.append(Claim(**settings, attempt=number))
            self._change(connection, [run], **held, attempt=number)
            attempt = {"run": run["id"], "attempt": number, "worker": worker.id}
            connection.execute(sa.insert(attempts), attempt | {"started_at": time})
        return claims

    def heartbeat(
        self, worker: Worker, keys: Collection[str], lease_seconds: float = 60.0
    ) -> set[str]:
        """Renews the leases of runs; returns the keys of those that the worker still holds."""
        # What is written to another file than the one that was opened would be lost.
        if self._inode != self._find_inode():
            raise LedgerError(f"the ledger {self.name} was removed or replaced while it was in use")
        held = (runs.c.key.in_(list(keys)), IS_RUNNING, runs.c.worker == worker.id)

        def work(connection: sa.Connection) -> set[str]:
            until = now(connection) + lease_seconds
            connection.execute(sa.update(runs).where(*held).values(lease_until=until))
            return set(connection.scalars(sa.select(runs.c.key).where(*held)))

        return self._write(work)

    # Results

    def _held(
        self, connection: sa.Connection, claim: Claim, worker: Worker
    ) -> tuple[Row | None, str | None]:
        """The run, locked, if the worker holds it by this claim; and how its attempt ended."""
        attempt = (attempts.c.run == runs.c.id) & (attempts.c.attempt == claim.attempt)
        query = WHOLE.add_columns(attempts.c.outcome).join(attempts, attempt)
        query = query.where(runs.c.key == claim.key, attempts.c.worker == worker.id)
        run = connection.execute(query.with_for_update(of=runs)).mappings().first()
        if run is None:
            return None, None
        is_held = (run["state"], run["attempt"]) == ("running", claim.attempt)
        return run if is_held else None, run["outcome"]

    def _end(
        self, connection: sa.Connection, run: Row, outcome: str, traceback: str | None = None,
        **changes: Any,
    ) -> None:  # fmt: skip
        """Changes a run that is running, and ends its attempt."""
        self._change(connection, [run], **changes)
        attempt = (attempts.c.run == run["id"]) & (attempts.c.attempt == run["attempt"])
        ended = {"outcome": outcome, "traceback": traceback, "ended_at": now(connection)}
        connection.execute(sa.update(attempts).where(attempt).values(**ended))

    def _put_epochs(self, connection: sa.Connection, run: Row, values: Sequence[Any]) -> None:
        rows = [{**row, "run": run["id"], "attempt": run["attempt"]} for row in values]
        for row in rows:
            row["checksum"] = checksum(epochs, {**row, "key": run["key"]})
        self._put(connection, epochs, rows)

    def record(self, claim: Claim, worker: Worker, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Writes down what epochs gave; an epoch that is there already is written anew.

        Args:
          claim: of `claim`, which tells the run.
          worker: who holds the run.
          rows: of each epoch its number and some of `EPOCH`, and measures, a mapping that JSON can
            hold. NaN and infinity become None.

        Returns:
          False, with nothing written, if the worker does not hold the run any more.
        """
        values = [_columns("an epoch's row", row, EPOCH) for row in rows]

        def work(connection: sa.Connection) -> bool:
            run, _ = self._held(connection, claim, worker)
            if run is not None:
                self._put_epochs(connection, run, values)
            return run is not None

        return self._write(work)

    def finish(
        self, claim: Claim, worker: Worker, state: str, result: Mapping[str, Any],
        epochs: Sequence[Mapping[str, Any]] = (),
    ) -> bool:  # fmt: skip
        """Writes down how a run ended.

        Args:
          claim: of `claim`, which tells the run.
          worker: who holds the run.
          state: "finished", "diverged" or "oom".
          result: some of `RESULTS`, and measures, as for `record`.
          epochs: what the last epochs gave, as for `record`.

        Returns:
          False, with nothing written, if the worker does not hold the run any more; True also if
          this very claim had ended this way before.
        """
        if state not in ENDED or state == "failed":
            raise LedgerError(f"state is {state!r}; expected 'finished', 'diverged' or 'oom'")
        columns = _columns("the result", result, RESULTS)
        values = [_columns("an epoch's row", row, EPOCH) for row in epochs]

        def work(connection: sa.Connection) -> bool:
            run, outcome = self._held(connection, claim, worker)
            if run is None:
                return outcome == state
            self._put_epochs(connection, run, values)
            if columns["steps"] is not None:
                # An earlier attempt can have come further than this one, if it did diverge.
                table = schema.epochs.c
                later = (table.run == run["id"]) & (table.step > columns["steps"])
                connection.execute(sa.delete(schema.epochs).where(later))
            ended: dict[str, Any] = {**columns, "state": state, "finished_at": now(connection)}
            self._end(connection, run, state, **ended)
            return True

        return self._write(work)

    def fail(
        self, claim: Claim, worker: Worker, traceback: str, *, message: str | None = None,
        max_attempts: int = 3,
    ) -> str:  # fmt: skip
        """Writes down that a run raised.

        Args:
          claim: of `claim`, which tells the run.
          worker: who holds the run.
          traceback: what it raised; it is kept with the attempt.
          message: what is kept with the run; None for the traceback's last line.
          max_attempts: the run waits again unless it raised this often.

        Returns:
          The state of the run: "waiting" or "failed". If the worker does not hold the run any
          more nothing is written, and it is whatever the run's state is.
        """
        trace = _text("traceback", traceback) or ""
        last = _text("message", message)
        last = trace.strip().rpartition("\n")[2].strip() if last is None else last

        def work(connection: sa.Connection) -> str:
            run, _ = self._held(connection, claim, worker)
            if run is None:
                state = connection.scalar(sa.select(runs.c.state).where(runs.c.key == claim.key))
                if state is None:
                    raise LedgerError(f"the ledger {self.name} has no run {claim.key}")
                return state
            changes = {"state": "waiting", "failures": run["failures"] + 1, "message": last}
            if changes["failures"] >= max_attempts:
                changes |= {"state": "failed", "finished_at": now(connection)}
            self._end(connection, run, "raised", trace, **changes)
            return changes["state"]

        return self._write(work)

    def release(self, claim: Claim, worker: Worker) -> bool:
        """Lets a run wait again at once, which is no failure; returns as `finish`."""

        def work(connection: sa.Connection) -> bool:
            run, outcome = self._held(connection, claim, worker)
            if run is not None:
                self._end(connection, run, "released", state="waiting")
            return run is not None or outcome == "released"

        return self._write(work)

    def retry(
        self, states: Collection[str] = ("failed", "oom"), *, keys: Collection[str] | None = None
    ) -> int:
        """Lets runs of these states, and keys, wait again, with no failures; returns how many."""
        for state in states:
            if state not in ENDED:
                raise LedgerError(f"states has {state!r}; expected some of {', '.join(ENDED)}")
        nothing = dict.fromkeys((*RESULTS, "measures", "finished_at"))

        def work(connection: sa.Connection) -> int:
            query = WHOLE.where(runs.c.state.in_(states)).with_for_update()
            ended = connection.execute(query).mappings().all()
            again = [run for run in ended if keys is None or run["key"] in keys]
            if again:
                self._change(connection, again, state="waiting", failures=0, **nothing)
            return len(again)

        return self._write(work)

    # Reading

    def counts(
        self, keys: Collection[str] | None = None, worker: Worker | None = None
    ) -> dict[str, int]:
        """How many runs have each state, 0 where there is none; of these keys, or all.

        With a worker those that run are counted apart: "running" at it, "elsewhere" at others.
        """
        wanted = None if keys is None else frozenset(keys)
        query = sa.select(runs.c.key, runs.c.state, runs.c.worker)
        counts = dict.fromkeys((*schema.STATES, *(["elsewhere"] if worker else [])), 0)
        for key, state, holder in self._read(lambda connection: connection.execute(query).all()):
            if wanted is None or key in wanted:
                if state not in schema.STATES:
                    raise LedgerError(
                        f"the ledger {self.name} is damaged in the run {key}: its state is "
                        f"{state!r}; {SALVAGE}"
                    )
                others = worker and state == "running" and holder != worker.id
                counts["elsewhere" if others else state] += 1
        return counts

    def rows(self, keys: Collection[str] | None = None) -> list[dict[str, Any]]:
        """One flat row for each run, or for those of these keys, in order.

        All are checked, since it can be the key itself that is damaged.

        Returns:
          In each row all fields of the settings, and `COLUMNS`: attempts counts the claims,
          finished_at is in seconds since 1970, resolved and measures are mappings; None for what is
          not there.
        """
        wanted = None if keys is None else frozenset(keys)
        found = self._mappings(WHOLE.order_by(*ORDER), runs)
        # A run's text leaves out the first value of a setting that was added later.
        there = {name for row in found for name in row["settings"]}
        later = {name: value for name, value in LATER.items() if name in there}
        return [
            {**later, **row["settings"], **{name: row[RENAMED.get(name, name)] for name in COLUMNS}}
            for row in found
            if wanted is None or row["key"] in wanted
        ]

    def epochs(self, key: str | Collection[str] | None = None) -> list[dict[str, Any]]:
        """What the epochs of a run or of a few gave, or those of all runs for None.

        Returns:
          Rows of key, `EPOCH`, attempt (which wrote the row) and measures (a mapping), in order.
        """
        names = (*EPOCH, "attempt", "measures", "checksum")
        query = sa.select(runs.c.key, *(epochs.c[name] for name in names)).join_from(runs, epochs)
        rows = self._mappings(query.order_by(*ORDER, epochs.c.epoch), epochs, key)
        for row in rows:
            del row["checksum"]
        return rows

    def attempts(self, key: str | None = None) -> list[dict[str, Any]]:
        """Who ran a run when, and how each attempt ended; or those of all runs for None.

        Returns:
          Rows of key, attempt, worker, host, boot, pid, device, versions (a mapping), started_at,
          ended_at, outcome ("finished", "diverged", "oom", "raised", "released" or "lost"; None
          while it runs) and traceback, in order.
        """
        query = (
            sa.select(
                runs.c.key,
                attempts.c.attempt,
                attempts.c.worker.label("worker"),
                *(workers.c[name] for name in ("host", "boot", "pid", "device", "versions")),
                *(attempts.c[n] for n in ("started_at", "ended_at", "outcome", "traceback")),
            )
            .join_from(attempts, runs)
            .join(workers, workers.c.id == attempts.c.worker)
            .order_by(*ORDER, attempts.c.attempt)
        )
        return self._mappings(query, attempts, key)

    def _mappings(
        self, query: sa.Select[Any], table: sa.Table, key: str | Collection[str] | None = None
    ) -> list[dict[str, Any]]:
        """The rows of a table, decoded; of all runs, of one or of a few."""
        if key is not None:
            query = query.where(runs.c.key.in_([key] if isinstance(key, str) else key))
        return [self._decoded(table, row) for row in self._all(query)]

    # Facts

    def measure(
        self, program: str, device: str, runs_per_device: int, seconds_per_step: float,
        compile_seconds: float,
    ) -> None:  # fmt: skip
        """Keeps what a program costs on a device, instead of what was kept before.

        The device carried so many runs at once; a step is one of one run.
        """
        row: dict[str, Any] = {"program": program, "device": device}
        row["runs_per_device"] = int(runs_per_device)
        row["seconds_per_step"] = _number("seconds_per_step", seconds_per_step)
        row["compile_seconds"] = _number("compile_seconds", compile_seconds)
        self._write(
            lambda connection: self._put(
                connection, measurements, [{**row, "measured_at": now(connection)}]
            )
        )

    def measured(self, program: str, device: str) -> dict[str, Any] | None:
        """What `measure` kept: runs_per_device, seconds_per_step and compile_seconds; or None."""
        table = measurements.c
        query = sa.select(table.runs_per_device, table.seconds_per_step, table.compile_seconds)
        query = query.where(table.program == program, table.device == device)
        return next((dict(row) for row in self._all(query)), None)


def _passes(error: sa.exc.SQLAlchemyError) -> bool:
    """Whether it can help to try again: a lock, a server that is away or starts anew."""
    if not isinstance(error, sa.exc.DBAPIError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return "locked" in str(error.orig)
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)
