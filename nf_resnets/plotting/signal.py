"""Signal propagation along the blocks of a network: measured dots on the lines of closed forms."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.style import INK, entry, legend_below, log_axis, saved_figure, widen

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One pair of axes over the block's index ``k``.

    Attributes:
      column: what is drawn, a column of the rows; dots.
      label: of the vertical axis.
      form: the column of the closed form, a dashed line; ``""`` for none.
      second_form: the column of another one, a dotted line; ``""`` for none.
      scale: ``"log2"``, ``"log10"`` or ``"linear"``. Zeros are left out where it is a logarithm.
      error: the column of the standard error of the dots; ``""`` for none.
    """

    column: str
    label: str
    form: str = ""
    second_form: str = ""
    scale: str = "linear"
    error: str = ""


def signal_figure(
    panels: Sequence[tuple[str, Sequence[Row], Quantity]],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    form: str = "closed form",
    second_form: str = "",
    columns: int = 2,
) -> None:
    """Draws panels of measured dots and closed forms, one colour for each title, and saves them.

    Args:
      panels: for each the heading, the rows and the quantity. Rows have ``k``, ``title`` (the
        curve), ``transition`` (whether a stage begins) and the quantity's columns; what is ``""``
        or NaN is not drawn.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      form: what the legend calls the line.
      second_form: what it calls the dotted line; ``""`` if there is none.
      columns: panels beside each other.

    Raises:
      ValueError: if a panel has no rows, or a quantity's scale is not one of the three.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "signal.svg")
      >>> rows = [{"k": k, "title": "He", "transition": False, "Var": 2.1**k, "form": 2.0**k}
      ...         for k in (1, 2, 3)]
      >>> variance = Quantity("Var", "variance of the sum", "form", scale="log2")
      >>> signal_figure([("WRN-10", rows, variance)], path, title="It doubles", subtitle="digits")
      >>> path.exists()
      True
    """
    if not panels or not all(rows for _, rows, _ in panels):
        raise ValueError("a panel without rows found; expected at least one row in each.")
    styles = looks(row["title"] for _, rows, _ in panels for row in rows)
    height = math.ceil(len(panels) / columns)
    size = 4.1 * columns + 0.4, 3.3 * height + 0.7
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(height, columns, squeeze=False).ravel()
        for axes, (heading, rows, quantity) in zip(grid, panels, strict=False):
            transition_lines(axes, rows)
            for name in dict.fromkeys(row["title"] for row in rows):
                own = [row for row in rows if row["title"] == name]
                draw_quantity(axes, own, quantity, styles[name])
            finish_axes(axes, quantity)
            axes.set_title(heading, fontsize=10)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        entries = [
            entry(name, **look.dots, linestyle="none", ms=5) for name, look in styles.items()
        ]
        for label, dashes in ((form, "--"), (second_form, ":")):
            if label:
                entries.append(entry(label, color=INK, linewidth=1.3, linestyle=dashes))
        legend_below(figure, entries)


def draw_quantity(
    axes: Any, rows: Sequence[Row], quantity: Quantity, look: Look, *, size: float = 5
) -> None:
    """Draws one curve: the measured dots, and below them the lines of its closed forms."""
    for column, dashes in ((quantity.form, "--"), (quantity.second_form, ":")):
        points = finite(rows, column, quantity.scale) if column else []
        if points:
            axes.plot(*zip(*points, strict=True), dashes, color=look.color, linewidth=1.3, zorder=2)
    points = finite(rows, quantity.column, quantity.scale)
    if points:
        # Of hundreds of blocks a few dozen dots say enough.
        every = max(1, len(points) // 40)
        shown = points[::every]
        axes.plot(
            *zip(*shown, strict=True), **look.dots, ms=size, zorder=3, linestyle="none",
            markeredgecolor="white" if look.fillstyle == "full" else look.color,
            markeredgewidth=0.4 if look.fillstyle == "full" else 1.0,
        )  # fmt: skip
        if quantity.error:
            deviations = dict(finite(rows, quantity.error, "linear"))
            bars = [(k, y, deviations[k]) for k, y in shown if k in deviations]
            if bars:
                axes.errorbar(*zip(*bars, strict=True), fmt="none", color=look.color, linewidth=0.9)


def finite(rows: Sequence[Row], column: str, scale: str) -> list[tuple[int, float]]:
    """The points ``(k, value)`` of a column that can be drawn on a scale.

    Example:
      >>> rows = [{"k": 1, "Var": 0.0}, {"k": 2, "Var": 0.5}, {"k": 3, "Var": ""}]
      >>> finite(rows, "Var", "log2")
      [(2, 0.5)]
    """
    points = [(int(row["k"]), row.get(column, "")) for row in rows]
    values = [(k, float(value)) for k, value in points if value not in ("", None)]
    return [
        (k, value)
        for k, value in values
        if math.isfinite(value) and (scale == "linear" or value > 0)
    ]


def transition_lines(axes: Any, rows: Sequence[Row]) -> None:
    """Marks where stages begin by thin vertical lines before their first blocks."""
    for k in sorted({int(row["k"]) for row in rows if str(row.get("transition")) == "True"}):
        axes.axvline(k - 0.5, color="#AAAAAA", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)


def finish_axes(axes: Any, quantity: Quantity) -> None:
    """Labels the axes and sets their scale.

    Raises:
      ValueError: if the scale is not one of the three.
    """
    from matplotlib.ticker import MaxNLocator

    if quantity.scale not in ("linear", "log2", "log10"):
        raise ValueError(f"scale={quantity.scale!r} found; expected 'linear', 'log2' or 'log10'.")
    if quantity.scale != "linear":
        axes.set_yscale("log")
        # A constant would be drawn with the noise of float32 all over the axes.
        ends = widen(axes)
        log_axis(axes, "y", ends, base=int(quantity.scale[3:]))
        axes.set_ylim(*ends)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.set_xlabel("block $k$")
    axes.set_ylabel(quantity.label)


__all__ = [
    "Quantity",
    "draw_quantity",
    "finish_axes",
    "finite",
    "signal_figure",
    "transition_lines",
]
