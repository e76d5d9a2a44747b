"""Grids of runs of networks for images, whose every point is checked before anything starts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nf_resnets import data, schemes
from nf_resnets.parametrization import STANDARD
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.overrides import Overrides
from nf_resnets.sweep.settings import SINGLE, RunSettings, checked, points, value_text
from nf_resnets.training.run import Plan

UNREAD = ("alpha", "dropout", "base_model", "drops", "drop_factor")
"""Settings that some schemes or schedules do not read."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data."""

    axes: Mapping[str, Sequence[Any]]  # of each swept setting its values
    base: Mapping[str, Any]  # the other settings, where they are not the defaults
    programs: Mapping[str, Sequence[Plan]]  # of each one its runs, in the order of the grid
    task: ImageTask

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The runs, those of one program together."""
        return tuple(itertools.chain.from_iterable(self.programs.values()))

    @property
    def size(self) -> int:
        """How many runs there are."""
        return len(self.plans)


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
    swept = tuple(name for name, values in axes.items() if len(values) > 1)
    task = ImageTask(load, swept or SINGLE, overrides)
    settings = points(axes, base)
    programs: dict[str, list[Plan]] = {}
    for plan in map(task.plan, settings):
        programs.setdefault(plan.program, []).append(plan)
    for name in UNREAD:
        one = (base.get(name, getattr(RunSettings, name)),)
        refuse_without_effect(name, axes.get(name, one), settings, overrides.scheme)
    given = axes.get("scalar_factor", ())
    refuse_without_effect("scalar_factor", given, settings, overrides.scheme)
    return Sweep(axes, base, programs, task)


def refuse_without_effect(
    name: str,
    values: Sequence[Any],
    points: Sequence[RunSettings],
    own: schemes.Scheme | None = None,
) -> None:
    """Refuses a setting that no run reads, with its scheme or a network's ``own``."""
    by = "schedule" if name in ("drops", "drop_factor") else "scheme"

    def reads(point: RunSettings) -> bool:
        if by == "schedule":
            return point.schedule == "step"
        scheme = own or schemes.get(point.scheme)
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
