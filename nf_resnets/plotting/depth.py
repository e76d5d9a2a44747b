"""Accuracy against depth, one curve for each scheme: the form of Fixup's figure 3."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.looks import looks
from nf_resnets.plotting.style import CROSS, LEVEL, entry, saved_figure

Row = Mapping[str, Any]


def depth_figure(
    rows: Sequence[Row], path: str | os.PathLike[str], *, title: str, subtitle: str, chance: float
) -> None:
    """Draws test accuracy against depth and saves the figure.

    Runs that differ only in their seed are one point, their mean, with a bar from the worst to the
    best. Runs that diverged are left out of the mean, and drawn as a cross at chance level.

    Args:
      rows: one for each run, with ``title`` (the curve), ``depth`` (layers), ``test_accuracy``
        (0 to 1) and ``status`` (``"finished"`` or ``"diverged"``).
      path: where to save; the suffix chooses the format.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1.

    Raises:
      ValueError: if there are no rows.
    """
    if not rows:
        raise ValueError("rows is empty; expected at least one run to draw.")
    level = 100 * chance
    with saved_figure(path, (7.2, 4.4), title=title, subtitle=subtitle) as figure:
        axes = figure.subplots()
        axes.axhline(level, **LEVEL, zorder=1)
        entries = []
        for index, (curve, look) in enumerate(looks(row["title"] for row in rows).items()):
            points = _points([row for row in rows if row["title"] == curve], level)
            color, above = look.color, 3 + 0.01 * index
            depths, means = [p[0] for p in points], [p[1] for p in points]
            axes.plot(depths, means, **look.line, zorder=above - 1)
            for depth, mean, low, high, diverged in points:
                if high > low:
                    axes.plot([depth, depth], [low, high], color=color, linewidth=1, alpha=0.6)
                if diverged:
                    axes.plot(depth, level, color=color, **CROSS, zorder=above)
                if not math.isnan(high):
                    axes.plot(depth, mean, **look.dots, zorder=above)
            entries.append(entry(curve, **look.line | look.dots))
        if any(row["status"] == "diverged" for row in rows):
            entries.append(entry("diverged (NaN)", color="black", **CROSS))
        entries.append(entry(f"chance ({level:.0f}%)", **LEVEL))
        all_depths = sorted({int(row["depth"]) for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(all_depths, [f"{depth:,}" for depth in all_depths])
        axes.minorticks_off()
        axes.set_ylim(0, 100)
        axes.set_xlabel("depth (layers)")
        axes.set_ylabel("test accuracy (%)")
        figure.legend(handles=entries, loc="outside right center")


def _points(rows: Sequence[Row], level: float) -> list[tuple[int, float, float, float, bool]]:
    """Depth, mean, lowest and highest accuracy in percent, and whether a run diverged.

    Where no run finished, the mean is the level of chance, and lowest and highest are NaN.
    """
    points = []
    for depth in sorted({int(row["depth"]) for row in rows}):
        here = [row for row in rows if int(row["depth"]) == depth]
        values = [100 * float(row["test_accuracy"]) for row in here if row["status"] != "diverged"]
        ends = (min(values), max(values)) if values else (math.nan, math.nan)
        mean = sum(values) / len(values) if values else level
        points.append((depth, mean, *ends, len(values) < len(here)))
    return points


__all__ = ["depth_figure"]
