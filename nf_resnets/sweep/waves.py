"""From a grid to waves: runs are grouped by program, and a group is cut into equal waves."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

from nf_resnets.training.run import Plan


@dataclasses.dataclass(frozen=True)
class Wave:
    """Runs of one program that train together, from their first step to their last."""

    plans: tuple[Plan, ...]

    @property
    def program(self) -> str:
        """The name of their program."""
        return self.plans[0].program

    @property
    def name(self) -> str:
        """The name of the folder of their checkpoints, which follows from the runs."""
        return hashlib.sha256("".join(plan.key for plan in self.plans).encode()).hexdigest()[:20]


def cut(plans: Iterable[Plan], most: int, begun: Iterable[Sequence[str]] = ()) -> list[Wave]:
    """Cuts runs into waves: those of one program, by rising learning rate.

    Runs that diverge have the highest rates; so they share waves, which end early.

    Args:
      plans: the runs.
      most: runs of a wave, at most; those of a program are cut as evenly as they can be.
      begun: the keys of waves that have checkpoints. These waves come first, and stay as they are.

    Example:
      >>> plans = [Plan({"peak_lr": rate}, "", 1, 1, program="p") for rate in (4, 1, 3, 2, 5)]
      >>> [[plan.settings["peak_lr"] for plan in wave.plans] for wave in cut(plans, most=3)]
      [[1, 2, 3], [4, 5]]
    """
    left = {plan.key: plan for plan in plans}
    waves = []
    for keys in begun:
        if left.keys() >= set(keys):
            waves.append(Wave(tuple(left.pop(key) for key in keys)))
    groups: dict[str, list[Plan]] = {}
    for plan in left.values():
        groups.setdefault(plan.program, []).append(plan)
    for group in groups.values():
        group.sort(key=lambda plan: plan.settings.get("peak_lr", 0.0))
        count = -(-len(group) // most)
        width, longer = divmod(len(group), count)
        ends = [width * (n + 1) + min(n + 1, longer) for n in range(count)]
        starts = [0, *ends[:-1]]
        waves += [Wave(tuple(group[a:b])) for a, b in zip(starts, ends, strict=True)]
    return waves


__all__ = ["Wave", "cut"]
