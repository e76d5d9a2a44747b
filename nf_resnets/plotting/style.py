"""One look for all figures: sizes, colours that colour-blind readers can tell apart, headings."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

ACCENT = "#0072B2"
"""Of what is the only one of its kind."""
MARK = "#D55E00"
"""Of what is pointed at."""
INK = "#444444"
"""Of what stands for no curve in particular."""
LEVEL: Any = {"color": "#777777", "linewidth": 1, "linestyle": (0, (4, 3))}
"""A level such as chance."""
CROSS: Any = {"marker": "x", "markersize": 9, "markeredgewidth": 2.2, "linestyle": "none"}
"""The end of a run that diverged."""

RC: Any = {
    "figure.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "legend.frameon": False,
}


def entry(label: str, **look: Any) -> Any:
    """A line of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **look)


def power_of_two(value: float) -> int | None:
    """The exponent of a rate that is a power of two, None of others.

    Example:
      >>> power_of_two(0.25), power_of_two(1.0), power_of_two(0.1)
      (-2, 0, None)
    """
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else None


def widen(axes: Any, least: float = 4.0) -> float:
    """Gives a logarithmic axis at least this span, as what hardly changes looks flat; its span."""
    low, high = axes.get_ylim()
    if high / low < least:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(least), middle * math.sqrt(least)
        axes.set_ylim(low, high)
    return high / low


@contextlib.contextmanager
def saved_figure(
    path: str | os.PathLike[str],
    size: tuple[float, float],
    *,
    title: str,
    subtitle: str,
    foot: float = 0.0,
    rc: Any = None,
) -> Iterator[Any]:
    """A figure with its headings above the panels, saved at the end of the block.

    Args:
      path: where to save; the suffix chooses the format.
      size: width and height, in inches.
      title: what the figure shows.
      subtitle: the settings it was made with.
      foot: inches to keep free below the panels.
      rc: further parameters of Matplotlib.
    """
    import matplotlib

    with matplotlib.rc_context({**RC, **(rc or {})}):
        # A figure by itself, not by pyplot: no window, no global state, any thread.
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        width, height = size
        free = (0, foot / height, 1, 1 - (foot + 0.55) / height)
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(rect=free))
        # Letters of size 10 are about an inch a dozen, bold ones ten; longer lines get smaller.
        heading: dict[str, Any] = {"fontweight": "bold"}
        for text, inches, largest, room, look in (
            (title, 0.2, 11.0, 105, heading),
            (subtitle, 0.42, 8.0, 125, {"color": INK}),
        ):
            points = min(largest, room * width / len(text or " "))
            figure.text(0.012, 1 - inches / height, text, fontsize=points, va="center", **look)
        yield figure
        figure.savefig(os.fspath(path))


__all__ = [
    "ACCENT", "CROSS", "INK", "LEVEL", "MARK", "RC", "entry", "power_of_two", "saved_figure",
    "widen",
]  # fmt: skip
