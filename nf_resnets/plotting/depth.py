"""Accuracy against depth, one curve for each scheme: the form of Fixup's figure 3."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nf_resnets.plotting.diverged import Mark, diverged_band
from nf_resnets.plotting.looks import looks
from nf_resnets.plotting.style import INK, LEVEL, axes_height, end_labels, saved_figure

Row = Mapping[str, Any]

# Of the axis between the least and the greatest depth, what each curve is moved to the side.
_ASIDE = 0.008


def depth_figure(
    rows: Sequence[Row], path: str | os.PathLike[str], *, title: str, subtitle: str, chance: float
) -> None:
    """Draws test accuracy against depth and saves the figure.

    Runs that differ only in their seed are one point, their mean, with a bar from the worst to the
    best. Runs that diverged are left out of the mean and marked in a band below; a curve has a gap
    where no run finished.

    Args:
      rows: one for each run, with ``title`` (the curve), ``depth`` (layers), ``test_accuracy``
        (0 to 1) and ``status`` (``"finished"`` or ``"diverged"``).
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1.

    Raises:
      ValueError: if there are no rows, or a depth is below 1.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "depth.svg")
      >>> rows = [{"title": "Fixup", "depth": depth, "test_accuracy": accuracy,
      ...          "status": "finished"} for depth, accuracy in ((10, 0.95), (100, 0.93))]
      >>> depth_figure(rows, path, title="Fixup trains", subtitle="digits", chance=0.1)
      >>> path.exists()
      True
    """
    if not rows:
        raise ValueError("rows is empty; expected at least one run to draw.")
    curves = {
        curve: (look, _points([row for row in rows if row["title"] == curve]))
        for curve, look in looks(row["title"] for row in rows).items()
    }
    marks = [
        Mark(point.depth, look, point.finished == 0)
        for look, points in curves.values()
        for point in points
        if point.diverged
    ]
    some = any(not mark.whole for mark in marks)
    foot = 0.2 if some else 0.0
    all_depths = sorted({int(row["depth"]) for row in rows})
    if all_depths[0] < 1:
        raise ValueError(f"depth={all_depths[0]} found in a row; expected 1 or more.")
    with saved_figure(path, (7.2, 4.4), title=title, subtitle=subtitle, foot=foot) as figure:
        axes = figure.subplots()
        span = max(all_depths) / min(all_depths)
        for above, (look, points) in enumerate(curves.values()):
            # Curves that coincide lie beside each other.
            aside = span ** (_ASIDE * (above - (len(curves) - 1) / 2))
            depths, means = [p.depth * aside for p in points], [p.mean for p in points]
            for depth, point in zip(depths, points, strict=True):
                if point.high > point.low:
                    axes.vlines(depth, point.low, point.high, look.color, linewidth=1.2)
            axes.plot(depths, means, **look.line | look.dots, zorder=3 + above - 9 * look.muted)
        axes.set_xscale("log")
        axes.set_xticks(all_depths, [f"{depth:,}" for depth in all_depths])
        axes.minorticks_off()
        axes.margins(x=0.08)
        axes.set_ylim(0, 100)
        axes.axhline(100 * chance, **LEVEL, zorder=1)
        axes.set_xlabel("depth (layers)")
        axes.set_ylabel("test accuracy (%)")
        band = diverged_band(axes, marks) if marks else math.nan
        level = (f"chance ({100 * chance:.0f}%)", axes_height(axes, 100 * chance), None)
        ends = [
            (curve, axes_height(axes, points[-1].mean) if points[-1].finished else band, look)
            for curve, (look, points) in curves.items()
        ]
        end_labels(axes, [*ends, level])
        if some:
            note = "In the band, a small mark: some of the seeds diverged."
            figure.text(0.012, 0.02, note, fontsize=8, color=INK)


class _Point(NamedTuple):
    """The runs of one depth, accuracies in percent; NaN where none finished."""

    depth: int
    mean: float
    low: float
    high: float
    finished: int
    diverged: int


def _points(rows: Sequence[Row]) -> list[_Point]:
    points = []
    for depth in sorted({int(row["depth"]) for row in rows}):
        here = [row for row in rows if int(row["depth"]) == depth]
        values = [100 * float(row["test_accuracy"]) for row in here if row["status"] != "diverged"]
        found = (sum(values) / len(values), min(values), max(values)) if values else (math.nan,) * 3
        points.append(_Point(depth, *found, len(values), len(here) - len(values)))
    return points


__all__ = ["depth_figure"]
