"""What a sweep trains, and its programs: compiled once for all threads, and timed."""

from __future__ import annotations

import concurrent.futures
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from nf_resnets.training.callbacks import Callback
from nf_resnets.training.mesh import Vectorize
from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan
from nf_resnets.training.state import TrainState


class Task(Protocol):
    """What the runs of a sweep are."""

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a run that cannot be spread over so many devices, with a ``ValueError``."""

    def build(
        self, plan: Plan, mesh: Mesh, *, runs_per_device: int, vectorize: Vectorize
    ) -> Program:
        """Compiles the program of a run."""

    def start(self, plan: Plan) -> Start | TrainState:
        """How a run begins: in what it differs from others of its program, or its first state."""

    @property
    def probe(self) -> Callable[[Program, Plan, Any, int], Mapping[str, Any]] | None:
        """See :class:`nf_resnets.training.Hooks`."""

    @property
    def finish(self) -> Callable[[Program, Plan, Any], Mapping[str, Any]] | None:
        """See :class:`nf_resnets.training.Hooks`."""


Name = tuple[str, int]
"""A program's name, and how many runs a device carries."""


class Programs:
    """The programs that threads share: the first one that asks for a program compiles it.

    A program that no thread uses any more is dropped: a process may hold 65,530 pieces of memory
    on Linux, and on a CPU a program takes about a thousand of them.

    Attributes:
      compiled: how many programs were compiled.
    """

    def __init__(
        self, task: Task, mesh: Mesh, callback: Callback, vectorize: Vectorize = "auto"
    ) -> None:
        self._task, self._mesh, self._callback, self._vectorize = task, mesh, callback, vectorize
        self._lock = threading.Lock()
        self._futures: dict[Name, concurrent.futures.Future[Program]] = {}
        self._users: dict[Name, int] = {}
        self.compiled = 0

    def acquire(self, plan: Plan, runs_per_device: int) -> Program:
        """Compiles a run's program, or waits for the thread that does; kept until `release`."""
        name = plan.program, runs_per_device
        with self._lock:
            is_first = name not in self._futures
            future = self._futures.setdefault(name, concurrent.futures.Future())
            self._users[name] = self._users.get(name, 0) + 1
        if is_first:
            self._compile(plan, runs_per_device, future)
        try:
            return future.result()
        except BaseException:
            self.release(name)
            raise

    def _compile(
        self, plan: Plan, runs_per_device: int, future: concurrent.futures.Future[Program]
    ) -> None:
        self._callback.on_compile_begin(plan.program, plan.label)
        begun, slots = time.perf_counter(), 0
        try:
            program = self._task.build(
                plan, self._mesh, runs_per_device=runs_per_device, vectorize=self._vectorize
            )
            slots = program.slots
            future.set_result(program)
        except BaseException as error:
            future.set_exception(error)
        with self._lock:
            self.compiled += bool(slots)
        self._callback.on_compile_end(plan.program, time.perf_counter() - begun, slots)

    def get(self, name: Name) -> Program:
        """A program that the thread has acquired."""
        return self._futures[name].result()

    def release(self, name: Name | None) -> None:
        """Drops a program if no other thread uses it."""
        if name is None:
            return
        with self._lock:
            self._users[name] -= 1
            if not self._users[name]:
                del self._users[name], self._futures[name]


def step_seconds(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The seconds of one step of one run, by the finished runs of the program, or None."""
    times = [
        row["seconds"] / row["steps_done"]
        for row in rows
        if row["program"] == plan.program and row["state"] == "finished"
    ]
    return statistics.median(times) if times else None


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


def describe(plan: Plan) -> str:
    """A program in a few words."""
    settings = plan.settings
    return f"{settings['model']}, {settings['scheme']}, batch {settings['batch_size']}"


__all__ = ["Name", "Programs", "Task", "describe", "step_seconds", "store_programs"]
