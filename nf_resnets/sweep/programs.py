"""What a sweep trains, and its programs: compiled once for all threads, and timed."""

from __future__ import annotations

import statistics
import threading
import time
import weakref
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


class Programs:
    """The programs that threads share: the first one that asks for a program compiles it.

    A program that no thread holds any more is dropped: a process may hold 65,530 pieces of memory
    on Linux, and on a CPU a program takes about a thousand of them.

    Attributes:
      compiled: how many programs were compiled.
    """

    def __init__(
        self, task: Task, mesh: Mesh, callback: Callback, vectorize: Vectorize = "auto"
    ) -> None:
        self._task, self._mesh, self._callback, self._vectorize = task, mesh, callback, vectorize
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
            program = self._task.build(
                plan, self._mesh, runs_per_device=runs_per_device, vectorize=self._vectorize
            )
            slots = program.slots
            self.compiled += 1
            return program
        finally:
            self._callback.on_compile_end(plan.program, time.perf_counter() - begun, slots)


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


__all__ = ["Programs", "Task", "describe", "step_seconds", "store_programs"]
