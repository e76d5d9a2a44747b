"""Figures of the Fixup paper's theorems: pairs of curves in panels, and maps of exponents."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, column, curves_figure

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

    def panel(self) -> Panel:
        """The panel that is drawn."""
        curves = []
        for name in dict.fromkeys(str(row["title"]) for row in self.rows):
            rows = [row for row in self.rows if str(row["title"]) == name]
            rows.sort(key=lambda row: float(row[self.x]))
            for each, style in ((self.solid, "line"), (self.dotted, ":")):
                y = column(rows, each)
                if not all(map(math.isnan, y)):
                    curves.append(Curve(name, column(rows, self.x), y, style=style))
        return Panel(
            self.xlabel, self.ylabel, curves, x_base=10 * self.log_x, y_base=10,
            heading=self.heading, own_legend=self.own_legend,
        )  # fmt: skip


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

    def draw(self, axes: Any) -> None:
        """Draws it into axes."""
        x, y = (sorted({float(row[name]) for row in self.rows}) for name in ("x", "y"))
        values = {(float(row["x"]), float(row["y"])): float(row["value"]) for row in self.rows}
        grid = [[values[at, up] for at in x] for up in y]
        reach = max(abs(value - self.wanted) for value in values.values())
        mesh = axes.pcolormesh(
            x, y, grid, cmap="RdBu", shading="nearest", rasterized=True,
            vmin=self.wanted - reach, vmax=self.wanted + reach,
        )  # fmt: skip
        axes.contour(x, y, grid, levels=[self.wanted], colors="black", linewidths=1.5)
        for name, at, up in self.marked:
            axes.plot(at, up, "*", color="black", markersize=12, markeredgecolor="white")
            axes.annotate(name, (at, up), xytext=(9, 7), textcoords="offset points")
        axes.set(xlabel=self.xlabel, ylabel=self.ylabel)
        axes.set_title(self.heading, fontsize=10)
        axes.grid(False)
        bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.9)
        bar.ax.axhline(self.wanted, color="black", linewidth=1.5)


def theory_figure(
    panels: Sequence[Curves | ExponentMap],
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

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "theory.svg")
      >>> rows = [{"title": "Fixup", "L": L, "norm": 0.1, "bound": 0.05} for L in (1, 10)]
      >>> curves = Curves("theorem 1", rows, "L", "norm", "blocks", "norm", dotted="bound")
      >>> steps = (0.0, 0.5, 1.0)
      >>> grid = [{"x": p, "y": q, "value": p + q} for p in steps for q in steps]
      >>> exponents = ExponentMap("theorem 4", grid, "p", "q")
      >>> theory_figure([curves, exponents], path, title="Bounds hold", subtitle="digits")
      >>> path.exists()
      True
    """
    drawn = [panel.draw if isinstance(panel, ExponentMap) else panel.panel() for panel in panels]
    legend = {style: name for style, name in (("line", solid), (":", dotted)) if name}
    curves_figure(drawn, path, title=title, subtitle=subtitle, columns=2, legend=legend)


__all__ = ["Curves", "ExponentMap", "theory_figure"]
