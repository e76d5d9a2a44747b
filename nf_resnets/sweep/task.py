"""What a sweep trains: the protocol of tasks."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol

from jax.sharding import Mesh

from nf_resnets.training.program import Program, Start

LATER: Mapping[str, Any] = {
    "dtype": "float32", "gradient_noise": False, "optimizer": "sgd", "base_model": None
}  # fmt: skip
"""Settings that earlier versions did not have, and what their runs were made with. The text of a
run leaves one of these values out, so that such a run keeps its key."""


def filled(row: Mapping[str, Any]) -> dict[str, Any]:
    """Settings, or a row of a ledger, with those that its text leaves out."""
    return {**LATER, **row}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """A run's settings, and what follows from them before anything is compiled."""

    settings: Mapping[str, Any]  # JSON values
    label: str  # what a display calls it
    program: str  # runs of equal names share a compiled program
    num_steps: int
    steps_per_epoch: int  # after so many steps, and at the end, the ledger gets a row
    evaluate_every: int = 1  # epochs between two tests; the last step is always followed by one
    curve_points: int = 200  # of the curve that the ledger keeps, at most
    step_cost: float = 1.0  # of a step, in those of other runs: examples times layers
    # What else the ledger keeps of it, as JSON values.
    facts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def text(self) -> str:
        """The canonical text of the settings."""
        named = {
            name: value
            for name, value in self.settings.items()
            if name not in LATER or value != LATER[name]
        }
        return json.dumps(named, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @functools.cached_property
    def key(self) -> str:
        """The key of the run: SHA-256 of ``text``."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Task(Protocol):
    """What the runs of a sweep are."""

    def resolve(self, settings: Mapping[str, Any]) -> Resolved:
        """What follows from a run's settings."""

    def check(self, run: Resolved, devices_per_run: int) -> None:
        """Refuses a run that cannot be spread over so many devices.

        Raises:
          ValueError: that says which number does not divide.
        """

    def build(
        self,
        run: Resolved,
        mesh: Mesh,
        *,
        runs_per_device: int = 1,
        vectorize: Literal["auto", "vmap", "loop"] = "auto",
    ) -> Program:
        """Compiles the program of a run."""

    def start(self, run: Resolved) -> Start:
        """In what a run differs from others of its program."""

    @property
    def probe(self) -> Callable[[Program, Resolved, Any, int], Mapping[str, Any]] | None:
        """``probe(program, run, state, step)`` gives JSON values for the ledger's row of an epoch.

        It is called with a run's state before its first step and after each epoch.
        """

    @property
    def finish(self) -> Callable[[Program, Resolved, Any], Mapping[str, Any]] | None:
        """``finish(program, run, state)`` gives JSON values for the result of a finished run."""


__all__ = ["LATER", "Resolved", "Task", "filled"]
