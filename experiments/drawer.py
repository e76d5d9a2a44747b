"""Draws the figure again as runs end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Drawer:
    """A callback and a context manager that draws in a thread of its own.

    Args:
      draw: draws; what it raises is left to the last drawing, since some rows are missing here.
      tell: gets one sentence when there is a first picture.
      path: of the picture.
    """

    def __init__(self, draw: Callable[[], None], tell: Callable[[str], None], path: Path) -> None:
        self._draw, self._tell, self._path = draw, tell, path
        self._ended, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="drawer", daemon=True)

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: None

    def on_run_end(self, *_: Any) -> None:
        """A run has ended."""
        self._ended.set()

    def __enter__(self) -> Drawer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        is_first = True
        while self._ended.wait() and not self._over.is_set():
            self._ended.clear()
            begun = time.monotonic()
            with contextlib.suppress(Exception):
                self._draw()
                if is_first:
                    self._tell(f"The figure so far, drawn again as runs end: {self._path}")
                is_first = False
            # At most a twentieth of the time goes there.
            self._over.wait(19 * (time.monotonic() - begun))


__all__ = ["Drawer"]
