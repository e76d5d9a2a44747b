"""Where the time of a sweep goes."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

KINDS = ("computing", "compiling", "idle")
"""In compiled functions; making them; waiting for runs that others hold. The rest is overhead."""


class Clock:
    """Adds up seconds by kind, over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._working = 0.0

    @contextlib.contextmanager
    def spent(self, kind: str) -> Iterator[None]:
        """Counts the time inside as of that kind."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[kind] += time.perf_counter() - start

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Counts the time inside as that of a thread, of whichever kind."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._working += time.perf_counter() - start

    def seconds(self) -> dict[str, float]:
        """Seconds of threads by kind, with ``outside``: in no compiled function, nor waiting."""
        with self._lock:
            known = dict(self._seconds)
            return {**known, "outside": max(0.0, self._working - sum(known.values()))}

    def fraction_outside(self) -> float:
        """Of the time in which there was work, the fraction outside compiled functions."""
        seconds = self.seconds()
        busy = seconds["computing"] + seconds["outside"]
        return seconds["outside"] / busy if busy else 0.0


__all__ = ["KINDS", "Clock"]
