"""Curves over steps, blocks or anything else that is counted, in one or several panels."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

from nf_resnets.looks import looks
from nf_resnets.plotting.style import CROSS, LEVEL, entry, saved_figure


@dataclasses.dataclass(frozen=True)
class Curve:
    """One line of a panel.

    Attributes:
      title: what the legend calls it; curves of one title have one colour and one entry.
      x: where, in the panel's unit.
      y: how much; as many as there are in ``x``.
      diverged: whether its run ended by divergence: a cross is drawn at its end.
      marked: whether its points are drawn too.
    """

    title: str
    x: Sequence[float]
    y: Sequence[float]
    diverged: bool = False
    marked: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or not len(self.x):
            raise ValueError(
                f"curve {self.title!r} has {len(self.x)} x and {len(self.y)} y; expected as many "
                "of both, and at least one."
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
    """

    x_label: str
    y_label: str
    curves: Sequence[Curve]
    y_limits: tuple[float, float] | None = None
    level: tuple[float, str] | None = None


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
    """Draws panels with one legend and saves the figure.

    Args:
      panels: from left to right; a curve's title has the same colour in all of them.
      path: where to save; the suffix chooses the format.
      title: what the figure shows.
      subtitle: the settings it was made with.
      columns: how many panels stand side by side; None for all.

    Raises:
      ValueError: if there are no panels, or one has no curves.
    """
    if not panels or not all(panel.curves for panel in panels):
        raise ValueError("a panel without curves found; expected at least one curve in each.")
    look = looks(curve.title for panel in panels for curve in panel.curves)
    across = columns or len(panels)
    down = -(-len(panels) // across)
    size = 3.3 * across + 3.3, 3.2 * down + 1
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        from matplotlib.ticker import MaxNLocator

        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.remove()
        for axes, panel in zip(grid.flat, panels, strict=False):
            if panel.level is not None:
                axes.axhline(panel.level[0], **LEVEL, zorder=1)
            for curve in panel.curves:
                own = look[curve.title]
                # Of a curve of many points a few are marked: they tell curves apart in grey.
                every = 1 if curve.marked else max(1, len(curve.x) // 8)
                axes.plot(curve.x, curve.y, **own.line | own.dots, ms=4, markevery=every)
                if curve.diverged:
                    axes.plot(curve.x[-1], curve.y[-1], color=own.color, **CROSS)
            axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
            axes.set_xlabel(panel.x_label)
            axes.set_ylabel(panel.y_label)
            if panel.y_limits is not None:
                axes.set_ylim(*panel.y_limits)
        entries = [entry(name, **own.line | own.dots, ms=5) for name, own in look.items()]
        if any(curve.diverged for panel in panels for curve in panel.curves):
            entries.append(entry("diverged", color="black", **CROSS))
        levels = dict.fromkeys(panel.level[1] for panel in panels if panel.level is not None)
        entries += [entry(label, **LEVEL) for label in levels]
        figure.legend(handles=entries, loc="outside right center")


__all__ = ["Curve", "Panel", "curves_figure", "moving_average"]
