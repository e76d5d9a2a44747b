"""What a sweep trains, and whom it tells: the protocols of tasks and of callbacks."""

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


class Callback(Protocol):
    """Receives the events of a sweep. Called from several threads; must not raise."""

    def on_compile_begin(self, program: str, label: str) -> None:
        """A program is being compiled; ``label`` says for which runs."""

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """The program is compiled, with room for so many runs: 0 if it could not be."""

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run enters a slot, at a step that is not 0 if it is resumed."""

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has reached a step.

        Args:
          key: of the run.
          step: steps made.
          curve: ``loss``, ``accuracy``, ``grad_norm``, ``update_norm`` of the steps since the last
            call, float32 [n] each.
        """

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over; ``row`` is what the ledger keeps of it."""

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run leaves its slot, or could not enter one.

        Args:
          key: of the run.
          state: ``finished``, ``diverged``, ``oom`` or ``failed``; ``waiting`` if it is to be
            resumed or tried again; ``lost`` if another worker has it.
          result: what the ledger keeps of it.
        """

    def on_counts(self, counts: Mapping[str, int]) -> None:
        """How many runs are in each state: ``running`` at this worker, or ``elsewhere``."""

    def on_message(self, text: str) -> None:
        """Anything else worth a line."""


def _passed_on(event: str) -> Any:
    """A method of `Callbacks` that passes an event on."""

    def call(self: Callbacks, *values: Any) -> None:
        for place, callback in enumerate(self._callbacks):
            try:
                getattr(callback, event)(*values)
            except Exception as error:
                if place not in self._raised:
                    self._raised.add(place)
                    self.on_message(f"{type(callback).__name__}.{event} raised: {error!r}")

    return call


class Callbacks:
    """Passes each event on to several callbacks, in their order.

    One that raises disturbs neither the sweep nor the others, which are sent one message about it.
    """

    def __init__(self, *callbacks: Callback) -> None:
        self._callbacks = callbacks
        self._raised: set[int] = set()

    on_compile_begin = _passed_on("on_compile_begin")
    on_compile_end = _passed_on("on_compile_end")
    on_run_begin = _passed_on("on_run_begin")
    on_step = _passed_on("on_step")
    on_epoch = _passed_on("on_epoch")
    on_run_end = _passed_on("on_run_end")
    on_counts = _passed_on("on_counts")
    on_message = _passed_on("on_message")


__all__ = ["LATER", "Callback", "Callbacks", "Resolved", "Task", "filled"]
