"""How long a compilation will take: on a CPU so many times as long as tracing and lowering took."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from typing import Any

TIMES = 16.0
"""A program takes about so many times as long to compile as to trace and lower: 10 to 22 times in
WRN-10 to WRN-1000 with and without BatchNorm, on two cores."""

SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

_STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration")
_LONGEST: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))


def duration_text(seconds: float) -> str:
    """Seconds to two digits or so.

    Example:
      >>> [duration_text(seconds) for seconds in (0.0412, 1.23, 9.96, 75, 4000, 180000)]
      ['0.041 s', '1.2 s', '10 s', '1 min 15 s', '1 h 6 min', '2 d 2 h']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds, 0.0):.2g} s"
    whole = round(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def _listen(event: str, duration_secs: float, **_: Any) -> None:
    stage = event.rpartition("/")[2]
    if stage in _STAGES:
        longest = _LONGEST[threading.get_ident()]
        longest[stage] = max(longest[stage], duration_secs)


@functools.cache
def _jax() -> Any:
    """JAX, which tells of its compilations from the first call on; displays do without."""
    import jax

    jax.monitoring.register_event_duration_secs_listener(_listen)
    return jax


class Compiling:
    """A program that this thread compiles from now on.

    Args:
      name: what is compiled, for the display.
    """

    def __init__(self, name: str) -> None:
        self.name, self.began, self._thread = name, time.monotonic(), threading.get_ident()
        _jax()
        _LONGEST.pop(self._thread, None)

    def expected(self) -> float | None:
        """The seconds that it will take in all; None until it is lowered, or not on a CPU."""
        longest = _LONGEST.get(self._thread, {})
        # The functions that are lowered first are small.
        if longest.get(_STAGES[1], 0.0) < 0.1 or _jax().devices()[0].platform != "cpu":
            return None
        return TIMES * sum(longest.values())

    def text(self, now: float) -> str:
        """A line for a terminal, with a spinner."""
        about = self.expected()
        spent = duration_text(max(now - self.began, 0.1))
        line = f"{SPINNER[int(10 * now) % len(SPINNER)]} Compiling {self.name}, {spent}"
        return line if about is None else f"{line} (about {duration_text(about)})"


__all__ = ["SPINNER", "TIMES", "Compiling", "duration_text"]
