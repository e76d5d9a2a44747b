"""Makes what is missing of a sweep: waves of runs, in threads that share compiled programs.

Runs are grouped by program, and a group is cut into equal waves.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from nf_resnets import training
from nf_resnets.machine import maker
from nf_resnets.sweep.rows import FAILED, Rows
from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan
from nf_resnets.training.state import TrainState
from nf_resnets.training.wave import Hooks, Stopped, row_of, train

MOST_WORKERS = 8
"""Threads on a CPU that has more cores than that."""

RUNS_PER_DEVICE = 4
"""Runs that an accelerator carries at a time, where the command does not say; fewer where they do
not fit its memory."""

_THREAD = "nf-resnets-wave"
_SIGNAL_SECONDS = 0.05


class Task(Protocol):
    """What the runs of a sweep are."""

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a run that cannot be spread over so many devices, with a ``ValueError``."""

    def build(self, plan: Plan, mesh: Mesh, *, runs_per_device: int) -> Program:
        """Compiles the program of a run."""

    def start(self, plan: Plan) -> Start | TrainState:
        """How a run begins: in what it differs from others of its program, or its first state."""

    @property
    def probe(self) -> Callable[..., Mapping[str, Any]] | None:
        """See :class:`nf_resnets.training.Hooks`."""

    @property
    def finish(self) -> Callable[..., Mapping[str, Any]] | None:
        """See :class:`nf_resnets.training.Hooks`."""


Wave = tuple[Plan, ...]
"""Runs of one program that train together, from their first step to their last."""


def name_of(wave: Wave) -> str:
    """The name of the folder of a wave's checkpoints, which follows from its runs."""
    return hashlib.sha256("".join(plan.key for plan in wave).encode()).hexdigest()[:20]


def cut(plans: Iterable[Plan], most: int, begun: Iterable[Sequence[str]] = ()) -> list[Wave]:
    """Cuts runs into waves: those of one program, by rising learning rate.

    A wave has at most ``most`` of them. Those that diverge have the highest rates; so they share
    waves, which end early. ``begun`` are the keys of waves that have checkpoints: these come first,
    and stay as they are.
    """
    left = {plan.key: plan for plan in plans}
    waves = []
    for keys in begun:
        if left.keys() >= set(keys):
            waves.append(tuple(left.pop(key) for key in keys))
    groups: dict[str, list[Plan]] = {}
    for plan in left.values():
        groups.setdefault(plan.program, []).append(plan)
    for group in groups.values():
        group.sort(key=lambda plan: plan.settings.get("peak_lr", 0.0))
        parts = np.array_split(range(len(group)), -(-len(group) // most))
        waves += [tuple(group[at] for at in part) for part in parts]
    return waves


@dataclasses.dataclass(frozen=True)
class Execution:
    """How runs are made. It changes numbers by rounding only, which training amplifies."""

    workers: int = 0
    """Waves at work at a time; 0 for one a core on a CPU (up to 8), one elsewhere."""
    devices_per_run: int = 1
    """Over how many devices a run's batch is sharded; 0 for all."""
    runs_per_device: int = 0
    """How many runs a device carries at a time; 0 for one on a CPU, and elsewhere for 4, or fewer
    where its memory is full."""
    save_seconds: float = 60.0
    """Seconds between two checkpoints of a wave."""

    def check(self) -> None:
        """Refuses numbers that are out of their range."""
        for name, value in vars(self).items():
            if not value >= 0:
                raise ValueError(f"{name}={value} found; expected a number of at least 0.")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a call of :func:`make`.

    Attributes:
      rows: of the runs that are over, by key.
      stopped: whether it was told to stop before all were over.
      programs: how many programs were compiled.
    """

    rows: Mapping[str, dict[str, Any]]
    stopped: bool
    programs: int


def make(
    task: Task,
    plans: Sequence[Plan],
    rows: Rows,
    *,
    callback: Callback = Callbacks(),  # noqa: B008 (passes events on to nobody)
    stop: Callable[[], bool] = lambda: False,
    execution: Execution = Execution(),
    devices: Sequence[jax.Device] | None = None,
) -> Outcome:
    """Makes the runs that have no row.

    Args:
      task: what the runs are.
      plans: the runs of the whole grid, also for a shard, which makes every ``n``-th wave.
      rows: open; where the results are kept. Checkpoints lie beside them.
      callback: is told what happens.
      stop: ``stop()`` is called about once a second; once it is true, all waves are saved.
      execution: how the runs are made.
      devices: the devices to train on; by default all, of every process.

    Raises:
      ValueError: if a number of ``execution`` is negative, or devices or a batch do not divide by
        ``devices_per_run``.
      OSError: if rows or checkpoints cannot be written.
    """
    execution.check()
    devices = list(jax.devices() if devices is None else devices)
    mesh = sweep_mesh(devices, execution.devices_per_run or len(devices))
    for plan in {plan.program: plan for plan in plans}.values():
        task.check(plan, mesh.shape[training.DATA])
    programs = Programs(task, mesh, callback)
    folder = rows.folder / "checkpoints"
    begun, over = hosts.broadcast([_begun(folder), rows.keys()])
    rows.follow(over)
    axis = mesh.shape[training.SWEEP]
    on_cpu = devices[0].platform == "cpu"
    width = axis * (execution.runs_per_device or (1 if on_cpu else RUNS_PER_DEVICE))
    index, count = rows.shard
    # A shard's part follows from the grid alone: what others have begun or ended changes with time.
    part = [plan for wave in cut(plans, width)[index::count] for plan in wave]
    missing = _missing(cut(part, width, begun), rows, begun)
    work = _Work(task, rows, execution, callback, stop, programs, axis, missing)
    threads = min(execution.workers or default_workers(devices), len(work.queue))
    if jax.process_count() > 1:
        work.thread()  # all processes train the same wave
    else:
        work.in_threads(threads)
    if work.errors:
        raise work.errors[0]
    of_all = rows.read()
    there = {plan.key: of_all[plan.key] for plan in plans if plan.key in of_all}
    # Another shard may be trying a failed run again.
    over = {key for key, row in of_all.items() if row["state"] not in FAILED}
    if all(plan.key in there for plan in plans) and hosts.is_process_zero():
        for checkpoints in _of_waves(folder):
            # Runs of another grid may have been stopped in the same folder.
            if over >= set((checkpoints.facts() or {"keys": ()})["keys"]):
                checkpoints.delete()
        with contextlib.suppress(OSError):  # something else is in it
            folder.rmdir()
    return Outcome(there, hosts.any_process(stop()), programs.compiled)


def sweep_mesh(devices: Sequence[jax.Device], devices_per_run: int) -> Mesh:
    """The mesh of a sweep, whose ``data`` axis has the devices of one run."""
    if devices_per_run < 1 or len(devices) % devices_per_run:
        raise ValueError(
            f"devices_per_run={devices_per_run} found; expected a divisor of the {len(devices)} "
            "devices."
        )
    return training.make_mesh(len(devices) // devices_per_run, devices_per_run, devices=devices)


def default_workers(devices: Sequence[jax.Device]) -> int:
    """How many threads train at a time: one a core on a CPU of one device, else one."""
    if len(devices) > 1 or devices[0].platform != "cpu":
        return 1
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return min(len(allowed) or os.cpu_count() or 1, MOST_WORKERS)


def is_at_work() -> bool:
    """Whether a thread is left that still compiles, since a compilation cannot be interrupted."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def _of_waves(folder: Path) -> list[Checkpoints]:
    """The checkpoints in a folder, by the names of waves; others may keep theirs there."""
    return [Checkpoints(path) for path in sorted(folder.glob("[0-9a-f]" * 20))]


def _begun(folder: Path) -> list[list[str]]:
    """The keys of the waves that have checkpoints."""
    if not hosts.is_process_zero():
        return []
    all_facts = (checkpoints.facts() for checkpoints in _of_waves(folder))
    return [facts["keys"] for facts in all_facts if facts is not None]


def _missing(waves: Iterable[Wave], rows: Rows, begun: Sequence[Sequence[str]]) -> list[Wave]:
    """The waves with runs to make: begun ones whole, others without the runs that are over."""
    missing = []
    for wave in waves:
        left = tuple(plan for plan in wave if plan.key not in rows)
        if left:
            missing.append(wave if [plan.key for plan in wave] in begun else left)
    return missing


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


class Programs:
    """The programs that threads share: the first one that asks for a program compiles it.

    One that no thread holds any more is dropped: a process may hold 65,530 pieces of memory on
    Linux, of which a program on a CPU takes about a thousand. ``compiled`` counts all.
    """

    def __init__(self, task: Task, mesh: Mesh, callback: Callback) -> None:
        self._task, self._mesh, self._callback = task, mesh, callback
        self._locks: dict[Any, threading.Lock] = {}
        self._held: weakref.WeakValueDictionary[Any, Program] = weakref.WeakValueDictionary()
        self.compiled = 0

    def get(self, plan: Plan, runs_per_device: int) -> Program:
        """Compiles a run's program, or waits for the thread that does."""
        name = plan.program, runs_per_device
        with self._locks.setdefault(name, threading.Lock()):
            program = self._held.get(name)
            if program is None:
                program = self._held[name] = self._compile(plan, runs_per_device)
            return program

    def _compile(self, plan: Plan, runs_per_device: int) -> Program:
        self._callback.on_compile_begin(plan.program, plan.label)
        begun, slots = time.perf_counter(), 0
        try:
            program = self._task.build(plan, self._mesh, runs_per_device=runs_per_device)
            slots = program.slots
            self.compiled += 1
            return program
        finally:
            self._callback.on_compile_end(plan.program, time.perf_counter() - begun, slots)


@dataclasses.dataclass
class _Work:
    """The waves that are left, and the threads that train them."""

    task: Task
    rows: Rows
    execution: Execution
    callback: Callback
    stop: Callable[[], bool]
    programs: Programs
    axis: int  # devices of the mesh's sweep axis
    queue: list[Wave]
    errors: list[BaseException] = dataclasses.field(default_factory=list)
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    taken: set[str] = dataclasses.field(default_factory=set)  # programs
    compiling: set[threading.Thread] = dataclasses.field(default_factory=set)

    def must_stop(self) -> bool:
        """Whether to save and leave."""
        return self.stop() or bool(self.errors)

    def in_threads(self, count: int) -> None:
        """Trains all waves in so many threads; at a stop, does not wait for those that compile."""
        threads = [
            threading.Thread(target=self.thread, name=_THREAD, daemon=True) for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        try:
            while at_work := [thread for thread in threads if thread.is_alive()]:
                # Python handles signals in this thread only. The system may deliver one to another
                # thread, which does not wake this one; so it wakes by itself.
                at_work[0].join(_SIGNAL_SECONDS)
                if self.stop() and self.compiling >= {t for t in at_work if t.is_alive()}:
                    break
        except BaseException as error:
            self.errors.append(error)
            raise

    def thread(self) -> None:
        """Trains waves until none is left; it holds the last one's program for the next."""
        name, program = "", None
        try:
            while not hosts.any_process(self.must_stop()):
                wave = self.next(name)
                if wave is None:
                    return
                name, program = wave[0].program, self.one(wave, program)
        except Stopped:
            pass
        except BaseException as error:
            self.errors.append(error)

    def next(self, program: str) -> Wave | None:
        """The next wave: of the thread's program, else of one that no thread has taken."""
        with self.lock:
            if not self.queue:
                return None
            names = [wave[0].program for wave in self.queue]
            order = [(name != program, name in self.taken) for name in names]
            wave = self.queue.pop(order.index(min(order)))
            self.taken.add(wave[0].program)
            return wave

    def one(self, wave: Wave, program: Program | None) -> Program | None:
        """Trains a wave; what raises becomes rows of its runs. Returns the program that it used."""
        place = self.rows.folder / "checkpoints" / name_of(wave)
        width = -(-len(wave) // self.axis)
        try:
            me = threading.current_thread()
            self.compiling.add(me)
            try:
                program = self.programs.get(wave[0], width)
            finally:
                self.compiling.discard(me)
            if self.must_stop() and jax.process_count() == 1:
                raise Stopped
            writes, checkpoints = hosts.is_process_zero(), Checkpoints(place)
            train(
                program,
                [self.task.start(plan) for plan in wave],
                wave,
                checkpoints=checkpoints,
                hooks=Hooks(
                    callback=self.callback if writes else Callbacks(),
                    record=self.record, stop=self.must_stop,
                    probe=self.task.probe, finish=self.task.finish,
                ),
                save_seconds=self.execution.save_seconds,
            )  # fmt: skip
            if writes:
                checkpoints.delete()
        except (Stopped, OSError):
            raise
        except Exception as error:
            if jax.process_count() > 1:
                raise  # the others wait in a collective: all have to end
            self.fail(wave, error, place)
        return program

    def record(self, rows: Sequence[dict[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Keeps the rows of runs that have ended, with the machine that made them."""
        made = maker()
        return self.rows.add([{**row, "made": made} for row in rows])

    def fail(self, wave: Wave, error: Exception, place: Path) -> None:
        """Records what raised; a wave that is too large for the memory is tried in halves."""
        text = str(error)
        oom = "RESOURCE_EXHAUSTED" in text or "ut of memory" in text
        half = len(wave) // 2
        if oom and len(wave) > self.axis:
            self.callback.on_message(f"{len(wave)} runs at a time do not fit the memory")
            with self.lock:
                self.queue[:0] = [wave[:half], wave[half:]]
            return
        Checkpoints(place).delete()
        failed = [
            row_of(plan, "oom" if oom else "failed", f"{type(error).__name__}: {text}")
            | {"traceback": traceback.format_exc()}
            for plan in wave
        ]
        for row in self.record(failed):
            self.callback.on_run_end(row["key"], row["state"], row)
