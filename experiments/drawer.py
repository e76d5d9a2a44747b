"""Draws the figure again as runs end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any


class Drawer:
    """A callback that calls ``draw`` as runs end, in at most a twentieth of the time.

    What ``draw`` raises is left to the last drawing, since some rows are missing here.
    """

    def __init__(self, draw: Callable[[], Any]) -> None:
        self._draw, self._lock, self._next = draw, threading.Lock(), 0.0

    def on_run_end(self, *_: Any) -> None:
        """A run has ended."""
        begun = time.monotonic()
        if begun >= self._next and self._lock.acquire(blocking=False):
            with contextlib.suppress(Exception):
                self._draw()
            self._next = time.monotonic() + 19 * (time.monotonic() - begun)
            self._lock.release()
