"""Settings, runs and times in words, as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.sweep.settings import FIELDS

SHORT = {"batch_size": "batch", "peak_lr": "rate"}
"""Settings that go by another name where space is short."""

SINGLE = ("scheme", "batch_size", "peak_lr", "seed")
"""The settings that name a run where nothing is swept."""

LONGEST = 300
"""Characters of a message that are shown."""


def value_text(name: str, value: Any) -> str:
    """A setting's value as it is shown: rates that are powers of two as such.

    Example:
      >>> [value_text("peak_lr", rate) for rate in (0.125, 1.0, 4.0, 0.1)]
      ['2^-3', '2^0', '2^2', '0.1']
      >>> value_text("alpha", None), value_text("flip", True), value_text("momentum", 0.9)
      ('none', 'true', '0.9')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name == "peak_lr" and value > 0:
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5:
            return f"2^{exponent - 1}"
    return f"{value:g}" if isinstance(value, float) else printable(str(value))


def swept(axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """The settings that tell the runs of a grid apart, as they are read."""
    return in_order(name for name, values in axes.items() if len(values) > 1)


def label(settings: Mapping[str, Any], names: Iterable[str] = SINGLE) -> str:
    """A run in words: its values of the named settings.

    Example:
      >>> label({"peak_lr": 0.125, "seed": 0, "batch_size": 64, "scheme": "fixup"})
      'fixup, batch 64, rate 2^-3, seed 0'
    """
    parts = []
    for name in in_order(names):
        text = value_text(name, settings[name])
        parts.append(text if FIELDS[name][0] is str else f"{SHORT.get(name, name)} {text}")
    return ", ".join(parts)


def duration_text(seconds: float) -> str:
    """Seconds as they are read, to two digits or so.

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


def in_order(names: Iterable[str]) -> list[str]:
    """Settings as they are read: texts first, then the batch size, the rate and the seed last."""
    last = {"peak_lr": 3, "seed": 4}
    return sorted(
        names,
        key=lambda name: last.get(
            name, 0 if FIELDS[name][0] is str else 1 if name == "batch_size" else 2
        ),
    )


def printable(text: str) -> str:
    """One line without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:LONGEST]


def percent(accuracy: float | None) -> str:
    """A share in percent; a dash where there is none."""
    there = accuracy is not None and math.isfinite(accuracy)
    return f"{accuracy:.1%}" if there else "-"


__all__ = [
    "LONGEST",
    "SHORT",
    "SINGLE",
    "duration_text",
    "in_order",
    "label",
    "percent",
    "printable",
    "swept",
    "value_text",
]
