"""What a sweep trains, and what is said of its programs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

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


__all__ = ["Task", "describe", "step_seconds", "store_programs"]
