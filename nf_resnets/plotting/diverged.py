"""Runs that diverged: marks in a band of their own, at the bad end of an axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from nf_resnets.plotting.looks import Look

_MARGIN, _ROW = 0.025, 0.05
"""Of the band's height, in fractions of the axes: what lies around the marks, and each row."""


SIZES = {True: 5.5, False: 3.2}
"""Of the marks, in points, of places where all runs diverged and where some did."""


class Mark(NamedTuple):
    """A run that diverged, or several alike."""

    x: float  # where, in the units of the axis
    look: Look  # of its curve
    whole: bool = True  # whether all runs did; the mark of some is small
    note: str = ""  # a few letters to the right of the mark


def diverged_band(
    axes: Any,
    marks: Sequence[Mark],
    *,
    at: Literal["bottom", "top"] = "bottom",
    across: int = 6,
    rows: int = 1,
    label: str = "diverged",
) -> float:
    """Adds a shaded band for runs that diverged, which no curve enters.

    Marks at one place stand side by side, so that none hides another.

    Args:
      axes: with its final limits; the band is added to them.
      marks: what to draw; the band is there without any, too.
      at: the bad end: the bottom of an accuracy, the top of a loss.
      across: how many marks stand side by side; more stand above them.
      rows: how many rows of marks the band has at least.
      label: what the band is called, beside the ticks.

    Returns:
      The height of the band's middle, as a fraction of the axes.
    """
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
    from matplotlib.transforms import ScaledTranslation

    groups = _side_by_side(axes, marks)
    rows = max([rows, *(-(-len(group) // across) for group in groups)])
    height = 2 * _MARGIN + _ROW * rows
    ticks = _ticks(axes)
    middle = _make_room(axes, height, at)
    band = Rectangle((0, 0 if at == "bottom" else 1 - height), 1, height, zorder=0.6)
    band.set(transform=axes.transAxes, facecolor="#F3E6E3", linewidth=0)
    axes.add_patch(band)
    axes.yaxis.set_major_locator(FixedLocator([*(tick for tick, _ in ticks), middle]))
    axes.yaxis.set_major_formatter(FixedFormatter([*(text for _, text in ticks), label]))
    axes.yaxis.set_minor_locator(NullLocator())
    last = axes.yaxis.get_major_ticks()[-1]
    last.gridline.set_visible(False)
    last.tick1line.set_visible(False)
    last.label1.set(fontsize=8, color="#8A3B2E")

    for group in groups:
        for index, mark in enumerate(group):
            row, column = divmod(index, across)
            beside = min(across, len(group) - row * across)
            up = _MARGIN + _ROW * (row + 0.5) if rows > 1 else height / 2
            right = (column - (beside - 1) / 2) * 7.5 / 72
            aside = ScaledTranslation(right, 0, axes.figure.dpi_scale_trans)
            where = {
                "transform": axes.get_xaxis_transform() + aside, "zorder": 6, "clip_on": False
            }  # fmt: skip
            up = up if at == "bottom" else 1 - up
            axes.plot(
                [mark.x], [up], **mark.look.dots, ms=SIZES[mark.whole], linestyle="none", **where
            )
            if mark.note:
                axes.text(mark.x, up, f"  {mark.note}", fontsize=6, va="center", **where)
    return height / 2 if at == "bottom" else 1 - height / 2


def _side_by_side(axes: Any, marks: Sequence[Mark]) -> list[list[Mark]]:
    """The marks in groups that lie within a fiftieth of the axis."""
    scale = axes.xaxis.get_transform()
    low, high = scale.transform(list(axes.get_xlim()))
    groups: list[tuple[float, list[Mark]]] = []
    for mark in sorted(marks, key=lambda mark: mark.x):
        place = float((scale.transform([mark.x])[0] - low) / (high - low))
        if groups and place - groups[-1][0] < 0.02:
            groups[-1][1].append(mark)
        else:
            groups.append((place, [mark]))
    return [group for _, group in groups]


def _ticks(axes: Any) -> list[tuple[float, str]]:
    """The ticks within the limits, with their labels."""
    low, high = sorted(axes.get_ylim())
    ticks = [float(tick) for tick in axes.yaxis.get_majorticklocs()]
    labels = axes.yaxis.get_major_formatter().format_ticks(ticks)
    return [(tick, label) for tick, label in zip(ticks, labels, strict=True) if low <= tick <= high]


def _make_room(axes: Any, height: float, at: str) -> float:
    """Widens the axis by the band, as a fraction of what it is then; the middle of the band."""
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(list(axes.get_ylim()))
    more = height / (1 - height) * (high - low)
    ends = (low - more, high) if at == "bottom" else (low, high + more)
    middle = low - more / 2 if at == "bottom" else high + more / 2
    *limits, middle = scale.inverted().transform([*ends, middle])
    axes.set_ylim(*limits)
    return float(middle)


__all__ = ["SIZES", "Mark", "diverged_band"]
