"""Curves over steps, blocks or anything else that is counted, in one or several panels."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.diverged import Mark, diverged_band
from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.style import (
    LEVEL,
    axes_height,
    end_labels,
    entry,
    legend_below,
    log_axis,
    saved_figure,
    value_ticks,
)


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Attributes:
      title: what the legend calls it; curves of one title have one colour and one entry.
      x: where, in the panel's unit.
      y: how much; as many as there are in ``x``.
      diverged: whether its run ended by divergence: where it ends is marked in a band of its own.
      marked: whether all of its points are drawn too, and not a few.
      low: the lower end of a band around ``y``, such as the worst of several seeds; () for none.
      high: the upper end.
    """

    title: str
    x: Sequence[float]
    y: Sequence[float]
    diverged: bool = False
    marked: bool = False
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    def __post_init__(self) -> None:
        ends = [end for end in (self.low, self.high) if len(end)]
        if not len(self.x) or {len(self.y), *map(len, ends)} != {len(self.x)}:
            raise ValueError(
                f"curve {self.title!r} has {len(self.x)} x and {len(self.y)} y; expected as many "
                "of both, of low and of high, and at least one."
            )


@dataclasses.dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
      x_label: what is counted, with its unit.
      y_label: what is measured, with its unit.
      curves: its lines; the first lies lowest.
      y_limits: the range of ``y``; None for that of the curves.
      level: a dashed line and what the legend calls it, such as chance.
      more_is_better: whether diverged runs are marked at the bottom, and not at the top.
      x_base: 2 or 10 for a logarithmic axis, 0 for a linear one.
      y_base: the same for ``y``.
      heading: what stands above it.
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


def moving_average(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and the ``window - 1`` before it, of fewer at the start.

    Raises:
      ValueError: if ``window`` is below 1.

    Example:
      >>> moving_average([4.0, 2.0, 0.0, 1.0], 2)
      [4.0, 3.0, 1.0, 0.5]
    """
    if window < 1:
        raise ValueError(f"window={window} found; expected at least 1.")
    parts = [values[max(0, end - window) : end] for end in range(1, len(values) + 1)]
    return [sum(part) / len(part) for part in parts]


def curves_figure(
    panels: Sequence[Panel],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    columns: int | None = None,
) -> None:
    """Draws panels and saves the figure.

    A single panel has its curves' titles beside their ends, several have one legend.

    Args:
      panels: from left to right; a curve's title has the same colour in all of them.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      columns: how many panels stand side by side; None for all.

    Raises:
      ValueError: if there are no panels, or one has no curves.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "loss.svg")
      >>> panel = Panel("step", "training loss", [Curve("Fixup", (1, 2, 3), (2.3, 1.9, 1.2))])
      >>> curves_figure([panel], path, title="Fixup learns", subtitle="digits")
      >>> path.exists()
      True
    """
    if not panels or not all(panel.curves for panel in panels):
        raise ValueError("a panel without curves found; expected at least one curve in each.")
    look = looks(curve.title for panel in panels for curve in panel.curves)
    across = columns or len(panels)
    down = -(-len(panels) // across)
    size = 6.6 if len(panels) == 1 else 3.6 * across + 0.4, 3.2 * down + 1
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, panel in zip(grid.flat, panels, strict=False):
            band = _draw(axes, panel, look)
            if len(panels) == 1:
                end_labels(axes, _ends(axes, panel, look, band))
        if len(panels) > 1:
            entries = [entry(name, **own.line | own.dots, ms=5) for name, own in look.items()]
            levels = dict.fromkeys(panel.level[1] for panel in panels if panel.level is not None)
            entries += [entry(label, **LEVEL) for label in levels]
            legend_below(figure, entries)


def smoothed(curve: Curve, window: int) -> Curve:
    """A curve and its band with :func:`moving_average` in place of their values."""
    y, low, high = (moving_average(each, window) for each in (curve.y, curve.low, curve.high))
    return dataclasses.replace(curve, y=y, low=low, high=high)


def _draw(axes: Any, panel: Panel, look: Mapping[str, Look]) -> float:
    """Draws the curves of a panel; the height of its band of diverged runs, NaN without one."""
    from matplotlib.ticker import MaxNLocator

    if panel.level is not None:
        axes.axhline(panel.level[0], **LEVEL, zorder=1)
    for curve in panel.curves:
        own = look[curve.title]
        # Of a curve of many points a few are marked: they tell curves apart in grey.
        every = 1 if curve.marked else max(1, len(curve.x) // 8)
        above = 2 if own.muted else 3
        if len(curve.low):
            axes.fill_between(
                curve.x, curve.low, curve.high, color=own.color, alpha=0.16, lw=0, zorder=above - 1
            )
        axes.plot(curve.x, curve.y, **own.line | own.dots, ms=4, markevery=every, zorder=above)
    if panel.x_base:
        every_x = [x for curve in panel.curves for x in curve.x]
        log_axis(axes, "x", every_x, base=panel.x_base)
        value_ticks(axes, every_x)
        axes.set_xlim(min(every_x) / 1.15, max(every_x) * 1.15)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if panel.y_base:
        axes.set_yscale("log")
        axes.set_ylim(*(panel.y_limits or axes.get_ylim()))
        log_axis(axes, "y", axes.get_ylim(), base=panel.y_base)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.set_title(panel.heading)
    axes.set_ylim(*(panel.y_limits or axes.get_ylim()))
    axes.set_xlim(axes.get_xlim())
    marks = [Mark(curve.x[-1], look[curve.title]) for curve in panel.curves if curve.diverged]
    if not marks:
        return math.nan
    return diverged_band(axes, marks, at="bottom" if panel.more_is_better else "top")


def _ends(
    axes: Any, panel: Panel, look: Mapping[str, Look], band: float
) -> list[tuple[str, float, Look | None]]:
    """The labels of a panel's curves; of those of one title the last has it."""
    ends: dict[str, tuple[str, float, Look | None]] = {}
    for curve in panel.curves:
        height = band if curve.diverged else axes_height(axes, curve.y[-1])
        ends[curve.title] = (curve.title, min(max(height, 0.0), 1.0), look[curve.title])
    if panel.level is not None:
        ends[panel.level[1]] = (panel.level[1], axes_height(axes, panel.level[0]), None)
    return list(ends.values())


__all__ = ["Curve", "Panel", "curves_figure", "moving_average", "smoothed"]
