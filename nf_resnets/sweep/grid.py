"""Grids of runs of networks for images, whose every point is checked before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nf_resnets import data, schemes
from nf_resnets.parametrization import STANDARD
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.sweep.overrides import Overrides
from nf_resnets.sweep.settings import SINGLE, RunSettings, checked, points, swept, value_text
from nf_resnets.training.run import Plan

UNREAD = ("alpha", "dropout", "base_model")
"""Settings that some schemes do not read."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data."""

    axes: Mapping[str, tuple[Any, ...]]  # of each swept setting its values
    base: Mapping[str, Any]  # the other settings, where they are not the defaults
    plans: tuple[Plan, ...]  # those of one program together, in the order of the grid otherwise
    task: ImageTask

    @property
    def size(self) -> int:
        """How many runs there are."""
        return len(self.plans)

    @property
    def programs(self) -> frozenset[str]:
        """The names of its programs."""
        return frozenset(plan.program for plan in self.plans)


def make_sweep(
    axes: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any] | None = None,
    *,
    load: Callable[[str], data.Dataset] = data.load,
    overrides: Overrides = Overrides(),  # noqa: B008 (a frozen value)
) -> Sweep:
    """Checks a grid, before anything starts.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      load: ``load(name)`` gives a data set.
      overrides: what is not made from settings.

    Raises:
      ValueError: if a value is not in order, or does not fit the network or the data; the sentence
        names the field and the value.

    Example:
      >>> grid = make_sweep({"peak_lr": (0.1, 0.2), "seed": (0, 1)}, {"model": "wrn-10-1"})
      >>> grid.size, len(grid.programs)
      (4, 1)
    """
    base = dict(base or {})
    axes = checked(axes, base)
    task = ImageTask(load, tuple(swept(axes)) or SINGLE, overrides)
    settings = points(axes, base)
    plans = [task.plan(each) for each in settings]
    for name in UNREAD:
        refuse_without_effect(name, axes.get(name, (base.get(name),)), settings)
    refuse_without_effect("scalar_factor", axes.get("scalar_factor", ()), settings)
    order = {name: place for place, name in enumerate(dict.fromkeys(p.program for p in plans))}
    plans.sort(key=lambda plan: order[plan.program])
    return Sweep(axes, base, tuple(plans), task)


def refuse_without_effect(name: str, values: Sequence[Any], points: Sequence[RunSettings]) -> None:
    """Refuses a setting that no scheme of the grid reads: its values would all be one run."""

    def reads(scheme: schemes.Scheme) -> bool:
        if name == "base_model":
            return scheme.parametrization != STANDARD
        has = scheme.scalars if name == "scalar_factor" else getattr(scheme.anatomy, name)
        return bool(has)

    given = [value for value in values if value is not None]
    if given and not any(reads(schemes.get(point.scheme)) for point in points):
        what = {
            "scalar_factor": "leaves that learn slowly", "base_model": "rates that follow a size"
        }.get(name, name)  # fmt: skip
        raise ValueError(
            f"{name}={value_text(name, given[0])} found, but scheme={points[0].scheme!r} has no "
            f"{what}, nor has another scheme of the grid; expected none."
        )


__all__ = ["UNREAD", "Sweep", "make_sweep", "refuse_without_effect"]
