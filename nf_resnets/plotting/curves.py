"""Panels of curves, from which all other figures are made."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nf_resnets.plotting.style import INK, LEVEL, diverged_band, log_axis, looks, saved_figure

STYLES: dict[str, dict[str, Any]] = {
    "line": {},
    "dots": {"linestyle": "none"},
    "best": {"linestyle": "none", "markersize": 8, "markeredgecolor": "white"},
    "open": {"linestyle": "none", "markersize": 8, "fillstyle": "full",
             "markerfacecolor": "white", "markeredgewidth": 1.8},
    "--": {"linestyle": (0, (4, 2)), "marker": "", "linewidth": 1.3},
    ":": {"linestyle": ":", "marker": "", "linewidth": 1.3},
}  # fmt: skip
"""What a curve changes of its title's look."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Attributes:
      title: what the legend calls it; curves of one title have one colour and one entry.
      x: where, in the panel's unit.
      y: how much; as many as there are in ``x``. NaN is a gap.
      diverged: whether its run ended by divergence: where it ends is marked in a band of its own.
      marked: whether all of its points are drawn too, and not a few.
      low: the lower end of a band around ``y``, of bars where points are drawn; () for none.
      high: the upper end.
      style: ``"line"``, ``"dots"``, ``"best"`` (large dots), ``"open"`` (hollow ones), ``"--"`` or
        ``":"``.
      lost: at which ``x`` runs diverged, which are marked as well.
    """

    title: str
    x: Sequence[float]
    y: Sequence[float]
    diverged: bool = False
    marked: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: str = "line"
    lost: Sequence[float] = ()


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
      x_label: what is counted, with its unit.
      y_label: what is measured, with its unit.
      curves: its lines.
      y_limits: the range of ``y``; None for that of the curves.
      level: a dashed line and what the legend calls it, such as chance.
      more_is_better: whether diverged runs are marked at the bottom, and not at the top.
      x_base: 2 or 10 for a logarithmic axis, 0 for a linear one.
      y_base: the same for ``y``; what is not above 0 is left out.
      heading: what stands above it.
      ticks: of a logarithmic horizontal axis; () for those that fit.
      lines: where vertical lines stand, such as the blocks at which stages begin.
      names: what stands at ``y`` of 0, 1, ..., from the top, in place of numbers.
      own_legend: whether its curves have colours and a legend of their own.
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve]
    y_limits: tuple[float, float] | None = None
    level: tuple[float, str] | None = None
    more_is_better: bool = True
    x_base: int = 0
    y_base: int = 0
    heading: str = ""
    ticks: Sequence[float] = ()
    lines: Sequence[float] = ()
    names: Sequence[str] = ()
    own_legend: bool = False


def curves_figure(
    panels: Sequence[Panel | Callable[[Any], None]],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    columns: int | None = None,
    legend: Mapping[str, str] | None = None,
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Draws panels with one legend, and saves the figure.

    Args:
      panels: from left to right, or functions that draw into axes; a curve's title has the same
        colour in all of them.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      columns: how many panels stand side by side; None for all.
      legend: what the legend calls styles of curves, such as ``{"--": "closed form"}``.
      styles: Matplotlib's arguments for each title; None for those of the schemes.

    Raises:
      ValueError: if there are no panels, or one has no curves.

    Example:
      >>> panel = Panel("step", "training loss", [Curve("Fixup", (1, 2, 3), (2.3, 1.9, 1.2))])
      >>> curves_figure([panel], "loss.png", title="Fixup", subtitle="digits")  # doctest: +SKIP
    """
    drawn = [panel for panel in panels if isinstance(panel, Panel)]
    if not panels or not all(panel.curves for panel in drawn):
        raise ValueError("a panel without curves found; expected at least one curve in each.")
    shared = [panel for panel in drawn if not panel.own_legend]
    if styles is None:
        styles = looks(curve.title for panel in shared for curve in panel.curves)
    entries = _entries(shared, styles, legend or {})
    across = min(columns or len(panels), len(panels))
    down = -(-len(panels) // across)
    widths = [0.08 * len(label) + 0.8 for label, _ in entries]
    if len(panels) == 1:
        size, place, ncols = (5.2 + max(widths), 4.0), "outside center right", 1
    else:
        place, ncols = "outside lower center", _columns(widths, 3.6 * across + 0.2)
        below = 0.2 * -(-len(entries) // ncols)
        size = (3.6 * across + 0.4, 2.9 * down + 0.1 + below)
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, panel in zip(grid.flat, panels, strict=False):
            if isinstance(panel, Panel):
                _draw(axes, panel, looks(c.title for c in panel.curves)
                      if panel.own_legend else styles)  # fmt: skip
            else:
                panel(axes)
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], **look, label=label) for label, look in entries]
        figure.legend(handles=handles, loc=place, ncols=ncols, fontsize=9)


def _columns(widths: Sequence[float], room: float) -> int:
    """In how many columns of a legend entries of these widths fit, filled as Matplotlib does."""
    for columns in range(len(widths), 1, -1):
        if sum(max(column) for column in np.array_split(widths, columns)) <= room:
            return columns
    return 1


def _entries(
    panels: Sequence[Panel],
    styles: Mapping[str, Mapping[str, Any]],
    legend: Mapping[str, str],
) -> list[tuple[str, Mapping[str, Any]]]:
    """The legend's labels and looks; of one panel from the highest end to the lowest."""
    curves = [curve for panel in panels for curve in panel.curves]
    kinds: dict[str, set[str]] = {}
    ends: dict[str, float] = {}
    for curve in curves:
        kinds.setdefault(curve.title, set()).add(curve.style)
        finite = [y for y in curve.y if math.isfinite(y)]
        ends.setdefault(curve.title, finite[-1] if finite else -math.inf)
    titles = sorted(kinds, key=lambda t: -ends[t]) if len(panels) == 1 else list(kinds)
    entries: list[tuple[str, Mapping[str, Any]]] = []
    for title in titles:
        style = next((s for s in ("line", "dots", "--", ":") if s in kinds[title]), "dots")
        entries.append((title, {**styles[title], **STYLES[style]}))
    used = {curve.style for curve in curves}
    for style, label in legend.items():
        if style in used:
            entries.append((label, {"color": INK, "marker": "o", **STYLES[style]}))
    levels = dict.fromkeys(panel.level[1] for panel in panels if panel.level)
    return entries + [(label, LEVEL) for label in levels]


def _draw(axes: Any, panel: Panel, styles: Mapping[str, Mapping[str, Any]]) -> None:
    from matplotlib.ticker import MaxNLocator

    if panel.level is not None:
        axes.axhline(panel.level[0], **LEVEL, zorder=1)
    for x in panel.lines:
        axes.axvline(x, color="#AAAAAA", linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    marks = []
    for curve in panel.curves:
        look = {**styles[curve.title], **STYLES[curve.style]}
        y = [v if v > 0 or not panel.y_base else math.nan for v in curve.y]
        points = curve.marked or curve.style == "dots"
        if len(curve.low) and points:
            axes.vlines(curve.x, curve.low, curve.high, look["color"], linewidth=1.2)
        elif len(curve.low):
            band = {"color": look["color"], "alpha": 0.16, "linewidth": 0, "zorder": 2}
            axes.fill_between(curve.x, curve.low, curve.high, **band)
        every = max(1, len(curve.x) // (40 if points else 8))
        above = 2 if curve.style in ("--", ":") else 4 if curve.style in ("best", "open") else 3
        axes.plot(curve.x, y, **look, markevery=every, zorder=above, label=curve.title)
        dots = {**styles[curve.title], "linestyle": "none"}
        marks += [(x, dots) for x in (*curve.lost, *(curve.x[-1:] if curve.diverged else ()))]
    every_x = [x for curve in panel.curves for x in (*curve.x, *curve.lost)] or panel.ticks
    if panel.x_base and every_x:
        log_axis(axes.xaxis, panel.x_base, min(every_x), max(every_x))
        ticks = panel.ticks or sorted(set(every_x))
        if panel.ticks or (len(ticks) <= 6 and ticks[0] >= 1):
            axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.set_xlim(min(every_x) / 1.25, max(every_x) * 1.25)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    low, high = panel.y_limits or axes.get_ylim()
    if panel.y_base and any(v > 0 for curve in panel.curves for v in curve.y):
        axes.set_yscale("log", base=panel.y_base)
        low, high = panel.y_limits or axes.get_ylim()
        if high < 4 * low:  # small changes look small
            low, high = math.sqrt(low * high) / 2, math.sqrt(low * high) * 2
        log_axis(axes.yaxis, panel.y_base, low, high)
    axes.set_ylim(low, high)
    if panel.names:
        axes.set_yticks(range(len(panel.names)), panel.names)
        axes.set_ylim(len(panel.names) - 0.5, -0.5)
    axes.set(xlabel=panel.x_label, ylabel=panel.y_label, title=panel.heading)
    if panel.own_legend:
        axes.legend(fontsize=8)
    if marks:
        diverged_band(axes, marks, bottom=panel.more_is_better)


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and the ``window - 1`` before it, of fewer at the start.

    Example:
      >>> moving_average([4.0, 2.0, 0.0, 1.0], 2)
      [4.0, 3.0, 1.0, 0.5]
    """
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def smoothed(curve: Curve, window: int) -> Curve:
    """A curve and its band with :func:`moving_average` in place of their values."""
    y, low, high = (moving_average(each, window) for each in (curve.y, curve.low, curve.high))
    return dataclasses.replace(curve, y=y, low=low, high=high)


def column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """A column of rows as numbers, NaN where it is empty.

    >>> column([{"a": "1"}, {"a": ""}], "a")
    [1.0, nan]
    """
    return [math.nan if row.get(name) in ("", None) else float(row[name]) for row in rows]


def curves_of(
    rows: Sequence[Mapping[str, Any]], x: str, y: str, style: str = "line", error: str = ""
) -> list[Curve]:
    """Returns a curve for each ``title`` of rows, without those of which nothing is there.

    Args:
      rows: with ``title`` and the columns; what is ``""`` or NaN is not drawn.
      x: the column of the horizontal axis.
      y: the column of the vertical axis.
      style: of the curves, as in :class:`Curve`.
      error: the column of the standard errors of ``y``, if any.

    Example:
      >>> rows = [{"title": "Fixup", "depth": depth, "norm": 0.1} for depth in (100, 10)]
      >>> curves_of(rows, "depth", "norm")[0].x
      [10.0, 100.0]
    """
    curves = []
    for title in dict.fromkeys(str(row["title"]) for row in rows):
        lines = [row for row in rows if str(row["title"]) == title]
        lines.sort(key=lambda row: float(row[x]))
        values, errors = column(lines, y), column(lines, error)
        if not all(map(math.isnan, values)):
            low, high = (
                [v + s * e for v, e in zip(values, errors, strict=True)] if error else ()
                for s in (-1, 1)
            )
            at = column(lines, x)
            curves.append(Curve(title, at, values, low=low, high=high, style=style))
    return curves


def mean_curve(title: str, values: Mapping[Any, Sequence[float]], **how: Any) -> Curve:
    """Returns the mean of the values at each ``x`` in a band from the lowest to the highest.

    There is a gap where there are no values, and no band where nowhere are several.

    Example:
      >>> mean_curve("Fixup", {10: [1.0, 3.0], 34: []}).y
      [2.0, nan]
    """
    means = [sum(each) / len(each) if each else math.nan for each in values.values()]
    low, high = (
        [end(each, default=math.nan) for each in values.values()]
        if any(len(each) > 1 for each in values.values())
        else ()
        for end in (min, max)
    )
    return Curve(title, list(values), means, low=low, high=high, **how)


def stage_lines(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Where stages begin, of rows with the block ``k`` and whether it is a ``transition``."""
    return sorted({int(row["k"]) - 0.5 for row in rows if str(row["transition"]) == "True"})
