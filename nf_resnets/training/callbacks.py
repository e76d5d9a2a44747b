"""The protocol of callbacks: displays and logs of the runs that train."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Callback(Protocol):
    """Receives the events of a sweep, from several threads, or of one training.

    A class with some of the methods is one.
    """

    def on_compile_begin(self, program: str, label: str) -> None:
        """A program is being compiled; ``label`` says for which runs."""

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """The program is compiled, with room for so many runs: 0 if it could not be."""

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run begins, at a step that is not 0 if it is resumed."""

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has reached a step; ``curve`` has the metrics since the last call, float32 [n]."""

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over; ``row`` is the epoch's row."""

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is ``finished``, ``diverged``, ``oom`` or ``failed``; ``result`` is its row."""

    def on_message(self, text: str) -> None:
        """Anything else worth a line."""


class Callbacks:
    """Passes each event on to the callbacks that have a method for it, in their order.

    One that raises disturbs neither the sweep nor the others, which are sent one message about it;
    so is ``say``, for where no display is among them.
    """

    def __init__(self, *callbacks: Any, say: Callable[[str], Any] = lambda text: None) -> None:
        self._callbacks = callbacks
        self._say = say
        self._raised: set[int] = set()

    def __getattr__(self, event: str) -> Any:
        if not event.startswith("on_"):
            raise AttributeError(event)

        def pass_on(*values: Any) -> None:
            for place, callback in enumerate(self._callbacks):
                try:
                    getattr(callback, event, lambda *_: None)(*values)
                except Exception as error:
                    if place not in self._raised:
                        self._raised.add(place)
                        text = f"{type(callback).__name__}.{event} raised: {error!r}"
                        self._say(text)
                        self.on_message(text)

        return pass_on
