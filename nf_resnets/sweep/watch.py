"""What a sweep tells whoever is looking on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from nf_resnets.sweep.settings import RunSettings


class Watch(Protocol):
    """Is told what happens; called from several threads. It must not raise."""

    def compiling(self, settings: RunSettings, program: str) -> None:
        """A program is being compiled, for the sake of a first run."""

    def compiled(self, program: str, seconds: float, slots: int) -> None:
        """The program is there."""

    def began(self, key: str, settings: RunSettings, step: int, num_steps: int) -> None:
        """A run takes its seat, at a step that is not 0 if it goes on."""

    def went_on(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has come to a step.

        Args:
          key: of the run.
          step: steps made.
          curve: ``loss``, ``accuracy``, ``grad_norm``, ``update_norm`` of the steps since last
            time, float32 [n] each.
        """

    def tested(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over: its row as the ledger has it."""

    def ended(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run has come to an end here.

        It is ``finished``, ``diverged``, ``oom`` or ``failed``, or it is ``waiting`` again, or
        ``lost`` to another worker.
        """

    def counted(self, counts: Mapping[str, int]) -> None:
        """How many of the grid's runs are in each state.

        Those that run are ``running`` here, claimed and perhaps still waiting for their program, or
        ``elsewhere``, at other workers.
        """

    def note(self, text: str) -> None:
        """Something else worth a line."""


__all__ = ["Watch"]
