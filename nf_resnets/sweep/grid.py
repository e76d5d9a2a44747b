"""Grids: which values of which settings, as they are written on a command line."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from nf_resnets import data, schemes
from nf_resnets.sweep.image_task import ImageTask, Kind
from nf_resnets.sweep.ledger import Ledger
from nf_resnets.sweep.messages import SINGLE, swept
from nf_resnets.sweep.settings import FIELDS, NUMBERS, RunSettings, make, shown, typed
from nf_resnets.sweep.task import Resolved

MOST = 1_000_000
"""Points of a grid; more are a slip, such as a range of seeds written in the wrong unit."""

LONGEST = 100
"""Characters of a number."""

MOST_KINDS = 4096
"""Combinations of settings of which most need a program of their own."""


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


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data.

    Attributes:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      kinds: one for each combination of all settings but ``NUMBERS``, of whichever numbers.
      task: what its runs are.
    """

    axes: Mapping[str, tuple[Any, ...]]
    base: Mapping[str, Any]
    kinds: tuple[Kind, ...]
    task: ImageTask

    @property
    def runs_of_a_kind(self) -> int:
        """How many points each kind stands for."""
        return math.prod(len(values) for name, values in self.axes.items() if name in NUMBERS)

    @property
    def size(self) -> int:
        """How many points there are, known without making them."""
        return len(self.kinds) * self.runs_of_a_kind

    @functools.cached_property
    def runs(self) -> tuple[Resolved, ...]:
        """The points, those of one program together, in the order of the grid otherwise."""
        found = [self.task.resolve(settings) for settings in points(self.axes, self.base)]
        order: dict[str, int] = {}
        for each in found:
            order.setdefault(each.program, len(order))
        return tuple(sorted(found, key=lambda each: order[each.program]))

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The keys of its runs."""
        return frozenset(each.key for each in self.runs)

    def count(self, rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """Of each program how many of a ledger's rows are points of the grid."""
        kinds = {_kind(vars(each.settings)): each for each in self.kinds}
        swept = {name: frozenset(self.axes[name]) for name in NUMBERS if name in self.axes}
        found: Counter[str] = Counter()
        for row in rows:
            kind = kinds.get(_kind(row))
            if kind is not None and all(
                row.get(name) in (swept.get(name) or (getattr(kind.settings, name),))
                for name in NUMBERS
            ):
                found[kind.program] += 1
        return found

    @property
    def programs(self) -> frozenset[str]:
        """The names of its programs."""
        return frozenset(kind.program for kind in self.kinds)


def make_sweep(
    axes: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any] | None = None,
    *,
    load: Callable[[str], data.Dataset] = data.load,
) -> Sweep:
    """Checks a grid, before anything starts.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      load: ``load(name)`` gives a data set.

    Raises:
      ValueError: if a value is not in order, or does not fit the network or the data; the sentence
        names the field and the value.
      OSError, ImportError: if a data set cannot be read.
    """
    base = dict(base or {})
    axes = checked(axes, base)
    if None in axes.get("scalar_factor", ()):
        # What it stands for is the scheme's, and could be there twice.
        raise ValueError("the axis scalar_factor has the value none; expected numbers.")
    first = {name: values[0] for name, values in axes.items() if name in NUMBERS}
    others = {name: values for name, values in axes.items() if name not in NUMBERS}
    count = math.prod(len(values) for values in others.values())
    if count > MOST_KINDS:
        raise ValueError(
            f"a grid of {count:,} combinations of {', '.join(others)} found, each a program to "
            f"compile; expected at most {MOST_KINDS:,}."
        )
    task = ImageTask(load, tuple(swept(axes)) or SINGLE)
    found = points(others, {**base, **first})
    kinds = [task.kind(settings) for settings in found]
    for name in ("alpha", "dropout"):
        _refuse_without_effect(name, axes.get(name, (base.get(name),)), found)
    return Sweep(axes, base, tuple(kinds), task)


def _kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings of a point in which no other one of its kind differs."""
    return tuple(settings.get(name) for name in FIELDS if name not in NUMBERS)


def _refuse_without_effect(name: str, values: Sequence[Any], points: Sequence[RunSettings]) -> None:
    """Refuses a setting that no scheme of the grid reads: its values would all be one run."""
    given = [value for value in values if value is not None]
    if given and not any(getattr(schemes.get(point.scheme).anatomy, name) for point in points):
        raise ValueError(
            f"{name}={given[0]:g} found, but scheme={points[0].scheme!r} has no {name}, nor has "
            "another scheme of the grid; expected none."
        )


def refuse_other_settings(sweep: Sweep, ledger: Ledger) -> None:
    """Refuses a grid whose fixed settings are not those of the runs in the ledger."""
    there: dict[str, set[Any]] = {}
    for text in ledger.settings():
        for name, value in json.loads(text).items():
            there.setdefault(name, set()).add(value)
    if not there:
        return
    first = sweep.kinds[0].settings
    now = dict(vars(first))
    if "scheme" in sweep.axes and first.scalar_factor == schemes.get(first.scheme).scalar_factor:
        del now["scalar_factor"]  # each scheme has its own
    changed = [
        f"{name}: {_some(there[name])} there, {value!r} now"
        for name, value in now.items()
        if name not in sweep.axes and value not in there.get(name, {value})
    ]
    if changed:
        raise ValueError(
            f"the ledger {ledger.name} holds runs of other settings ({'; '.join(changed)}); make "
            "them axes of the grid to compare them, or choose another folder."
        )


def _some(values: Collection[Any]) -> str:
    """The first few of some values."""
    words = list(map(shown, sorted(values, key=str)[:6]))
    return ", ".join(words if len(values) <= 6 else [*words[:5], "..."])


__all__ = [
    "LONGEST",
    "MOST",
    "MOST_KINDS",
    "Sweep",
    "checked",
    "make_sweep",
    "parse",
    "points",
    "refuse_other_settings",
]
