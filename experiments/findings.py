"""Titles that say what a figure shows, made of its rows: who trains, by one rule."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.answers import listed

from .table import grouped

LEAST = 0.2
"""How far above chance the accuracy of a network that trains lies at least."""
RULE = (
    "Trains: no run diverged, and the mean {what} is at least halfway from chance to "
    "the best, and 20 points above chance."
)
"""The rule, for a figure's subtitle; ``what`` is compared."""

AT_CHANCE = 0.05
"""How far from chance an accuracy that says nothing lies at most: three standard deviations of
guessing on 360 images, the test split of the digits."""

_FEW = 4
"""More networks than these are counted, and not named."""


def who_trains(
    rows: Sequence[Mapping[str, Any]],
    chance: float,
    *,
    column: str = "test_accuracy",
    least: float = LEAST,
    unit: str = "%",
    where: str = "",
    guess: str = "chance",
) -> str:
    """Which networks train, with their means, and which do not.

    Args:
      rows: one for each run, with ``title``, ``status`` and the column.
      chance: the value of guessing in the column.
      column: the compared column, in which more is better.
      least: the least distance above chance of a network that trains.
      unit: follows the means; with ``"%"`` they are shown in percent.
      where: words such as ``" at 1,000 layers"``.
      guess: what ``chance`` is.

    Example:
      >>> rows = [{"title": "Fixup", "status": "finished", "test_accuracy": "0.939"},
      ...         {"title": "1/√2", "status": "finished", "test_accuracy": "0.078"}]
      >>> who_trains(rows, 0.1, where=" at 1,000 layers")
      'Fixup trains at 1,000 layers (93.9%); 1/√2 does not'
    """
    means = _means(rows, chance, column, least)
    factor = 100 if unit == "%" else 1
    good = [title for title, (_, trains) in means.items() if trains]
    bad = [title for title in means if title not in good]
    for titles in (good, bad):  # whatever the order of the rows
        titles.sort(key=lambda title: (-means[title][0], title))
    if not good and all(row["status"] == "diverged" for row in rows):
        return f"No network trains{where}: every run diverged"
    if not good:
        best = max(mean for mean, _ in means.values())
        shown = f"the best has {factor * best:.1f}{unit}, {guess} is {factor * chance:.1f}{unit}"
        return f"No network trains{where}: {shown}"
    shown = [f"{factor * means[title][0]:.1f}" for title in good]
    ends = f"{shown[-1]} to {shown[0]}{unit}" if len(good) > _FEW else f"{listed(shown)}{unit}"
    names = _named(good, len(means))
    verb = "trains" if len(good) == 1 else "train"
    said = f"{names[0].upper()}{names[1:]} {verb}{where} ({ends})"
    return said if not bad else f"{said}; {_named(bad)} {'does' if len(bad) == 1 else 'do'} not"


def who_trains_where(
    panels: Mapping[str, Sequence[Mapping[str, Any]]], chance: float, *, at: str = "at"
) -> str:
    """As :func:`who_trains` for several panels: which networks train in all, some and none.

    Args:
      panels: the rows of each, by what follows ``at``.
      chance: the accuracy of guessing.
      at: the word before a panel's name.
    """
    if len(panels) == 1:
        [(name, rows)] = panels.items()
        return who_trains(rows, chance, where=f" {at} {name}")
    places: dict[str, list[str]] = {}
    for name, rows in panels.items():
        for title, (_, trains) in _means(rows, chance, "test_accuracy", LEAST).items():
            places.setdefault(title, []).extend([name] if trains else [])
    groups: dict[tuple[str, ...], list[str]] = {}
    for title, names in places.items():
        groups.setdefault(tuple(names), []).append(title)
    if set(groups) == {()}:
        return "No network trains"
    said = []
    for names, titles in sorted(groups.items(), key=lambda group: -len(group[0])):
        verb = ("trains" if len(titles) == 1 else "train") if not said else ""
        place = "throughout" if len(names) == len(panels) else "nowhere"
        if 0 < len(names) < len(panels):
            place = f"only {at} {listed(names)}"
        said.append(" ".join(filter(None, [_named(sorted(titles)), verb, place])))
    return "; ".join(said)


def how_deep(rows: Sequence[Mapping[str, Any]], chance: float) -> str:
    """Which networks train at the largest depth, and where the others fail, in a sentence.

    Args:
      rows: one for each run, with ``title``, ``depth`` (layers), ``status`` and ``test_accuracy``.
      chance: the accuracy of guessing.

    Example:
      >>> rows = [{"title": title, "depth": depth, "status": "finished", "test_accuracy": accuracy}
      ...         for title, of in (("Fixup", (0.95, 0.93, 0.94)), ("1/√2", (0.92, 0.08, 0.08)))
      ...         for depth, accuracy in zip((10, 100, 1000), of)]
      >>> how_deep(rows, 0.1)
      'Fixup trains at 1,000 layers (94.0%); 1/√2 is at chance from 100 on.'
    """
    depths = sorted({int(row["depth"]) for row in rows})
    failures: dict[str, dict[str, list[int]]] = {}  # depths by title and kind
    for depth in depths:
        here = [row for row in rows if int(row["depth"]) == depth]
        for title, (mean, trains) in _means(here, chance, "test_accuracy", LEAST).items():
            states = {row["status"] for row in here if row["title"] == title}
            end = "is at chance" if abs(mean - chance) <= AT_CHANCE else "does not train"
            of = failures.setdefault(title, {})
            if not trains:
                of.setdefault("diverges" if "diverged" in states else end, []).append(depth)
    said = [who_trains(here, chance, where=f" at {depths[-1]:,} layers").partition("; ")[0]]
    for title, of in failures.items():
        places = []
        for end, found in of.items():
            is_tail = len(found) > 1 and found == depths[-len(found) :]
            names = [f"{depth:,}" for depth in found]
            place = f"from {names[0]} on" if is_tail else f"at {listed(names)}"
            places.append(f"{end} {place}")
        if places:
            said.append(f"{_named([title])} {', and '.join(places)}")
    return "; ".join(said) + "."


def _means(
    rows: Sequence[Mapping[str, Any]], chance: float, column: str, least: float
) -> dict[str, tuple[float, bool]]:
    """The mean of each network's runs, and whether it trains; of one that diverged chance."""
    means = {
        title: chance
        if any(row["status"] == "diverged" for row in own)
        else statistics.fmean(float(row[column]) for row in own)
        for (title,), own in grouped(rows, "title").items()
    }
    needed = max((chance + max(means.values())) / 2, chance + least)
    return {title: (mean, mean >= needed) for title, mean in means.items()}


def _named(titles: Sequence[str], of: int = 0) -> str:
    """The networks by name; many by their number."""
    if len(titles) > _FEW:
        if not of:
            return "the others"
        return f"All {of}" if len(titles) == of else f"{len(titles)} of {of}"
    return listed(titles, quote=True)


__all__ = ["AT_CHANCE", "LEAST", "RULE", "how_deep", "who_trains", "who_trains_where"]
