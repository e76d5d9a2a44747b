"""How long a sweep will still take, from the runs so far."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from typing import Any

from nf_resnets.sweep.settings import NUMBERS

MOST_GROUPS = 64
"""Grids of more programs are taken as of one; telling them apart would cost more than it tells."""

ENOUGH = 0.05
"""Which part of a run, of one or of several of a program, must have been made to tell its cost."""


@dataclasses.dataclass
class _Group:
    """The runs of one program.

    Attributes:
      points: how many of the grid's runs are of it, less those that were over before.
      seconds: spent in its runs that sit no more.
      made: of its runs that sit no more, the parts that were made here.
      ended: how many of its runs were brought to their end here.
    """

    points: float
    seconds: float = 0.0
    made: float = 0.0
    ended: int = 0


@dataclasses.dataclass
class _Seated:
    group: tuple[Any, ...]
    began: float
    first: int
    step: int
    num_steps: int

    @property
    def made(self) -> float:
        return (self.step - self.first) / max(self.num_steps, 1)


class TimeLeft:
    """Estimates the time to go: work that is left, over work done per second.

    A run's work is what runs of the same program took. For programs of which none has been made it
    follows from those that differ least, in proportion to the budget: epochs, or steps times batch
    size. How many runs are made at a time, and the time spent compiling, are in the pace so far.

    Args:
      axes: of each swept setting its values.
      total: runs of the grid.
      over: how many of them were over before; taken for the first ones of the grid.
      now: the time in seconds, of any origin.
      expected: of each program the seconds of one of its runs, if they are known from elsewhere.
    """

    def __init__(
        self,
        axes: Mapping[str, tuple[Any, ...]],
        total: int,
        over: int,
        now: float,
        expected: Mapping[str, float] | None = None,
    ) -> None:
        names = [name for name in axes if name not in NUMBERS]
        if math.prod(len(axes[name]) for name in names) > MOST_GROUPS:
            names = []
        self._names = tuple(names)
        values = list(itertools.product(*(axes[name] for name in names)))
        each, to_skip = total / max(len(values), 1), float(over)
        self._groups: dict[tuple[Any, ...], _Group] = {}
        for group in values:
            skipped = min(each, to_skip)
            to_skip -= skipped
            self._groups[group] = _Group(each - skipped)
        self._seated: dict[str, _Seated] = {}
        self._start = now
        self._like: Mapping[str, Any] | None = None
        known = list((expected or {}).values())
        self._expected = sum(known) / len(known) if known else None

    def began(
        self, key: str, settings: Mapping[str, Any], step: int, num_steps: int, now: float
    ) -> None:
        """A run takes its seat."""
        group = tuple(settings[name] for name in self._names)
        self._groups.setdefault(group, _Group(0.0))
        self._like = self._like or settings
        self._seated[key] = _Seated(group, now, step, step, num_steps)

    def went_on(self, key: str, step: int) -> None:
        """A run has come to a step."""
        if key in self._seated:
            self._seated[key].step = step

    def ended(self, key: str, is_over: bool, now: float) -> None:
        """A run leaves its seat, for good or to go on another time."""
        seated = self._seated.pop(key, None)
        if seated is None:
            return
        group = self._groups[seated.group]
        group.seconds += now - seated.began
        # One that diverged early is as much done with as one that was trained to its end.
        group.made += 1 - seated.first / max(seated.num_steps, 1) if is_over else seated.made
        group.ended += is_over

    def seconds(self, to_go: int, now: float, elsewhere: int = 0) -> float | None:
        """Estimates the seconds to go, None if there is nothing to tell by.

        Args:
          to_go: runs that nobody has begun.
          now: the time.
          elsewhere: runs that other workers are making; each is taken to be as fast as here.
        """
        spent = {name: group.seconds for name, group in self._groups.items()}
        made = {name: group.made for name, group in self._groups.items()}
        waiting = {name: group.points - group.ended for name, group in self._groups.items()}
        for seated in self._seated.values():
            spent[seated.group] += now - seated.began
            made[seated.group] += seated.made
            waiting[seated.group] -= 1
        busy, elapsed = sum(spent.values()), now - self._start
        known = {name: spent[name] / made[name] for name in spent if made[name] >= ENOUGH}
        if not known or busy <= 0 or elapsed <= 0:
            if self._expected is None:
                return None
            return self._expected * (to_go + len(self._seated)) / max(len(self._seated), 1)

        costs = {name: self._cost(name, known) for name in spent}
        waiting = {name: max(points, 0.0) for name, points in waiting.items()}
        total = sum(waiting.values())
        # Other workers make some of the grid's runs, nobody says which: all programs share that.
        share = to_go / total if total else 0.0
        left = sum(share * waiting[name] * costs[name] for name in costs)
        left += sum(
            costs[seated.group] * max(1 - seated.step / max(seated.num_steps, 1), 0.0)
            for seated in self._seated.values()
        )
        pace = busy / elapsed
        if elsewhere and self._seated:
            pace *= 1 + elsewhere / len(self._seated)
        return left / pace

    def _cost(self, group: tuple[Any, ...], known: Mapping[tuple[Any, ...], float]) -> float:
        """The seconds of a run of a program, from those of the programs nearest to it."""
        if group in known:
            return known[group]
        alike = {other: sum(a == b for a, b in zip(group, other, strict=True)) for other in known}
        most = max(alike.values(), default=0)
        ratios = [
            known[other] * self._budget(group) / self._budget(other)
            for other, count in alike.items()
            if count == most
        ]
        return sum(ratios) / len(ratios) if ratios else 0.0

    def _budget(self, group: tuple[Any, ...]) -> float:
        """The budget of a run in examples, up to a factor that all runs have in common."""
        if self._like is None:
            return 1.0
        settings = {**self._like, **dict(zip(self._names, group, strict=True))}
        return settings["steps"] * settings["batch_size"] or settings["epochs"] or 1.0


__all__ = ["ENOUGH", "MOST_GROUPS", "TimeLeft"]
