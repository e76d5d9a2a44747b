"""One look for all figures: sizes, headings, ticks, and what is written beside a curve."""

from __future__ import annotations

import contextlib
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nf_resnets.looks import Look

ACCENT = "#0072B2"
"""Of what is the only one of its kind."""
MARK = "#D55E00"
"""Of what is pointed at."""
INK = "#444444"
"""Of what stands for no curve in particular."""
LEVEL: Any = {"color": "#777777", "linewidth": 1, "linestyle": (0, (4, 3))}
"""A level such as chance."""

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
    # The same figure gives the same file.
    "svg.hashsalt": "nf_resnets",
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


def log_axis(axes: Any, which: str, values: Sequence[float], *, base: int, room: int = 8) -> None:
    """Makes an axis logarithmic, with a label at powers of its base and nowhere else.

    Where less than two powers of ten are spanned, 1, 2 and 5 times a power have labels, too.

    Args:
      axes: of Matplotlib.
      which: ``"x"`` or ``"y"``.
      values: what is drawn along it; the labels span them.
      base: 2 or 10.
      room: how many labels fit at most.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    ends = math.log(min(values), base), math.log(max(values), base)
    first, last = math.floor(ends[0] + 1e-9), math.ceil(ends[1] - 1e-9)
    every = max(1, -(-(last - first + 1) // max(2, min(room, 8))))
    # Multiples of the step, so that the power 0 is among them.
    exponents = [e for e in range(first, last + 1) if e % every == 0]
    ticks = {float(base) ** e: f"${base}^{{{e}}}$" for e in exponents}
    if base == 10 and ends[1] - ends[0] < 2:
        ticks = {n * 10.0**e: f"{n * 10.0**e:g}" for e in range(first, last + 1) for n in (1, 2, 5)}
    getattr(axes, f"set_{which}scale")("log", base=base)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FixedFormatter(list(ticks.values())))
    axis.set_minor_locator(NullLocator())


def widen(axes: Any, least: float = 4.0) -> tuple[float, float]:
    """Gives a logarithmic axis at least this span, as what hardly changes looks flat; its ends."""
    low, high = axes.get_ylim()
    if high / low < least:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(least), middle * math.sqrt(least)
        axes.set_ylim(low, high)
    return low, high


def end_labels(axes: Any, ends: Sequence[tuple[str, float, Look | None]]) -> None:
    """Writes what curves are called to the right of where they end, in place of a legend.

    Labels that would lie over each other move apart, and a thin line leads to each.

    Args:
      axes: with its final limits.
      ends: title, height as a fraction of the axes, and look; None for a level.
    """
    size = 9.0
    height = axes.figure.get_size_inches()[1] * 0.72
    apart = 1.35 * size / 72 / height
    ends = sorted(ends, key=lambda end: end[1])
    places = [at for _, at, _ in ends]
    for _ in range(200):  # pushes neighbours apart until none overlap
        for i in range(len(places) - 1):
            if (missing := apart - (places[i + 1] - places[i])) > 1e-6:
                places[i], places[i + 1] = places[i] - missing / 2, places[i + 1] + missing / 2
        places = [min(max(place, 0.01), 1.0) for place in places]
    kept: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for (title, at, look), place in zip(ends, places, strict=True):
        color = INK if look is None else look.color
        axes.plot([1.005, 1.03], [at, place], "-", color=color, linewidth=0.8, **kept)
        if look is not None:
            axes.plot([1.045], [place], **look.dots, ms=5, **kept)
        ink = INK if look is None or look.muted else look.color  # pale letters are hard to read
        axes.text(1.07, place, title, color=ink, fontsize=size, va="center", **kept)


def axes_height(axes: Any, y: float) -> float:
    """The height of a value as a fraction of the axes, from 0 at the bottom to 1."""
    scaled = axes.yaxis.get_transform().transform([*axes.get_ylim(), y])
    return float((scaled[2] - scaled[0]) / (scaled[1] - scaled[0]))


def freeze(figure: Any) -> None:
    """Keeps the layout of a figure that is drawn: to find it again costs as much as to draw it."""
    figure.set_layout_engine("none")


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

    Beside a PNG the same figure is saved as SVG.

    Args:
      path: where to save; the suffix chooses the format.
      size: width and height, in inches; each line of a heading but the first adds to it.
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
        # How many letters of these sizes an inch has.
        titles = textwrap.wrap(title, int(9.2 * width)) or [""]
        subtitles = textwrap.wrap(subtitle, int(14.5 * width))
        head = 0.16 + 0.2 * len(titles) + 0.16 * len(subtitles)
        height += head - 0.52
        free = (0, foot / height, 1, 1 - (foot + head) / height)
        figure = Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(rect=free))
        top = 0.07
        for lines, points, step, weight, color in (
            (titles, 11.0, 0.2, "bold", "black"), (subtitles, 8.0, 0.16, "normal", INK)
        ):  # fmt: skip
            for line in lines:
                at = 1 - (top + step / 2) / height
                figure.text(
                    0.012, at, line, fontsize=points, va="center", fontweight=weight, color=color
                )
                top += step
        yield figure
        path = Path(path)
        figure.savefig(path)
        if path.suffix == ".png":
            freeze(figure)
            figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


__all__ = [
    "ACCENT", "INK", "LEVEL", "MARK", "RC", "axes_height", "end_labels", "entry", "log_axis",
    "power_of_two", "saved_figure", "widen",
]  # fmt: skip
