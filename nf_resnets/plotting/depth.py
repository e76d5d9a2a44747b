"""Accuracy against depth, one curve for each scheme: the form of Fixup's figure 3."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Panel, curves_figure, mean_curve


def depth_figure(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    chance: float,
) -> None:
    """Draws test accuracy against depth and saves the figure.

    A point is the mean over seeds with a bar from the worst to the best. Depths at which runs
    diverged are marked in a band below; a curve has a gap where no run finished.

    Args:
      rows: one for each run, with ``title`` (the curve), ``depth`` (layers), ``test_accuracy``
        (0 to 1) and ``status`` (``"finished"`` or ``"diverged"``).
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "depth.svg")
      >>> rows = [{"title": "Fixup", "depth": depth, "test_accuracy": accuracy,
      ...          "status": "finished"} for depth, accuracy in ((10, 0.95), (100, 0.93))]
      >>> depth_figure(rows, path, title="Fixup trains", subtitle="digits", chance=0.1)
      >>> path.exists()
      True
    """
    curves = []
    for name in dict.fromkeys(row["title"] for row in rows):
        values: dict[int, list[float]] = {}
        lost: list[int] = []
        for row in sorted(rows, key=lambda row: int(row["depth"])):
            if row["title"] == name:
                accuracies = values.setdefault(int(row["depth"]), [])
                if row["status"] == "diverged":
                    lost.append(int(row["depth"]))
                else:
                    accuracies.append(100 * float(row["test_accuracy"]))
        curves.append(mean_curve(name, values, marked=True, lost=sorted({*lost})))
    level = (100 * chance, f"chance ({100 * chance:.0f}%)")
    heights = [y for curve in curves for y in (*curve.y, *curve.high) if math.isfinite(y)]
    top = min(102.0, 1.15 * max([level[0], *heights]))
    panel = Panel(
        "depth (layers)", "test accuracy (%)", curves, y_limits=(0, top), level=level, x_base=10
    )
    curves_figure([panel], path, title=title, subtitle=subtitle)


__all__ = ["depth_figure"]
