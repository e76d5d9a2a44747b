"""A signal to stop, from a cloud that takes its machine back or from Ctrl-C, as a flag."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Preemption:
    """Turns SIGTERM and SIGINT into a flag that a loop looks at between its steps.

    The first signal sets the flag and puts the previous handlers back, for a second one. Nothing is
    installed outside the main thread, nor for a signal that is ignored, as ``nohup`` asks.

    Attributes:
      signal: the signal that came, or None.

    Example:
      >>> with Preemption() as stop:
      ...     for step in range(1000):
      ...         if step == 3:
      ...             signal.raise_signal(signal.SIGTERM)
      ...         if stop.requested:
      ...             break
      >>> step, stop.exit_code
      (3, 143)
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """The status that a shell expects of a process so ended: 128 + signal, or 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Preemption:
        self.signal = None
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                previous = signal.getsignal(number)
                if previous not in (signal.SIG_IGN, None):
                    self._previous[number] = previous
                    signal.signal(number, self._request)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._restore()

    def _restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous)
