"""What the threads of a worker share: the runs that it holds, and compiled programs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import importlib.metadata
import json
import platform
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import tyro
from jax.sharding import Mesh

from nf_resnets.sweep.ledger import Claim, Ledger, Worker
from nf_resnets.sweep.task import Callback, Resolved, Task
from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.program import Program, Start

CANDIDATES = (1, 2, 4, 8, 16)
"""Runs on a device that are tried."""

GAIN = 1.1
"""Twice as many runs must be faster by this factor a run, or the search ends."""

FORMAT = 2
"""Of what a run's checkpoint holds; another one is refused."""


@dataclasses.dataclass(frozen=True)
class Execution:
    """How runs are made; nothing of it changes a run's numbers."""

    workers: int = 0
    """Programs at work at a time; 0 for one a core on a CPU (up to 8), one elsewhere."""
    devices_per_run: int = 1
    """Over how many devices a run's batch is sharded; 0 for all."""
    runs_per_device: int = 0
    """How many runs a device carries at a time; 0 to measure what pays."""
    vectorize: Literal["auto", "vmap", "loop"] = "auto"
    """How a device computes several runs: vectorised, or one after another."""
    checkpoint_epochs: int = 1
    """Epochs between two checkpoints of a run; 0 for none but at a stop."""
    checkpoint_seconds: float = 60.0
    """Seconds between two checkpoints of a run within an epoch; 0 for none."""
    checkpoint_fraction: float = 0.02
    """Of the time between two checkpoints of a run, what writing one may take: where epochs are
    short, the next one waits until it does. 1 for no such limit."""
    lease_seconds: float = 60.0
    """A run whose worker has not been heard of for so long is taken up by another, as soon as its
    checkpoints are free: those of a process that is stopped, and not dead, are not."""
    max_attempts: int = 3
    """How often a run may raise before it counts as failed."""
    call_seconds: Annotated[float, tyro.conf.Suppress] = 1.0
    """About so long is a call that makes steps."""


class Programs:
    """The programs of a sweep: each is compiled once, by whichever thread comes first.

    Args:
      task: what the runs are.
      mesh: the devices.
      callback: hears of every compilation.
      execution: how many runs a device carries, and how it computes them.
      ledger: where measurements are kept; None to keep none.
      device: the devices in words.
    """

    def __init__(
        self, task: Task, mesh: Mesh, callback: Callback, execution: Execution,
        ledger: Ledger | None = None, device: str = "",
    ) -> None:  # fmt: skip
        self.task, self._mesh, self._callback, self._execution = task, mesh, callback, execution
        self._ledger, self._device = ledger, device
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self.built: dict[str, Program] = {}

    def get(self, run: Resolved) -> Program:
        """The program of a run."""
        with self._lock:
            lock = self._locks.setdefault(run.program, threading.Lock())
        with lock:
            if run.program not in self.built:
                self._callback.on_compile_begin(run.program, run.label)
                slots, seconds = 0, 0.0
                try:
                    program = self.build(run, self._choose(run))
                    slots, seconds = program.slots, program.compile_seconds
                finally:
                    self._callback.on_compile_end(run.program, seconds, slots)
                self.built[run.program] = program
            return self.built[run.program]

    def build(self, run: Resolved, runs: int | None = None) -> Program:
        """Compiles the program of a run, for so many runs on a device."""
        runs, how = runs or self._execution.runs_per_device or 1, self._execution.vectorize
        return self.task.build(run, self._mesh, runs_per_device=runs, vectorize=how)

    def measured(self, program: str) -> dict[str, Any] | None:
        """What the ledger knows of a program on these devices."""
        return None if self._ledger is None else self._ledger.measured(program, self._device)

    def _choose(self, run: Resolved) -> int:
        """How many runs a device carries.

        On a CPU one: several runs on one device come one after another there anyway, or, under
        ``vmap``, more slowly than that.
        """
        wanted = self._execution.runs_per_device
        if wanted or self._mesh.devices.flat[0].platform == "cpu":
            return wanted or 1
        known = self.measured(run.program)
        if known is not None and known["runs_per_device"]:
            return int(known["runs_per_device"])
        start = self.task.start(run)
        best, seconds, compile_seconds = measure(lambda runs: self.build(run, runs), start)
        if self._ledger is not None:
            self._ledger.measure(run.program, self._device, best, seconds, compile_seconds)
        return best


def measure(
    build: Any, start: Start, candidates: Sequence[int] = CANDIDATES
) -> tuple[int, float, float]:
    """Tries numbers of runs on a device, from few to many, until more do not pay.

    Returns:
      The number, the seconds of one step of one run then, and the seconds of compiling it.
    """
    best = (candidates[0], float("inf"), 0.0)
    for runs in candidates:
        try:
            program = build(runs)
            seconds = seconds_per_step(program, start)
        except Exception as error:
            if runs == candidates[0] or "RESOURCE_EXHAUSTED" not in str(error):
                raise
            break  # too many for the device's memory
        if best[1] < GAIN * seconds:
            break
        best = (runs, seconds, program.compile_seconds)
    return best


def seconds_per_step(program: Program, start: Start, *, at_least: float = 0.2) -> float:
    """The seconds of one step of one run, with all slots taken; a median of several calls."""
    states: Any = program.empty()
    for slot in range(program.slots):
        states = program.begin(states, slot, start)
    each = np.ones(program.slots, np.int32)
    states = jax.block_until_ready(program.steps(states, each).states)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < at_least and len(times) < 50):
        begun = time.perf_counter()
        states = jax.block_until_ready(program.steps(states, each).states)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) / program.slots


@dataclasses.dataclass(frozen=True)
class Cost:
    """What the runs of a program cost."""

    run: Resolved  # the first of them
    runs: int  # how many are still to be made
    seconds_per_step: float  # of one run on the devices of one program, with its part of the tests
    compile_seconds: float
    known: bool  # from runs that were made, not from a few steps made for it

    @property
    def seconds(self) -> float:
        """Of all runs, one after another."""
        return self.compile_seconds + self.runs * self.run.num_steps * self.seconds_per_step


def estimate(
    wanted: Mapping[str, tuple[Resolved, int]],
    programs: Programs,
    *,
    workers: int = 1,
    on_message: Callable[[str], Any] = lambda text: None,
) -> list[Cost]:
    """Says what programs cost: as measured by runs in the ledger, else by a few steps made now.

    As many programs are measured at a time as will be at work, since they share the cores. Nothing
    is written.

    Args:
      wanted: of each program one of its runs, and how many runs are still to be made.
      programs: compiles them.
      workers: how many are at work at a time.
      on_message: hears what is being measured.
    """

    def cost(item: tuple[str, tuple[Resolved, int]]) -> Cost:
        name, (run, runs) = item
        known = programs.measured(name)
        if known is not None and known["seconds_per_step"]:
            return Cost(run, runs, known["seconds_per_step"], known["compile_seconds"], known=True)
        on_message(f"measuring {describe(run)}")
        begun = time.perf_counter()
        program, start = programs.build(run), programs.task.start(run)
        states: Any = program.begin(program.empty(), 0, start)
        program.test(states)
        compile_seconds = time.perf_counter() - begun
        tests = []
        for _ in range(3):
            begun = time.perf_counter()
            program.test(states)
            tests.append(time.perf_counter() - begun)
        every = min(run.steps_per_epoch * run.evaluate_every, run.num_steps)
        test_seconds = statistics.median(tests) / every / program.slots
        seconds = seconds_per_step(program, start) + test_seconds
        return Cost(run, runs, seconds, compile_seconds, known=False)

    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        return list(pool.map(cost, wanted.items()))


def total(costs: Sequence[Cost], workers: int) -> float:
    """Seconds of all runs, spread over workers; no shorter than the longest compilation."""
    if not costs:
        return 0.0
    longest = max(cost.compile_seconds for cost in costs)
    return max(sum(cost.seconds for cost in costs) / workers, longest)


def remember(ledger: Ledger, rows: Sequence[Mapping[str, Any]], programs: Mapping[str, Program],
             device: str) -> None:  # fmt: skip
    """Writes down what a step has cost, from the runs that this worker made."""
    times_of: dict[str, list[float]] = {}
    for row in rows:
        if row["state"] == "finished" and row["seconds"] and row["steps_done"]:
            times_of.setdefault(row["program"], []).append(row["seconds"] / row["steps_done"])
    for name, program in programs.items():
        times = times_of.get(name)
        if times:
            runs = program.slots * len(program.mesh.devices[0]) // len(jax.devices())
            ledger.measure(name, device, runs, statistics.median(times), program.compile_seconds)


def describe(run: Resolved) -> str:
    """A program in a few words."""
    settings = run.settings
    return f"{settings['model']}, {settings['scheme']}, batch {settings['batch_size']}"


class Clock:
    """Adds up seconds by kind, over all threads.

    The kinds are ``computing`` (in compiled functions), ``compiling`` (making them), ``idle``
    (waiting for runs that others hold), and ``working``, of which these are parts.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(("computing", "compiling", "idle", "working"), 0.0)

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Counts the time inside as of that kind."""
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
        """Of the time in which there was work, the fraction outside compiled functions."""
        seconds = self.seconds()
        busy = seconds["computing"] + seconds["outside"]
        return seconds["outside"] / busy if busy else 0.0


@dataclasses.dataclass
class Claims:
    """The runs that the threads of a worker hold.

    Where several processes work as one, process 0 decides and writes; the others do as it says.

    """

    ledger: Ledger | None  # None but on process 0
    worker: Worker
    task: Task
    keys: frozenset[str]  # the runs that the worker works on
    programs: Programs
    folder: Path  # each run has a folder in it for its checkpoints
    callback: Callback
    stop: Callable[[], bool]  # whether to leave, with all runs saved
    execution: Execution = Execution()
    clock: Clock = dataclasses.field(default_factory=Clock)
    # Below the lock: claims that were taken away, claims by key, programs being compiled, and by
    # which threads for which runs.
    lost: set[Claim] = dataclasses.field(default_factory=set)
    held: dict[str, Claim] = dataclasses.field(default_factory=dict)
    compiling: set[str] = dataclasses.field(default_factory=set)
    compilers: dict[threading.Thread, list[Claim]] = dataclasses.field(default_factory=dict)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @property
    def writes(self) -> bool:
        """Whether this is the process that decides and writes."""
        return self.ledger is not None

    def agree(self, decide: Callable[[Ledger], Any]) -> Any:
        """What process 0 decides, on all processes; a JSON value."""
        if jax.process_count() == 1:
            assert self.ledger is not None
            return decide(self.ledger)
        return hosts.broadcast(decide(self.ledger) if self.ledger is not None else None)

    def is_over(self) -> bool:
        """Whether any process was told to stop: all leave at the same step."""
        return hosts.any_process(self.stop())

    def claim(self, program: str | None, limit: int) -> list[Claim]:
        """Takes runs of one program from the ledger; none once it is time to stop.

        With None as the program it is any, best one that no other thread is compiling.
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

        # One thread at a time: the next one must see what this one is going to compile.
        with self.lock:
            claims = [Claim(**values) for values in self.agree(take)]
            self.held.update({claim.key: claim for claim in claims})
            if claims and claims[0].program not in self.programs.built:
                self.compiling.add(claims[0].program)
        return claims

    @contextlib.contextmanager
    def compile_for(self, claims: list[Claim]) -> Iterator[None]:
        """Marks this thread as one that only compiles, for runs that it has not begun."""
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
        """Releases the runs of threads that all only compile, which nothing can stop.

        Returns:
          Whether they all do; else nothing is done.
        """
        with self.lock:
            if not all(thread in self.compilers for thread in threads):
                return False
            claims = [claim for thread in threads for claim in self.compilers.pop(thread)]
        for claim in claims:
            self.release(claim)
        return True

    def holds(self, claim: Claim) -> bool:
        """Whether the run has not been let go."""
        with self.lock:
            return self.held.get(claim.key) == claim

    def is_lost(self, claim: Claim) -> bool:
        """Whether the run was taken from this worker."""
        return claim in self.lost

    def let_go(self, claim: Claim) -> None:
        """Forgets a run that this worker does not hold any more."""
        if self.is_lost(claim) and self.writes:
            self.callback.on_run_end(claim.key, "lost", {})
        with self.lock:
            if self.held.get(claim.key) == claim:
                del self.held[claim.key]
            self.lost.discard(claim)

    def beat(self) -> None:
        """Renews the leases of all runs that are held, and notes which were taken away."""
        with self.lock:
            if self.ledger is None or not self.held:
                return
            seconds = self.execution.lease_seconds
            still = self.ledger.heartbeat(self.worker, list(self.held), seconds)
            self.callback.on_counts(self.ledger.counts(self.keys, self.worker))
            self.lost.update(claim for key, claim in self.held.items() if key not in still)

    def record(self, claim: Claim, epochs: list[dict[str, Any]]) -> bool:
        """Writes down epochs of a run that goes on; tells whether it is still this worker's."""
        assert self.ledger is not None
        if not self.is_lost(claim) and self.ledger.record(claim, self.worker, epochs):
            return True
        self.mark_lost(claim)
        return False

    def mark_lost(self, claim: Claim) -> None:
        """Notes that a run was taken from this worker; its thread leaves it alone."""
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
        """Writes down how a run ended; tells whether it was still this worker's to do so."""
        held = self.ledger is not None and self.ledger.finish(
            claim, self.worker, state, result, epochs
        )
        if held:
            self.callback.on_run_end(claim.key, state, result)
        self.let_go(claim)
        return held

    def fail(self, claim: Claim, error: BaseException, *, for_good: bool = False) -> None:
        """Writes down that a run raised; it is tried again, but not for ever."""
        if self.ledger is not None and not self.is_lost(claim):
            # JAX adds a note to what passes through it, which says nothing of what was raised.
            message = "".join(traceback.format_exception_only(type(error), error))
            message = message.partition("\n-----")[0].strip()[:500]
            trace = "".join(traceback.format_exception(error))
            most = 1 if for_good else self.execution.max_attempts
            state = self.ledger.fail(claim, self.worker, trace, message=message, max_attempts=most)
            if state in ("waiting", "failed"):
                self.callback.on_run_end(claim.key, state, {"message": message})
        self.let_go(claim)

    def lost_attempts(self, claim: Claim) -> int:
        """How often a run's worker ended without a result."""
        if self.ledger is None:
            return 0
        found = [attempt["outcome"] for attempt in self.ledger.attempts(claim.key)]
        # Counted anew since it was last given up, when somebody asked for another try.
        given_up = max((i for i, outcome in enumerate(found) if outcome == "raised"), default=-1)
        return found[given_up + 1 :].count("lost")

    def release(self, claim: Claim) -> None:
        """Lets a run wait again; its checkpoints stay."""
        if self.ledger is not None and not self.is_lost(claim):
            self.ledger.release(claim, self.worker)
            self.callback.on_run_end(claim.key, "waiting", {"message": "to be resumed"})
        self.let_go(claim)


def versions() -> dict[str, str]:
    """Of what the numbers of a run depend on, as the ledger keeps it."""
    found = {"python": platform.python_version()}
    for package in ("nf_resnets", "jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def device_name() -> str:
    """The devices, such as ``8 x TPU v4``."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind}"


__all__ = [
    "CANDIDATES", "FORMAT", "GAIN", "Claims", "Clock", "Cost", "Execution", "Programs", "describe",
    "device_name", "estimate", "measure", "remember", "seconds_per_step", "total", "versions",
]  # fmt: skip
