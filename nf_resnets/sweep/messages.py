"""Settings, runs and times as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SHORT = {"batch_size": "batch", "peak_lr": "rate"}
"""Settings that go by another name where space is short."""

SINGLE = ("scheme", "batch_size", "peak_lr", "seed")
"""The settings that name a run where nothing is swept."""

LONGEST = 300
"""Characters of a message that are shown."""


def value_text(name: str, value: Any) -> str:
    """A setting's value: rates that are powers of two as such.

    Example:
      >>> [value_text("peak_lr", rate) for rate in (0.125, 1.0, 4.0, 0.1)]
      ['2^-3', '2^0', '2^2', '0.1']
      >>> value_text("alpha", None), value_text("flip", True), value_text("momentum", 0.9)
      ('none', 'true', '0.9')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if name == "peak_lr" and value > 0:
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5:
            return f"2^{exponent - 1}"
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def swept(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The settings that tell the runs of a grid apart."""
    return [name for name, values in axes.items() if len(values) > 1]


def label(settings: Mapping[str, Any], names: Iterable[str] = SINGLE) -> str:
    """A run's name: texts first, then the batch size, other numbers, the rate, the seed.

    Example:
      >>> label({"peak_lr": 0.125, "seed": 0, "batch_size": 64, "scheme": "fixup"})
      'fixup, batch 64, rate 2^-3, seed 0'
    """
    places = {"batch_size": 1, "peak_lr": 3, "seed": 4}
    parts = []
    for name in names:
        is_text = isinstance(settings[name], str)
        text = value_text(name, settings[name])
        place = 0 if is_text else places.get(name, 2)
        parts.append((place, text if is_text else f"{SHORT.get(name, name)} {text}"))
    return ", ".join(text for _, text in sorted(parts, key=lambda part: part[0]))


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


def printable(text: str) -> str:
    """One line without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:LONGEST]


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where there is none."""
    there = fraction is not None and math.isfinite(fraction)
    return f"{fraction:.1%}" if there else "-"


__all__ = [
    "LONGEST", "SHORT", "SINGLE", "duration_text", "label", "percent", "printable", "swept",
    "value_text",
]  # fmt: skip
