"""Grids of runs of networks for images, whose every point is checked before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from nf_resnets import data, schemes
from nf_resnets.parametrization import STANDARD
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.overrides import Overrides
from nf_resnets.sweep.settings import (
    FIELDS,
    NUMBERS,
    SINGLE,
    RunSettings,
    checked,
    points,
    swept,
    value_text,
)
from nf_resnets.training.run import Plan

UNREAD = ("alpha", "dropout", "base_model", "drops", "drop_factor")
"""Settings that some schemes or schedules do not read."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data."""

    axes: Mapping[str, Sequence[Any]]  # of each swept setting its values
    base: Mapping[str, Any]  # the other settings, where they are not the defaults
    firsts: tuple[Plan, ...]  # a run of each combination of all settings but ``NUMBERS``
    task: ImageTask

    @property
    def size(self) -> int:
        """How many runs there are, known without making them."""
        return len(self.firsts) * self.runs_of_each

    @property
    def runs_of_each(self) -> int:
        """How many runs each of the first ones stands for."""
        return math.prod(len(values) for name, values in self.axes.items() if name in NUMBERS)

    @functools.cached_property
    def plans(self) -> tuple[Plan, ...]:
        """The runs, those of one program together, in the order of the grid otherwise."""
        plans = [self.task.plan(settings) for settings in points(self.axes, self.base)]
        order = {name: place for place, name in enumerate(dict.fromkeys(p.program for p in plans))}
        return tuple(sorted(plans, key=lambda plan: order[plan.program]))

    def count(self, rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """Of each program how many of some rows are runs of the grid, which are not made."""
        allowed: dict[str, Any] = {
            name: {plan.settings[name] for plan in self.firsts} for name in FIELDS
        }
        for name, values in self.axes.items():
            allowed[name] = values if isinstance(values, range) else {*values}
        return Counter(
            row["program"]
            for row in rows
            if all(row.get(name) in values for name, values in allowed.items())
            and row["data"] == self.task.fingerprint(row["dataset"])
        )

    @property
    def programs(self) -> frozenset[str]:
        """The names of its programs."""
        return frozenset(plan.program for plan in self.firsts)


def make_sweep(
    axes: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any] | None = None,
    *,
    load: Callable[[str], data.Dataset] = data.load,
    overrides: Overrides = Overrides(),  # noqa: B008 (a frozen value)
) -> Sweep:
    """Checks a grid, before anything starts; see :class:`Sweep`.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      load: ``load(name)`` gives a data set.
      overrides: what is not made from settings.

    Raises:
      ValueError: if a value is not in order, or does not fit the network or the data.
    """
    base = dict(base or {})
    axes = checked(axes, base)
    task = ImageTask(load, tuple(swept(axes)) or SINGLE, overrides)
    first = {name: values[0] for name, values in axes.items() if name in NUMBERS}
    others = {name: values for name, values in axes.items() if name not in NUMBERS}
    settings = points(others, {**base, **first})
    plans = [task.plan(each) for each in settings]
    for name in UNREAD:
        one = (base.get(name, getattr(RunSettings, name)),)
        refuse_without_effect(name, axes.get(name, one), settings)
    refuse_without_effect("scalar_factor", axes.get("scalar_factor", ()), settings)
    return Sweep(axes, base, tuple(plans), task)


def refuse_without_effect(name: str, values: Sequence[Any], points: Sequence[RunSettings]) -> None:
    """Refuses a setting that no run of the grid reads: its values would all be one run."""
    by = "schedule" if name in ("drops", "drop_factor") else "scheme"

    def reads(point: RunSettings) -> bool:
        if by == "schedule":
            return point.schedule == "step"
        scheme = schemes.get(point.scheme)
        if name == "base_model":
            return scheme.parametrization != STANDARD
        has = scheme.scalars if name == "scalar_factor" else getattr(scheme.anatomy, name)
        return bool(has)

    given = [value for value in values if value != getattr(RunSettings, name)]
    if given and not any(map(reads, points)):
        what = {
            "scalar_factor": "leaves that learn slowly", "base_model": "rates that follow a size"
        }.get(name, name)  # fmt: skip
        raise ValueError(
            f"{name}={value_text(name, given[0])} found, but {by}={getattr(points[0], by)!r} has "
            f"no {what}, nor has another {by} of the grid; expected none."
        )
