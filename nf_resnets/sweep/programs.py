"""The programs of a sweep: compiled once, for as many runs on a device as pay; what they cost."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import numpy as np
import tyro
from jax.sharding import Mesh

from nf_resnets.sweep.ledger import Ledger
from nf_resnets.sweep.task import Resolved, Task
from nf_resnets.training.callbacks import Callback
from nf_resnets.training.program import Program, Start

CANDIDATES = (1, 2, 4, 8, 16)
"""Runs on a device that are tried."""

GAIN = 1.1
"""Twice as many runs must be faster by this factor a run, or the search ends."""


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


class Compiled(NamedTuple):
    """What is kept of a program after its runs."""

    slots: int
    mesh: Mesh
    seconds: float  # of compiling it


class Programs:
    """The programs of a sweep: each is compiled once, by whichever thread comes first.

    A program that no thread uses any more is dropped: a process may hold 65,530 pieces of memory
    on Linux, and on a CPU a program takes about a thousand of them.

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
        self._users: Counter[str] = Counter()
        self.built: dict[str, Program] = {}
        self.compiled: dict[str, Compiled] = {}

    def get(self, run: Resolved) -> Program:
        """The program of a run, kept until as many calls of :meth:`release`."""
        with self._lock:
            lock = self._locks.setdefault(run.program, threading.Lock())
            self._users[run.program] += 1
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
                self.compiled[run.program] = Compiled(slots, program.mesh, seconds)
            return self.built[run.program]

    def release(self, name: str) -> None:
        """Drops a program if no other thread uses it."""
        with self._lock:
            self._users[name] -= 1
            if not self._users[name]:
                self.built.pop(name, None)

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


def remember(ledger: Ledger, rows: Sequence[Mapping[str, Any]], compiled: Mapping[str, Compiled],
             device: str) -> None:  # fmt: skip
    """Writes down what a step has cost, from the runs that this worker made."""
    times_of: dict[str, list[float]] = {}
    for row in rows:
        if row["state"] == "finished" and row["seconds"] and row["steps_done"]:
            times_of.setdefault(row["program"], []).append(row["seconds"] / row["steps_done"])
    for name, (slots, mesh, seconds) in compiled.items():
        times = times_of.get(name)
        if times:
            runs = slots * len(mesh.devices[0]) // len(jax.devices())
            ledger.measure(name, device, runs, statistics.median(times), seconds)


def store_programs(folder: Path) -> None:
    """Stores compiled programs in a sweep's folder, for the next start.

    Not on a CPU: programs that call oneDNN cannot be stored, and those that can be stored are
    slower.
    """
    if jax.devices()[0].platform == "cpu":
        return
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str((folder / "compiled").resolve()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def describe(run: Resolved) -> str:
    """A program in a few words."""
    settings = run.settings
    return f"{settings['model']}, {settings['scheme']}, batch {settings['batch_size']}"


__all__ = [
    "CANDIDATES", "GAIN", "Compiled", "Cost", "Execution", "Programs", "describe", "estimate",
    "measure", "remember", "seconds_per_step", "store_programs", "total",
]  # fmt: skip
