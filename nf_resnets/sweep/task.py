"""What a sweep trains: the protocol of tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from jax.sharding import Mesh

from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan
from nf_resnets.training.state import TrainState
from nf_resnets.training.step import Vectorize


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


__all__ = ["Task"]
