"""Grids: which values of which settings, as they are written on a command line."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.sweep.settings import FIELDS, RunSettings, make, shown, typed

MOST = 1_000_000
"""Points of a grid; more are a slip, such as a range of seeds written in the wrong unit."""

LONGEST = 100
"""Characters of a number."""


def parse(axes: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Reads axes such as ``peak_lr=2^-8:2^2``.

    After the equals sign stand values with commas between them, each a number, a power ``2^-3``, a
    text, ``true``, ``false`` or ``none``, or a range: ``2^-8:2^2`` is every power from the one to
    the other, both included; ``0:5`` is 0, 1, 2, 3, 4, as in Python.

    Args:
      axes: one text for each axis.

    Returns:
      Of each axis its values in the order given, each once.

    Raises:
      ValueError: if an axis has no values or is there twice, a setting is unknown, or a value is
        not one for it; the sentence names the field and the value.

    Example:
      >>> parse(["peak_lr=2^-2:2^0", "seed=0:2", "scheme=fixup,skipinit"])
      {'peak_lr': (0.25, 0.5, 1.0), 'seed': (0, 1), 'scheme': ('fixup', 'skipinit')}
    """
    found: dict[str, tuple[Any, ...]] = {}
    for axis in axes:
        name, equals, text = axis.partition("=")
        name = name.strip().replace("-", "_")
        if not equals:
            raise ValueError(
                f"the axis {axis!r} has no equals sign; expected NAME=VALUES, such as "
                "peak_lr=2^-8:2^2."
            )
        if name in found:
            raise ValueError(f"the axis {name} is there twice; expected all its values in one.")
        typed_name = name if name in FIELDS else typed(name, None)  # raises for an unknown field
        pieces = [piece.strip() for piece in text.split(",")]
        if not text.strip() or "" in pieces:
            raise ValueError(
                f"{name}={text!r} has {'no values' if not text.strip() else 'an empty value'}; "
                "expected values with commas between them."
            )
        values = [value for piece in pieces for value in _values(typed_name, piece)]
        found[name] = tuple(dict.fromkeys(typed(name, value) for value in values))
    return found


def _values(name: str, text: str) -> list[Any]:
    kind, optional = FIELDS[name]
    if text.lower() == "none" and optional:
        return [None]
    if kind is str:
        return [text]
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{name}={text!r} found; expected true or false.")
        return [text.lower() == "true"]
    if len(text) > LONGEST:
        raise ValueError(f"{name}={shown(text)} found; expected numbers of less digits.")
    first, colon, last = text.partition(":")
    if not colon:
        return [_number(name, text)]
    low, high = _power(first), _power(last)
    if low and high and low[0] == high[0]:
        exponents = range(low[1], high[1] + 1)
        values: list[Any] = [_exact(low[0], exponent) for exponent in exponents]
    else:
        start, stop = _number(name, first), _number(name, last)
        if not all(math.isfinite(end) and end == int(end) for end in (start, stop)):
            raise ValueError(
                f"{name}={text} found; expected a range of powers of one base, such as 2^-8:2^2, "
                "or of whole numbers, such as 0:5."
            )
        if stop - start > MOST:
            raise ValueError(f"{name}={text} has {stop - start:g} values; expected at most {MOST}.")
        values = list(range(int(start), int(stop)))
    if not values:
        raise ValueError(f"{name}={text} has no values; expected a range that rises.")
    return values


def _power(text: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"\s*(\d+)\s*(?:\^|\*\*)\s*([+-]?\d+)\s*", text)
    return (int(match[1]), int(match[2])) if match else None


def _exact(base: int, exponent: int) -> float | int:
    if abs(exponent) * math.log2(max(base, 2)) > 1000:
        raise ValueError(f"the power {base}^{exponent} found; expected one that fits a number.")
    return base**exponent


def _number(name: str, text: str) -> float | int:
    power = _power(text)
    if power:
        return _exact(*power)
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name}={shown(text)} found; expected a number.") from None


def checked(
    axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, ...]]:
    """The axes with values of the fields' types, each once.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.

    Raises:
      ValueError: if an axis has no values or is given besides, a value is not one for its field, or
        there are too many points; the sentence names the field and the value.
    """
    for name, values in axes.items():
        if not len(values):
            raise ValueError(f"the axis {name} has no values; expected at least one.")
    count = math.prod(len(values) for values in axes.values())
    if count > MOST:
        raise ValueError(f"a grid of {count:,} points found; expected at most {MOST:,}.")
    both = sorted(set(axes) & set(base or {}))
    if both:
        raise ValueError(
            f"{both[0]} is an axis of the grid and given besides; expected one of both."
        )
    return {
        name: tuple(dict.fromkeys(typed(name, value) for value in values))
        for name, values in axes.items()
    }


def points(
    axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any] | None = None
) -> list[RunSettings]:
    """Every combination of the axes' values, the last axis changing fastest.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.

    Raises:
      ValueError: as :func:`checked`, or if the settings of a point do not fit each other.
    """
    axes, base = checked(axes, base), dict(base or {})
    # A point is the same text however it was written, so each is there once.
    found = {
        make({**base, **dict(zip(axes, values, strict=True))}): None
        for values in itertools.product(*axes.values())
    }
    return list(found)


__all__ = ["LONGEST", "MOST", "checked", "parse", "points"]
