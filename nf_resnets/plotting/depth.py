"""Accuracy against depth, one curve for each scheme: the form of Fixup's figure 3."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.style import COLORS, MARKERS, RC

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
    import matplotlib

    with matplotlib.rc_context(RC):
        # A figure by itself, not by pyplot: no window, no global state, any thread.
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        axes = figure.add_subplot()
        axes.axhline(100 * chance, color="#777777", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        for index, curve in enumerate(dict.fromkeys(row["title"] for row in rows)):
            color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
            points = _points([row for row in rows if row["title"] == curve], 100 * chance)
            depths = [depth for depth, *_ in points]
            means = [mean for _, mean, *_ in points]
            axes.plot(depths, means, color=color, zorder=2 + 0.01 * index)
            for depth, mean, low, high, diverged in points:
                if high > low:
                    axes.plot([depth, depth], [low, high], color=color, linewidth=1, alpha=0.6)
                above = 3 + 0.01 * index
                if diverged:
                    level = 100 * chance
                    axes.plot(
                        depth, level, "x", color=color, ms=9, markeredgewidth=2.2, zorder=above
                    )
                if not math.isnan(high):
                    axes.plot(depth, mean, marker, color=color, zorder=above)
            axes.plot([], [], color=color, marker=marker, label=curve)
        if any(row["status"] == "diverged" for row in rows):
            axes.plot(
                [], [], "x", color="black", markersize=8, markeredgewidth=2, label="diverged (NaN)"
            )
        axes.plot(
            [],
            [],
            color="#777777",
            linewidth=1,
            linestyle=(0, (4, 3)),
            label=f"chance ({100 * chance:.0f}%)",
        )
        all_depths = sorted({int(row["depth"]) for row in rows})
        axes.set_xscale("log")
        axes.set_xticks(all_depths, [f"{depth:,}" for depth in all_depths])
        axes.minorticks_off()
        axes.set_ylim(0, 100)
        axes.set_xlabel("depth (layers)")
        axes.set_ylabel("test accuracy (%)")
        axes.set_title(f"{title}\n", fontweight="bold")
        axes.text(
            0, 1.015, subtitle, transform=axes.transAxes, fontsize=8, color="#444444", va="bottom"
        )
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
        figure.savefig(os.fspath(path))


def _points(rows: Sequence[Row], level: float) -> list[tuple[int, float, float, float, bool]]:
    """Depth, mean, lowest and highest accuracy in percent, and whether a run diverged.

    Where no run finished, the mean is the level of chance, and lowest and highest are NaN.
    """
    points = []
    for depth in sorted({int(row["depth"]) for row in rows}):
        here = [row for row in rows if int(row["depth"]) == depth]
        values = [100 * float(row["test_accuracy"]) for row in here if row["status"] != "diverged"]
        diverged = len(values) < len(here)
        if values:
            points.append((depth, sum(values) / len(values), min(values), max(values), diverged))
        else:
            points.append((depth, level, math.nan, math.nan, diverged))
    return points


__all__ = ["depth_figure"]
