"""Several onlookers of one sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nf_resnets.sweep.settings import RunSettings
from nf_resnets.sweep.watch import Watch


class Several:
    """Passes each event on to several watches; one that raises disturbs neither sweep nor others.

    Args:
      watches: in the order in which they are told.
    """

    def __init__(self, *watches: Watch) -> None:
        self.watches = watches
        self._complained: set[int] = set()

    def compiling(self, settings: RunSettings, program: str) -> None:
        """A program is being compiled, for the sake of a first run."""
        self._tell("compiling", settings, program)

    def compiled(self, program: str, seconds: float, slots: int) -> None:
        """The program is there."""
        self._tell("compiled", program, seconds, slots)

    def began(self, key: str, settings: RunSettings, step: int, num_steps: int) -> None:
        """A run takes its seat, at a step that is not 0 if it goes on."""
        self._tell("began", key, settings, step, num_steps)

    def went_on(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has come to a step."""
        self._tell("went_on", key, step, curve)

    def tested(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over."""
        self._tell("tested", key, step, row)

    def ended(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is over, or waits again."""
        self._tell("ended", key, state, result)

    def counted(self, counts: Mapping[str, int]) -> None:
        """How many of the grid's runs are in each state."""
        self._tell("counted", counts)

    def note(self, text: str) -> None:
        """Something else worth a line."""
        self._tell("note", text)

    def _tell(self, event: str, *values: Any) -> None:
        for place, watch in enumerate(self.watches):
            try:
                getattr(watch, event)(*values)
            except Exception as error:
                if place not in self._complained:
                    self._complained.add(place)
                    # The others are told once; the one that raised is out of this by its place.
                    self.note(f"{type(watch).__name__}.{event} raised: {error!r}")


__all__ = ["Several"]
