"""The runs that a worker holds: it claims them, renews their leases, records and releases them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nf_resnets.sweep.ledger import Claim, Ledger, Worker
from nf_resnets.sweep.programs import Execution, Programs
from nf_resnets.sweep.task import Task
from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callback
from nf_resnets.training.checkpoint import Checkpoints

FORMAT = 2
"""The format of a run's checkpoints; those of another format are refused."""


class Clock:
    """Adds up seconds by kind, over all threads.

    The kinds are ``computing`` (in compiled functions), ``compiling`` (these functions), ``idle``
    (waiting for runs that others hold), and ``working``, the sum of these and of the rest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(("computing", "compiling", "idle", "working"), 0.0)

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Adds the time inside the block to that kind."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[kind] += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds by kind, with ``outside``, the rest, in place of ``working``."""
        with self._lock:
            known = dict(self._seconds)
        working = known.pop("working")
        return {**known, "outside": max(0.0, working - sum(known.values()))}

    def fraction_outside(self) -> float:
        """The fraction of the time with work that was spent outside compiled functions."""
        seconds = self.seconds()
        busy = seconds["computing"] + seconds["outside"]
        return seconds["outside"] / busy if busy else 0.0


@dataclasses.dataclass
class Claims:
    """The runs that the threads of a worker hold.

    Where several processes work as one, process 0 decides and writes, and the others follow it.
    """

    ledger: Ledger | None  # None but on process 0
    worker: Worker
    task: Task
    keys: frozenset[str]  # of the runs that the worker may claim
    programs: Programs
    folder: Path  # of the checkpoints, in which each run has a folder
    callback: Callback
    stop: Callable[[], bool]  # whether to save all runs and leave
    execution: Execution = Execution()
    clock: Clock = dataclasses.field(default_factory=Clock)
    # Threads share the four fields below, and change them under the lock only.
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    held: dict[str, Claim] = dataclasses.field(default_factory=dict)  # by key
    # Those held that another worker has taken over.
    lost: set[Claim] = dataclasses.field(default_factory=set)
    compiling: set[str] = dataclasses.field(default_factory=set)  # names of programs
    # The threads that compile, and the runs for which they do.
    compilers: dict[threading.Thread, list[Claim]] = dataclasses.field(default_factory=dict)

    @property
    def writes(self) -> bool:
        """Whether this is the process that decides and writes."""
        return self.ledger is not None

    def agree(self, decide: Callable[[Ledger], Any]) -> Any:
        """Returns what process 0 decides, on all processes; a JSON value."""
        if jax.process_count() == 1:
            assert self.ledger is not None
            return decide(self.ledger)
        return hosts.broadcast(decide(self.ledger) if self.ledger is not None else None)

    def must_stop(self) -> bool:
        """Whether any process was told to stop, on all processes: all leave at the same step."""
        return hosts.any_process(self.stop())

    def claim(self, program: str | None, limit: int) -> list[Claim]:
        """Takes runs of one program from the ledger; none once it is time to stop.

        With ``program=None`` of any program, preferably one that no other thread is compiling.
        """

        def take(ledger: Ledger) -> list[Any]:
            if self.stop():
                return []
            avoid = () if program else tuple(self.compiling)
            claims = ledger.claim(
                self.worker, program=program, not_programs=avoid, limit=limit,
                lease_seconds=self.execution.lease_seconds, keys=self.keys,
            )  # fmt: skip
            return [dataclasses.asdict(claim) for claim in claims]

        # One thread at a time: the next must see which program this one is going to compile.
        with self.lock:
            claims = [Claim(**values) for values in self.agree(take)]
            self.held.update({claim.key: claim for claim in claims})
            if claims and claims[0].program not in self.programs.built:
                self.compiling.add(claims[0].program)
        return claims

    @contextlib.contextmanager
    def compile_for(self, claims: list[Claim]) -> Iterator[None]:
        """Marks this thread as one that compiles, for runs that have not begun."""
        me = threading.current_thread()
        with self.lock:
            self.compilers[me] = claims
        try:
            yield
        finally:
            with self.lock:
                self.compilers.pop(me, None)
                self.compiling.discard(claims[0].program)

    def leave(self, threads: Collection[threading.Thread]) -> bool:
        """Releases the runs of these threads if all of them compile, which cannot be interrupted.

        Returns:
          Whether all of them do. If not, no run is released.
        """
        with self.lock:
            if not all(thread in self.compilers for thread in threads):
                return False
            claims = [claim for thread in threads for claim in self.compilers.pop(thread)]
        for claim in claims:
            self.release(claim)
        return True

    def holds(self, claim: Claim) -> bool:
        """Whether the run is still held."""
        with self.lock:
            return self.held.get(claim.key) == claim

    def is_lost(self, claim: Claim) -> bool:
        """Whether another worker has taken the run over."""
        return claim in self.lost

    def let_go(self, claim: Claim) -> None:
        """Forgets a run that this worker no longer holds."""
        if self.is_lost(claim) and self.writes:
            self.callback.on_run_end(claim.key, "lost", {})
        with self.lock:
            if self.held.get(claim.key) == claim:
                del self.held[claim.key]
            self.lost.discard(claim)

    def beat(self) -> None:
        """Renews the leases of all runs that are held, and marks those that are lost."""
        with self.lock:
            if self.ledger is None or not self.held:
                return
            seconds = self.execution.lease_seconds
            still = self.ledger.heartbeat(self.worker, list(self.held), seconds)
            self.callback.on_counts(self.ledger.counts(self.keys, self.worker))
            self.lost.update(claim for key, claim in self.held.items() if key not in still)

    def record(self, claim: Claim, epochs: list[dict[str, Any]]) -> bool:
        """Records epochs of a run that continues; returns whether this worker still holds it."""
        assert self.ledger is not None
        if not self.is_lost(claim) and self.ledger.record(claim, self.worker, epochs):
            return True
        self.mark_lost(claim)
        return False

    def mark_lost(self, claim: Claim) -> None:
        """Marks a run that another worker has taken over; the thread that trains it drops it."""
        with self.lock:
            if self.held.get(claim.key) == claim:
                self.lost.add(claim)

    def checkpoints(self, claim: Claim) -> Checkpoints:
        """The checkpoints of a run."""
        identity = {"format": FORMAT, "settings": json.loads(claim.settings)}
        return Checkpoints(self.folder / claim.key[:20], identity)

    def finish(
        self, claim: Claim, state: str, result: Mapping[str, Any], epochs: list[dict[str, Any]]
    ) -> bool:
        """Records how a run ended; returns whether this worker still held it."""
        held = self.ledger is not None and self.ledger.finish(
            claim, self.worker, state, result, epochs
        )
        if held:
            self.callback.on_run_end(claim.key, state, result)
        self.let_go(claim)
        return held

    def fail(self, claim: Claim, error: BaseException, *, for_good: bool = False) -> None:
        """Records that a run raised; it is tried ``max_attempts`` times, once if ``for_good``."""
        if self.ledger is not None and not self.is_lost(claim):
            # JAX adds a note to each exception that passes through it; the note is left out.
            message = "".join(traceback.format_exception_only(type(error), error))
            message = message.partition("\n-----")[0].strip()[:500]
            trace = "".join(traceback.format_exception(error))
            most = 1 if for_good else self.execution.max_attempts
            state = self.ledger.fail(claim, self.worker, trace, message=message, max_attempts=most)
            if state in ("waiting", "failed"):
                self.callback.on_run_end(claim.key, state, {"message": message})
        self.let_go(claim)

    def record_failure(self, failed: Sequence[Claim], error: Exception) -> None:
        """Records that these runs raised, those that are still held."""
        for claim in failed:
            if claim.key not in self.held:
                continue
            if is_out_of_memory(error):
                message = str(error).partition("\n")[0][:500]
                self.finish(claim, "oom", {"message": message}, [])
            else:
                self.fail(claim, error)

    def lost_attempts(self, claim: Claim) -> int:
        """How often a worker ended while it held the run, without a result."""
        if self.ledger is None:
            return 0
        found = [attempt["outcome"] for attempt in self.ledger.attempts(claim.key)]
        # Counted from the last error on, after which somebody asked for another attempt.
        given_up = max((i for i, outcome in enumerate(found) if outcome == "raised"), default=-1)
        return found[given_up + 1 :].count("lost")

    def release(self, claim: Claim) -> None:
        """Returns a run to the ledger, where it waits; its checkpoints stay."""
        if self.ledger is not None and not self.is_lost(claim):
            self.ledger.release(claim, self.worker)
            self.callback.on_run_end(claim.key, "waiting", {"message": "to be resumed"})
        self.let_go(claim)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a device has no memory left."""
    if isinstance(error, MemoryError):
        return True
    text = str(error)
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") and (
        "RESOURCE_EXHAUSTED" in text or "Out of memory" in text or "out of memory" in text
    )


__all__ = ["FORMAT", "Claims", "Clock", "is_out_of_memory"]
