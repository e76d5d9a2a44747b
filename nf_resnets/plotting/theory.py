"""Figures of the Fixup paper's theorems: pairs of curves in panels, and maps of exponents."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.style import (
    INK,
    axes_height,
    end_labels,
    entry,
    legend_below,
    log_axis,
    saved_figure,
    widen,
)

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Curves:
    """One pair of axes with a curve for each ``title`` of its rows.

    What is ``""`` or NaN, or on a logarithmic axis not positive, is not drawn.

    Attributes:
      heading: what it shows.
      rows: with ``title`` and the columns below.
      x: the column of the horizontal axis.
      solid: the column of the solid lines.
      xlabel: of the horizontal axis.
      ylabel: of the vertical axis, which is logarithmic.
      dotted: the column of the dotted lines; ``""`` for none.
      log_x: whether the horizontal axis is logarithmic.
      own_legend: whether its curves have colours and a legend of their own.
    """

    heading: str
    rows: Sequence[Row]
    x: str
    solid: str
    xlabel: str
    ylabel: str
    dotted: str = ""
    log_x: bool = True
    own_legend: bool = False


@dataclasses.dataclass(frozen=True)
class Dots:
    """A line for each ``title`` of its rows, with a filled and a hollow dot on a logarithmic axis.

    Attributes:
      heading: what it shows.
      rows: with ``title`` and the two columns, from the top; see :class:`Curves`.
      filled: the column of the filled dots.
      hollow: the column of the hollow dots.
      xlabel: of the horizontal axis.
      hollow_name: what the hollow dots are.
      filled_name: what the filled dots are.
      ylabel: of the vertical axis.
    """

    heading: str
    rows: Sequence[Row]
    filled: str
    hollow: str
    xlabel: str
    hollow_name: str
    filled_name: str = "measured"
    ylabel: str = ""


@dataclasses.dataclass(frozen=True)
class ExponentMap:
    """A map of exponents over two others, with the line on which it is the wanted one.

    Attributes:
      heading: what it shows.
      rows: a full grid of ``x`` and ``y``, with ``value``.
      xlabel: of the horizontal axis.
      ylabel: of the vertical axis.
      wanted: the exponent whose line is drawn.
      marked: points ``(name, x, y)`` to draw.
    """

    heading: str
    rows: Sequence[Row]
    xlabel: str
    ylabel: str
    wanted: float = 1.0
    marked: Sequence[tuple[str, float, float]] = ()


def theory_figure(
    panels: Sequence[Curves | Dots | ExponentMap],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    solid: str = "",
    dotted: str = "",
) -> None:
    """Draws the panels, two beside each other, and saves the figure.

    Args:
      panels: what to draw; a title has the same colour in all of them.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      solid: what the legend calls the solid lines; ``""`` to say nothing.
      dotted: what it calls the dotted lines.

    Raises:
      ValueError: if a panel has no rows.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "theory.svg")
      >>> rows = [{"title": "Fixup", "L": L, "norm": 0.1, "bound": 0.05} for L in (1, 10)]
      >>> curves = Curves("theorem 1", rows, "L", "norm", "blocks", "norm", dotted="bound")
      >>> dots = Dots("theorem 2", rows, "norm", "bound", "norm", "bound")
      >>> steps = (0.0, 0.5, 1.0)
      >>> grid = [{"x": p, "y": q, "value": p + q} for p in steps for q in steps]
      >>> exponents = ExponentMap("theorem 4", grid, "p", "q")
      >>> theory_figure([curves, dots, exponents], path, title="Bounds hold", subtitle="digits")
      >>> path.exists()
      True
    """
    if not panels or not all(panel.rows for panel in panels):
        raise ValueError("a panel without rows found; expected at least one row in each.")
    shared = [p for p in panels if not isinstance(p, ExponentMap)
              and not (isinstance(p, Curves) and p.own_legend)]  # fmt: skip
    styles = _looks(shared)
    width = min(2, len(panels))
    height = math.ceil(len(panels) / width)
    # A panel by itself has names beside its curves.
    size = 4.4 * width + (1.8 if len(panels) == 1 else 0.4), 3.4 * height + 0.7
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(height, width, squeeze=False).ravel()
        for axes, panel in zip(grid, panels, strict=False):
            if isinstance(panel, Curves):
                _draw_curves(axes, panel, _looks([panel]) if panel.own_legend else styles)
            elif isinstance(panel, Dots):
                _draw_dots(axes, panel, styles)
            else:
                _draw_map(figure, axes, panel)
            axes.set_title(panel.heading, fontsize=10)
            axes.set_xlabel(panel.xlabel)
            axes.set_ylabel(panel.ylabel)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if len(panels) == 1 and isinstance(panels[0], Curves):
            end_labels(grid[0], _ends(grid[0], panels[0], styles))
            return
        entries = [entry(name, **look.dots, ms=5) for name, look in styles.items()]
        for label, dashes in ((solid, "-"), (dotted, ":")):
            if label:
                entries.append(entry(label, color=INK, linestyle=dashes))
        for dots in [panel for panel in panels if isinstance(panel, Dots)][:1]:
            for face, name in ((INK, dots.filled_name), ("white", dots.hollow_name)):
                entries.append(entry(name, ls="", marker="o", color=INK, mfc=face))
        legend_below(figure, entries)


def _looks(panels: Sequence[Curves | Dots]) -> dict[str, Look]:
    """The looks of what is measured; a form by itself has the ink's."""
    return looks(
        str(row["title"])
        for panel in panels
        for row in panel.rows
        if isinstance(panel, Dots) or row[panel.solid] != ""
    )


def _draw_curves(axes: Any, panel: Curves, styles: Mapping[str, Look]) -> None:
    for name in dict.fromkeys(str(row["title"]) for row in panel.rows):
        rows = [row for row in panel.rows if str(row["title"]) == name]
        look = styles.get(name, Look(INK, "", muted=True))
        for column, dashes in ((panel.solid, "-"), (panel.dotted, ":")):
            points = drawable(rows, panel.x, column) if column else []
            if points:
                every = max(1, len(points) // 12)
                axes.plot(
                    *zip(*points, strict=True), linestyle=dashes, **look.dots, markevery=every,
                    markersize=4 if dashes == "-" else 0, linewidth=look.line["linewidth"],
                    label=name if dashes == "-" else None,
                )  # fmt: skip
    if panel.own_legend:
        axes.legend(loc="upper left")
    axes.set_yscale("log")
    ends = widen(axes)
    log_axis(axes, "y", ends, base=10)
    axes.set_ylim(*ends)
    if panel.log_x:
        places = sorted({float(row[panel.x]) for row in panel.rows})
        log_axis(axes, "x", places, base=10)
        if len(places) <= 6 and all(place >= 1 for place in places):
            axes.set_xticks(places, [f"{place:,.0f}" for place in places])


def _ends(
    axes: Any, panel: Curves, styles: Mapping[str, Look]
) -> list[tuple[str, float, Look | None]]:
    """Where the curves of a panel end, for their labels."""
    ends: list[tuple[str, float, Look | None]] = []
    for name in dict.fromkeys(str(row["title"]) for row in panel.rows):
        rows = [row for row in panel.rows if str(row["title"]) == name]
        for column in filter(None, (panel.solid, panel.dotted)):
            if points := drawable(rows, panel.x, column):
                ends.append((name, axes_height(axes, points[-1][1]), styles.get(name)))
                break
    return ends


def drawable(rows: Sequence[Row], x: str, column: str) -> list[tuple[float, float]]:
    """The points of a column that a logarithmic axis can show, in order.

    Example:
      >>> drawable([{"L": 2, "g": 0.5}, {"L": 1, "g": "3"}, {"L": 4, "g": -1}], "L", "g")
      [(1.0, 3.0), (2.0, 0.5)]
    """
    points = [(float(row[x]), float(row[column])) for row in rows if row[column] != ""]
    return sorted(point for point in points if math.isfinite(point[1]) and point[1] > 0)


def _draw_dots(axes: Any, panel: Dots, styles: Mapping[str, Look]) -> None:
    titles = list(dict.fromkeys(str(row["title"]) for row in panel.rows))
    for line, name in enumerate(titles):
        rows = [{**row, "line": line} for row in panel.rows if str(row["title"]) == name]
        look = styles[name]
        for column, face in ((panel.filled, look.color), (panel.hollow, "white")):
            for _, value in drawable(rows, "line", column):
                axes.plot(value, line, **look.dots | {"fillstyle": "full"}, mfc=face)
    axes.set_xscale("log")
    log_axis(axes, "x", axes.get_xlim(), base=10)
    axes.set_yticks(range(len(titles)), titles)
    axes.set_ylim(len(titles) - 0.5, -0.5)


def _draw_map(figure: Any, axes: Any, panel: ExponentMap) -> None:
    x = sorted({float(row["x"]) for row in panel.rows})
    y = sorted({float(row["y"]) for row in panel.rows})
    values = {(float(row["x"]), float(row["y"])): float(row["value"]) for row in panel.rows}
    grid = [[values[at, up] for at in x] for up in y]
    reach = max(abs(value - panel.wanted) for value in values.values())
    mesh = axes.pcolormesh(
        x, y, grid, cmap="RdBu", shading="nearest", rasterized=True,
        vmin=panel.wanted - reach, vmax=panel.wanted + reach,
    )  # fmt: skip
    axes.contour(x, y, grid, levels=[panel.wanted], colors="black", linewidths=1.5)
    for name, at, up in panel.marked:
        axes.plot(at, up, "*", color="black", markersize=12, markeredgecolor="white")
        axes.annotate(name, (at, up), xytext=(9, 7), textcoords="offset points")
    axes.grid(False)
    bar = figure.colorbar(mesh, ax=axes, shrink=0.9)
    bar.ax.axhline(panel.wanted, color="black", linewidth=1.5)


__all__ = ["Curves", "Dots", "ExponentMap", "drawable", "theory_figure"]
