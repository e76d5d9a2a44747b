"""The ledger of a sweep: which runs there are, who runs which, and what came out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import sqlalchemy as sa

from nf_resnets.sweep import schema
from nf_resnets.sweep.identity import Worker, is_dead, this_worker
from nf_resnets.sweep.integrity import Damage, check_attempt, check_epoch, check_run
from nf_resnets.sweep.schema import (
    RESULTS,
    SEALED,
    LedgerError,
    attempts,
    epoch_checksum,
    epochs,
    run_checksum,
    runs,
    workers,
)  # fmt: skip
from nf_resnets.sweep.statements import Statements

__all__ = [
    "COLUMNS",
    "Claim",
    "Worker",
    "Ledger",
    "LedgerError",
    "NewRun",
    "is_dead",
    "open_ledger",
    "this_worker",
]

T = TypeVar("T")

EPOCH = ("epoch", "step", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "seconds")
WHOLE = ("epoch", "step", "steps")
# What a row says of a run besides its settings.
COLUMNS = (
    "key", "program", "position", "state", "attempts", "steps_done", "test_accuracy", "test_loss",
    "train_loss", "train_accuracy", "seconds", "message", "finished_at", "resolved",
    "measures",
)  # fmt: skip
# Of how many values an IN (...) may be: below every database's limit of parameters.
MANY = 1000
# Seconds, four months: beyond it is no lease but a slip, or a damaged number.
LONGEST_LEASE = 10_000_000
# How many waiting runs are looked through at first for one that a claim may take.
PAGE = 32


@dataclasses.dataclass(frozen=True)
class NewRun:
    """A run to be added.

    Attributes:
      settings: the canonical JSON text of its settings; a run exists once for each.
      program: runs of one program share a compiled step.
      position: runs are claimed in this order.
      resolved: JSON of what follows from the settings.
    """

    settings: str
    program: str
    position: int
    resolved: str = "{}"

    @property
    def key(self) -> str:
        """SHA-256 of `settings`, 64 hexadecimal digits."""
        return hashlib.sha256(self.settings.encode()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Claim:
    """A run that a worker holds.

    Attributes:
      key: of the run.
      settings: the canonical JSON text of its settings.
      program: runs of one program share a compiled step.
      attempt: how often the run was claimed, this time included; with it the ledger tells this
        claim from later ones.
      resolved: JSON of what follows from the settings.
    """

    key: str
    settings: str
    program: str
    attempt: int
    resolved: str


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
    return int(number) if name in WHOLE else number


def _text(value: str) -> str:
    """A text that both databases can hold: PostgreSQL has no NUL, and neither lone surrogates."""
    return str(value).replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def _json(value: Mapping[str, Any] | None) -> str | None:
    """JSON of measures; NaN and infinity are null, and arrays are lists."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [plain(each) for each in value]
        if isinstance(value, float) and not math.isfinite(value):
            return None
        # Of arrays and numbers of NumPy and JAX.
        return plain(value.tolist()) if hasattr(value, "tolist") else value

    try:
        text = json.dumps(plain({} if value is None else value), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LedgerError(f"measures cannot be kept as JSON: {error}") from error
    if not text.startswith("{"):
        raise LedgerError(f"measures is {value!r}; expected a mapping")
    return None if text == "{}" else text


def _sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A run's columns with their checksum."""
    return {**values, "checksum": run_checksum(values)}


def _known(what: str, found: Iterable[str], names: Sequence[str]) -> None:
    """Refuses a column that is not there, whose numbers would be lost."""
    for name in found:
        if name not in names:
            raise LedgerError(f"{what} has {name!r}; expected some of {', '.join(names)}")


def _parts(values: Collection[str]) -> Iterator[list[str]]:
    """The values sorted, in parts of at most `MANY`."""
    ordered = sorted(set(values))
    for first in range(0, len(ordered), MANY):
        yield ordered[first : first + MANY]


def open_ledger(where: str | Path, *, create: bool = True, patience: float = 30.0) -> Ledger:
    """Opens a ledger, or makes one where nothing is yet.

    Args:
      where: the path of an SQLite file, `sqlite:///PATH`, or `postgresql://USER:PASSWORD@HOST/NAME`
        for workers on several machines.
      create: whether to make a ledger where there is none.
      patience: seconds to wait for a file that others have locked, or a server that is away.

    Returns:
      The ledger, which several threads and processes may use at once.

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

    Each method is one transaction: it happens whole or not at all, whoever else works on the ledger
    at the time. Each raises `LedgerError` if the database cannot do it.

    Attributes:
      name: where it is, without user and password.
    """

    def __init__(self, engine: sa.Engine, name: str, patience: float) -> None:
        self.name = name
        self._engine = engine
        self._writer = engine.execution_options(writes=True)
        self._patience = patience
        self._pid = os.getpid()
        # Threads of one process wait for each other here: SQLite itself would have them sleep and
        # try again.
        self._writing: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if engine.dialect.name == "sqlite" else contextlib.nullcontext()
        )
        self._file = self._inode()
        self._sql = Statements(engine.dialect.name)
        # Workers that are in the database for certain.
        self._registered: set[str] = set()
        # For a part of the ledger and a program: the place of the first waiting run that has not
        # been looked at. See `_take`.
        self._places: dict[tuple[frozenset[str], str], tuple[int, int]] = {}

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _inode(self) -> tuple[int, int] | None:
        """Which file SQLite's is; None where it is gone, and for a server."""
        if self._engine.dialect.name != "sqlite":
            return None
        try:
            found = os.stat(str(self._engine.url.database))
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Closes all connections; the ledger opens new ones if it is used again."""
        self._engine.dispose()

    # Transactions

    def _read(self, work: Callable[[sa.Connection], T]) -> T:
        return self._transaction(self._engine, work)

    def _write(self, work: Callable[[sa.Connection], T]) -> T:
        return self._transaction(self._writer, work)

    def _transaction(self, engine: sa.Engine, work: Callable[[sa.Connection], T]) -> T:
        if self._pid != os.getpid():
            # A forked process must not touch the connections of its parent.
            self._engine.dispose(close=False)
            self._pid = os.getpid()
            if self._engine.dialect.name == "sqlite":
                self._writing = threading.Lock()
        deadline = time.monotonic() + self._patience
        pause = 0.02
        while True:
            try:
                waiting = self._writing if engine is self._writer else contextlib.nullcontext()
                with waiting, engine.begin() as connection:
                    return work(connection)
            except sa.exc.DBAPIError as error:
                # Every transaction may be done twice: if the first time did happen after all, the
                # second one finds that.
                if not _passes(error) or time.monotonic() > deadline:
                    said = schema.one_line(error)
                    raise LedgerError(f"the ledger {self.name} failed: {said}") from error
            except sa.exc.SQLAlchemyError as error:
                said = schema.one_line(error)
                raise LedgerError(f"the ledger {self.name} failed: {said}") from error
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 1.0)

    # Adding runs

    def add(self, new: Sequence[NewRun]) -> int:
        """Adds the runs whose keys are not there yet; those that are there stay as they are.

        Args:
          new: any number of runs.

        Returns:
          How many were new.
        """
        fresh = dict.fromkeys(SEALED) | {"state": "waiting", "attempt": 0, "failures": 0}
        rows = [
            _sealed({**fresh, **vars(r), "key": r.key})
            # In one order, so that two workers that add at once wait for each other and not in a
            # circle.
            for r in sorted(new, key=lambda run: run.key)
        ]
        names = [{"name": name} for name in sorted({r.program for r in new})]

        def work(connection: sa.Connection) -> int:
            if not rows:
                return 0
            connection.execute(self._sql.add_programs, names)
            added = connection.execute(self._sql.add_runs, rows)
            return len(added.all()) if added.returns_rows else added.rowcount

        return self._write(work)

    def settings(self) -> list[str]:
        """The canonical settings of all runs, in order."""
        found = self._read(lambda connection: connection.execute(self._sql.all).all())
        for row in found:
            self._check(row)
        return [row.settings for row in found]

    # Claims

    def claim(
        self,
        worker: Worker,
        *,
        program: str | None = None,
        not_programs: Collection[str] = (),
        limit: int = 1,
        lease_seconds: float = 60.0,
        keys: Collection[str] | None = None,
    ) -> list[Claim]:
        """Takes waiting runs of one program; no other worker gets them.

        Runs whose lease ran out wait again, and so do those of workers that are known dead, at
        once. The time it takes does not grow with the number of runs.

        Args:
          worker: who claims.
          program: of which program; None for that of the first waiting run.
          not_programs: programs to avoid, as long as runs of another one wait.
          limit: how many runs at most.
          lease_seconds: for how long the runs are the worker's without a heartbeat.
          keys: claim none but these runs. A frozenset that is kept is looked at once; any other
            collection at each call.

        Returns:
          The claims, in order; empty if no run waits.
        """
        if limit < 1 or not 0 < lease_seconds <= LONGEST_LEASE:
            raise LedgerError(
                f"limit={limit} and lease_seconds={lease_seconds} found; expected at least 1 run "
                f"and more than 0 seconds, at most {LONGEST_LEASE:,}"
            )
        part = None if keys is None else frozenset(keys)
        if part is not None and not part:
            return []

        def work(connection: sa.Connection) -> list[Claim]:
            self._give_up_lost(connection)
            for again in (False, True):
                for name in self._candidates(connection, program, not_programs, part):
                    taken = self._take(connection, name, limit, part)
                    if taken:
                        return self._hold(connection, worker, taken, lease_seconds)
                # A run can wait again before the place up to which the runs were looked through.
                if again or not self._forget_places(part):
                    break
            return []

        claims = self._write(work)
        if claims:
            self._registered.add(worker.id)
        return claims

    def _give_up_lost(self, connection: sa.Connection) -> None:
        """Lets runs wait again whose lease ran out or whose worker is dead."""
        holders = connection.execute(self._sql.holders).all()
        dead = [
            holder.id
            for holder in holders
            if is_dead(Worker(*holder[: len(dataclasses.fields(Worker))]))
        ]
        if not dead and not any(holder.expired for holder in holders):
            return
        lost = connection.execute(self._sql.lost, {"dead": dead}).all()
        if lost:
            self._change(connection, lost, state="waiting")
            connection.execute(
                self._sql.end_attempt,
                [
                    {"of_run": run.id, "of_attempt": run.attempt, "outcome": "lost",
                     "traceback": None}
                    for run in lost
                ],
            )  # fmt: skip

    def _candidates(
        self,
        connection: sa.Connection,
        program: str | None,
        not_programs: Collection[str],
        part: frozenset[str] | None,
    ) -> Iterator[str]:
        """The programs to try, in order."""
        if program is not None:
            yield program
            return
        # Nearly always it is the first run, or one of the next.
        page = connection.execute(self._sql.first, {"page": 1 if not not_programs else PAGE})
        for run in page.all():
            if run.program not in not_programs and (part is None or run.key in part):
                yield run.program
                break
        waiting = [row.name for row in connection.execute(self._sql.programs_waiting)]
        yield from (name for name in waiting if name not in not_programs)
        yield from (name for name in waiting if name in not_programs)

    def _take(
        self, connection: sa.Connection, program: str, limit: int, part: frozenset[str] | None
    ) -> list[sa.Row[Any]]:
        """Locks the first waiting runs of a program, and passes over those others have locked.

        For a part of the ledger the waiting runs are looked through page by page, and the place is
        kept: a ledger with many other runs would else be read from the start each time.
        """
        if part is None:
            return list(connection.execute(self._sql.take, {"program": program, "most": limit}))
        taken: list[sa.Row[Any]] = []
        position, last = place = self._places.get((part, program), (-(2**62), 0))
        size = max(limit, PAGE)
        while len(taken) < limit:
            page = connection.execute(
                self._sql.page,
                {"program": program, "position": position, "last": last, "page": size},
            ).all()
            wanted = []
            for run in page:
                position, last = run.position, run.id
                if run.key in part:
                    wanted.append(run.id)
                    if len(taken) + len(wanted) == limit:
                        break
            if wanted:
                taken += connection.execute(self._sql.take_these, {"ids": wanted}).all()
            if len(page) < size:
                break
            size = min(4 * size, MANY)
        if (position, last) != place:
            self._places[part, program] = position, last
        return taken

    def _forget_places(self, part: frozenset[str] | None) -> bool:
        """Starts the next look through a part of the ledger at its beginning."""
        if part is None:
            return False
        known = [place for place in list(self._places) if place[0] == part]
        for place in known:
            self._places.pop(place, None)
        return bool(known)

    def _hold(
        self,
        connection: sa.Connection,
        worker: Worker,
        taken: Sequence[sa.Row[Any]],
        lease_seconds: float,
    ) -> list[Claim]:
        """Makes locked runs the worker's."""
        if worker.id not in self._registered:
            connection.execute(self._sql.add_worker, dataclasses.asdict(worker))
        for run in taken:
            again = run.attempt + 1
            held = {"holder": worker.id, "lease": lease_seconds}
            self._change(connection, [run], held, state="running", attempt=again)
        connection.execute(
            self._sql.add_attempt,
            [
                {"run": run.id, "attempt": run.attempt + 1, "worker": worker.id}
                for run in taken
            ],
        )  # fmt: skip
        return [
            Claim(run.key, run.settings, run.program, run.attempt + 1, run.resolved)
            for run in taken
        ]

    def _change(
        self,
        connection: sa.Connection,
        rows: Sequence[sa.Row[Any]],
        held: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        """Changes runs that were read whole in this transaction, once it is sure what they say."""
        new = []
        for row in rows:
            self._check(row)
            values = {name: getattr(row, name) for name in SEALED} | changes
            new.append(
                {**_sealed(values), "holder": None, "lease": None, **(held or {}), "of_run": row.id}
            )
        connection.execute(self._sql.change, new)

    def _check(self, row: sa.Row[Any]) -> dict[str, Any]:
        """The settings of a run that was read whole."""
        try:
            return check_run(row._asdict())
        except Damage as damage:
            raise self._damaged(f"the run {row.key} (row {row.id})", damage) from None

    def _damaged(self, what: str, damage: object) -> LedgerError:
        return LedgerError(
            f"the ledger {self.name} is damaged in {what}: {damage}; {schema.SALVAGE}"
        )

    def heartbeat(
        self, worker: Worker, keys: Collection[str], lease_seconds: float = 60.0
    ) -> set[str]:
        """Renews the leases of runs.

        Args:
          worker: who holds them.
          keys: the runs.
          lease_seconds: for how long from now on.

        Returns:
          The keys of those that the worker still holds; the others were taken from it.

        Raises:
          LedgerError: also if the ledger's file is not the one that was opened: what is written
            to it now would be lost.
        """
        if self._file != self._inode():
            raise LedgerError(f"the ledger {self.name} was removed or replaced while it was in use")

        def work(connection: sa.Connection) -> set[str]:
            held: set[str] = set()
            for some in _parts(keys):
                of = {"holder": worker.id, "keys": some}
                connection.execute(self._sql.renew, {**of, "lease": lease_seconds})
                held.update(connection.scalars(self._sql.held_keys, of))
            return held

        return self._write(work)

    def _held(self, connection: sa.Connection, claim: Claim, worker: Worker) -> sa.Row[Any] | None:
        """The run, locked, if the worker holds it by this claim."""
        of = {"of_key": claim.key, "holder": worker.id, "of_attempt": claim.attempt}
        return connection.execute(self._sql.held, of).first()

    def _ended(self, connection: sa.Connection, claim: Claim, worker: Worker) -> str | None:
        """How the attempt ended, if it was the worker's and has ended."""
        of = {"of_key": claim.key, "holder": worker.id, "of_attempt": claim.attempt}
        return connection.scalar(self._sql.outcome, of)

    # Results

    def record(self, claim: Claim, worker: Worker, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Writes down what epochs gave; an epoch that is there already is written anew.

        Args:
          claim: of `claim`.
          worker: who holds the run.
          rows: for each epoch some of epoch, step, train_loss, train_accuracy, test_loss,
            test_accuracy, seconds and measures, a mapping that JSON can hold; epoch must be there.
            NaN and infinity become None.

        Returns:
          False, with nothing written, if the worker does not hold the run any more.
        """
        values = _epoch_values(rows)

        def work(connection: sa.Connection) -> bool:
            run = self._held(connection, claim, worker)
            if run is None:
                return False
            self._put_epochs(connection, run.id, claim, values)
            return True

        return self._write(work)

    def _put_epochs(
        self, connection: sa.Connection, run: int, claim: Claim, values: list[dict[str, Any]]
    ) -> None:
        if values:
            rows = [{**row, "attempt": claim.attempt} for row in values]
            connection.execute(
                self._sql.put_epochs,
                [{**row, "run": run, "checksum": epoch_checksum(claim.key, row)} for row in rows],
            )

    def finish(
        self,
        claim: Claim,
        worker: Worker,
        state: str,
        result: Mapping[str, Any],
        epochs: Sequence[Mapping[str, Any]] = (),
    ) -> bool:
        """Writes down how a run ended.

        Args:
          claim: of `claim`.
          worker: who holds the run.
          state: "finished", "diverged" or "oom".
          result: some of steps, test_accuracy, test_loss, train_loss, train_accuracy, seconds,
            message and measures, a mapping that JSON can hold; NaN and infinity become None.
          epochs: what the last epochs gave, as for `record`.

        Returns:
          False, with nothing written, if the worker does not hold the run any more; True also if
          this very claim had ended this way before.

        Raises:
          LedgerError: also if the state or a column is none of these.
        """
        if state not in ("finished", "diverged", "oom"):
            raise LedgerError(f"state is {state!r}; expected 'finished', 'diverged' or 'oom'")
        _known("the result", result, (*RESULTS, "measures"))
        numbers: dict[str, Any] = {
            name: _number(name, result.get(name)) for name in RESULTS if name != "message"
        }
        message, measures = result.get("message"), _json(result.get("measures"))
        values = _epoch_values(epochs)

        def work(connection: sa.Connection) -> bool:
            run = self._held(connection, claim, worker)
            if run is None:
                return self._ended(connection, claim, worker) == state
            self._put_epochs(connection, run.id, claim, values)
            if claim.attempt > 1 and numbers["steps"] is not None:
                # An earlier attempt can have come further than this one, if it did diverge.
                connection.execute(
                    self._sql.drop_epochs, {"of_run": run.id, "of_step": numbers["steps"]}
                )
            self._change(
                connection,
                [run],
                state=state,
                finished_at=connection.scalar(self._sql.now),
                message=None if message is None else _text(message),
                measures=measures,
                **numbers,
            )
            self._end(connection, run.id, claim, state)
            return True

        return self._write(work)

    def _end(
        self,
        connection: sa.Connection,
        run: int,
        claim: Claim,
        outcome: str,
        traceback: str | None = None,
    ) -> None:
        connection.execute(
            self._sql.end_attempt,
            {"of_run": run, "of_attempt": claim.attempt, "outcome": outcome,
             "traceback": traceback},
        )  # fmt: skip

    def fail(
        self,
        claim: Claim,
        worker: Worker,
        traceback: str,
        *,
        message: str | None = None,
        max_attempts: int = 3,
    ) -> str:
        """Writes down that a run raised.

        Args:
          claim: of `claim`.
          worker: who holds the run.
          traceback: what it raised; it is kept with the attempt.
          message: what is kept with the run; None for the traceback's last line.
          max_attempts: the run waits again unless it raised this often.

        Returns:
          The state of the run: "waiting" or "failed". If the worker does not hold the run any
          more nothing is written, and it is whatever the run's state is.

        Raises:
          LedgerError: also if the ledger has no such run.
        """
        trace = _text(traceback)
        last = trace.strip().rpartition("\n")[2].strip() if message is None else _text(message)

        def work(connection: sa.Connection) -> str:
            run = self._held(connection, claim, worker)
            if run is None:
                state = connection.scalar(self._sql.state, {"of_key": claim.key})
                if state is None:
                    raise LedgerError(f"the ledger {self.name} has no run {claim.key}")
                return state
            failures = run.failures + 1
            state = "failed" if failures >= max_attempts else "waiting"
            ended = connection.scalar(self._sql.now) if state == "failed" else run.finished_at
            self._change(
                connection, [run], state=state, failures=failures, message=last, finished_at=ended
            )
            self._end(connection, run.id, claim, "raised", trace)
            return state

        return self._write(work)

    def release(self, claim: Claim, worker: Worker) -> bool:
        """Lets a run wait again at once; this is no failure.

        Args:
          claim: of `claim`.
          worker: who holds the run.

        Returns:
          False, with nothing written, if the worker does not hold the run any more; True also if
          this very claim was released before.
        """

        def work(connection: sa.Connection) -> bool:
            run = self._held(connection, claim, worker)
            if run is None:
                return self._ended(connection, claim, worker) == "released"
            self._change(connection, [run], state="waiting")
            self._end(connection, run.id, claim, "released")
            return True

        return self._write(work)

    def retry(
        self,
        states: Collection[str] = ("failed", "oom"),
        *,
        keys: Collection[str] | None = None,
    ) -> int:
        """Lets runs wait again that have ended; their attempts stay, and are counted anew.

        Args:
          states: of which states, of "finished", "diverged", "failed" and "oom".
          keys: none but these runs.

        Returns:
          How many runs.

        Raises:
          LedgerError: also if a state is none of these.
        """
        for state in states:
            if state not in ("finished", "diverged", "failed", "oom"):
                raise LedgerError(
                    f"states has {state!r}; expected 'finished', 'diverged', 'failed' or 'oom'"
                )
        nothing = dict.fromkeys((*RESULTS, "measures", "finished_at"))

        def work(connection: sa.Connection) -> int:
            ended = connection.execute(self._sql.ended, {"states": list(states)}).all()
            again = [run for run in ended if keys is None or run.key in keys]
            if again:
                self._change(connection, again, state="waiting", failures=0, **nothing)
            return len(again)

        return self._write(work)

    # Reading

    def counts(
        self, keys: Collection[str] | None = None, worker: Worker | None = None
    ) -> dict[str, int]:
        """How many runs have each state.

        Args:
          keys: count none but these runs.
          worker: have those that run counted apart: "running" in its hands, "elsewhere" in others'.

        Returns:
          A number for every state, 0 where there is none.
        """
        columns = [runs.c.key, runs.c.state, runs.c.worker.label("worker")]

        def work(connection: sa.Connection) -> dict[str, int]:
            found = dict.fromkeys((*schema.STATES, *(["elsewhere"] if worker else [])), 0)
            for row in self._some(connection, columns, runs.c.key, keys):
                others = worker and row.state == "running" and row.worker != worker.id
                state = "elsewhere" if others else row.state
                if state not in found:
                    raise self._damaged(f"the run {row.key}", f"its state is {state!r}")
                found[state] += 1
            return found

        return self._read(work)

    def _some(
        self,
        connection: sa.Connection,
        columns: Sequence[Any],
        key: sa.ColumnElement[str],
        keys: Collection[str] | None,
    ) -> Iterator[sa.Row[Any]]:
        """Rows of the runs with these keys, in no order; of all without keys."""
        query = sa.select(*columns)
        if keys is None or len(keys) > MANY:
            wanted = None if keys is None else frozenset(keys)
            for row in connection.execute(query):
                if wanted is None or row.key in wanted:
                    yield row
            return
        yield from connection.execute(query.where(key.in_(list(keys))))

    def rows(self, keys: Collection[str] | None = None) -> list[dict[str, Any]]:
        """One flat row for each run, in order.

        Args:
          keys: none but these runs.

        Returns:
          In each row all fields of the settings, and key, program, state, attempts (how often it
          was claimed), steps_done, test_accuracy, test_loss, train_loss, train_accuracy, seconds,
          message, finished_at (seconds since 1970), position, resolved and measures (mappings);
          None for what is not there.

        Raises:
          LedgerError: also if any row of the ledger, of `keys` or not, is not as it was written:
            the sentence names it.
        """
        wanted = None if keys is None else frozenset(keys)
        found = self._read(lambda connection: connection.execute(self._sql.all).all())
        # All are looked at: it can be the key itself that is damaged.
        pairs = [(row, self._check(row)) for row in found]
        return [
            {
                **settings,
                "key": row.key,
                "program": row.program,
                "state": row.state,
                "attempts": row.attempt,
                # Not `steps`, which is a field of the settings: the budget.
                "steps_done": row.steps,
                **{name: getattr(row, name) for name in RESULTS if name != "steps"},
                "finished_at": row.finished_at,
                "position": row.position,
                "resolved": json.loads(row.resolved),
                "measures": json.loads(row.measures or "{}"),
            }
            for row, settings in pairs
            if wanted is None or row.key in wanted
        ]

    def epochs(self, key: str | None = None) -> list[dict[str, Any]]:
        """What the epochs of a run gave, or those of all runs.

        Args:
          key: of the run; None for all.

        Returns:
          Rows of key, epoch, step, train_loss, train_accuracy, test_loss, test_accuracy, seconds,
          attempt (which wrote the row) and measures (a mapping), in order.
        """
        query = (
            sa.select(
                runs.c.key,
                *(epochs.c[name] for name in (*EPOCH, "attempt", "measures", "checksum")),
            )
            .join_from(runs, epochs, epochs.c.run == runs.c.id)
            .order_by(runs.c.position, runs.c.id, epochs.c.epoch)
        )
        rows = self._mappings(query, key, check_epoch)
        return [
            {name: row[name] for name in row if name != "checksum"}
            | {"measures": json.loads(row["measures"] or "{}")}
            for row in rows
        ]

    def attempts(self, key: str | None = None) -> list[dict[str, Any]]:
        """Who ran a run when, and how each attempt ended.

        Args:
          key: of the run; None for all.

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
                *(
                    attempts.c[name]
                    for name in ("started_at", "ended_at", "outcome", "traceback")
                ),
            )
            .join_from(runs, attempts, attempts.c.run == runs.c.id)
            .join(workers, workers.c.id == attempts.c.worker)
            .order_by(runs.c.position, runs.c.id, attempts.c.attempt)
        )  # fmt: skip
        rows = self._mappings(query, key, check_attempt)
        return [{**row, "versions": json.loads(row["versions"])} for row in rows]

    def _mappings(
        self, query: sa.Select[Any], key: str | None, check: Callable[[Mapping[str, Any]], Any]
    ) -> list[dict[str, Any]]:
        if key is not None:
            query = query.where(runs.c.key == key)

        def work(connection: sa.Connection) -> list[dict[str, Any]]:
            found = connection.execute(query)
            names = list(found.keys())
            return [dict(zip(names, row, strict=True)) for row in found]

        rows = self._read(work)
        for row in rows:
            try:
                check(row)
            except Damage as damage:
                raise self._damaged(f"the run {row['key']}", damage) from None
        return rows

    # Facts

    def measure(
        self,
        program: str,
        device: str,
        *,
        runs_per_device: int,
        seconds_per_step: float,
        compile_seconds: float,
    ) -> None:
        """Keeps what a program costs on a device, instead of what was kept before.

        Args:
          program: the program.
          device: its device.
          runs_per_device: how many runs a device carried at once.
          seconds_per_step: of one run.
          compile_seconds: of the program.
        """
        values = {
            "program": program,
            "device": device,
            "runs_per_device": int(runs_per_device),
            "seconds_per_step": _number("seconds_per_step", seconds_per_step),
            "compile_seconds": _number("compile_seconds", compile_seconds),
        }
        self._write(lambda connection: connection.execute(self._sql.measure, values))

    def measured(self, program: str, device: str) -> dict[str, Any] | None:
        """What `measure` kept: runs_per_device, seconds_per_step and compile_seconds; or None."""
        table = schema.measurements
        names = ("runs_per_device", "seconds_per_step", "compile_seconds")
        query = sa.select(*(table.c[name] for name in names)).where(
            table.c.program == program, table.c.device == device
        )
        row = self._read(lambda connection: connection.execute(query).mappings().first())
        return None if row is None else dict(row)

    def note(self, name: str, value: str) -> None:
        """Keeps a fact about the ledger under a name, instead of what was kept before."""
        if name == schema.VERSION_NOTE:
            raise LedgerError(f"the note {name!r} is the ledger's own")
        values = {"name": name, "value": _text(value)}
        self._write(lambda connection: connection.execute(self._sql.note, values))

    def noted(self, name: str) -> str | None:
        """What `note` kept under a name, or None."""
        query = sa.select(schema.notes.c.value).where(schema.notes.c.name == name)
        return self._read(lambda connection: connection.scalar(query))


def _passes(error: sa.exc.DBAPIError) -> bool:
    """Whether it can help to try again: a lock, a server that is away or starts anew."""
    if isinstance(error.orig, sqlite3.Error):
        return "locked" in str(error.orig)
    return error.connection_invalidated or isinstance(error, sa.exc.OperationalError)


def _epoch_values(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows as the table of epochs has them."""
    values = []
    for row in rows:
        _known("an epoch's row", row, (*EPOCH, "measures"))
        value: dict[str, Any] = {name: _number(name, row.get(name)) for name in EPOCH}
        value["measures"] = _json(row.get("measures"))
        if value["epoch"] is None:
            raise LedgerError(f"an epoch's row has no number of the epoch: {dict(row)!r}")
        values.append(value)
    return values
