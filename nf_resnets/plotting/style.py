"""One look for all figures: sizes, headings, ticks, and what is written beside a curve."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

from nf_resnets.plotting.looks import Look
from nf_resnets.plotting.whole import whole_file

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


NO_MATPLOTLIB = (
    "Matplotlib is not installed, and no figure is drawn: pip install 'nf_resnets[experiments]'."
)


def can_draw() -> bool:
    """Tells whether Matplotlib is installed, which all figures need."""
    return importlib.util.find_spec("matplotlib") is not None


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
      values: what is drawn along it, of which those above 0 can be; the labels span them.
      base: 2 or 10.
      room: how many labels fit at most.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    positive = [value for value in values if value > 0] or [1.0]
    ends = math.log(min(positive), base), math.log(max(positive), base)
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


def value_ticks(axes: Any, values: Sequence[float]) -> None:
    """Ticks of a horizontal axis at its values, where they are few; elsewhere they stay."""
    distinct = sorted(set(values))
    if len(distinct) <= 6:
        axes.set_xticks(distinct, [f"{value:,g}" for value in distinct], minor=False)
        axes.minorticks_off()


def widen(axes: Any) -> tuple[float, float]:
    """Gives a logarithmic axis a span of 4 at least, so that small changes look small; its ends."""
    low, high = axes.get_ylim()
    if high / low < 4:
        middle = math.sqrt(low * high)
        low, high = middle / 2, middle * 2
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


def legend_below(figure: Any, entries: Sequence[Any]) -> None:
    """Adds a legend below the panels, in as many columns as fit; the figure grows by its lines."""
    width, height = figure.get_size_inches()
    longest = max(_text_width(entry.get_label(), 10) for entry in entries) + 0.65
    lines = math.ceil(len(entries) / max(1, int((width - 0.2) / longest)))
    figure.set_size_inches(width, height + 0.1 + 0.22 * lines)
    columns = math.ceil(len(entries) / lines)
    figure.legend(handles=entries, loc="outside lower center", ncols=columns)


def _text_width(text: str, points: float, weight: str = "normal") -> float:
    """How wide a text is, in inches."""
    from matplotlib.cbook import is_math_text
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=points, weight=weight)
    return text_to_path.get_text_width_height_descent(text, font, is_math_text(text))[0] / 72


def _wrapped(text: str, width: float, points: float, weight: str) -> list[str]:
    """A text in as few lines as fit into a width in inches, all about as long."""
    words = [(word, _text_width(word, points, weight)) for word in text.split()]
    space = 0.35 * points / 72

    def fill(limit: float) -> list[str]:
        lines, used = [""], 0.0
        for word, wide in words:
            if lines[-1] and used + space + wide > limit:
                lines.append("")
                used = 0.0
            used += wide + (space if lines[-1] else 0.0)
            lines[-1] += f" {word}" if lines[-1] else word
        return lines

    fewest = len(fill(width))
    limits = (width * part / 20 for part in range(8, 21))
    return next(lines for limit in limits if len(lines := fill(limit)) == fewest)


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

    Beside a PNG the same figure is saved as SVG. Both name the title among their metadata.

    Args:
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
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
        bold = re.sub(r"\$([^$]+)\$", r"$\\mathbf{\1}$", title)
        titles = _wrapped(bold, width - 0.3, 11.0, "bold")
        subtitles = _wrapped(subtitle, width - 0.3, 8.0, "normal") if subtitle else []
        head = 0.16 + 0.2 * len(titles) + 0.16 * len(subtitles)
        height += head - 0.52
        layout = ConstrainedLayoutEngine()
        figure = Figure(figsize=(width, height), layout=layout)
        yield figure
        width, height = figure.get_size_inches()  # a legend below adds to it
        layout.set(rect=(0, foot / height, 1 - 0.06 / width, 1 - (foot + head) / height))
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
        with whole_file(path) as new:
            figure.savefig(
                new, metadata={"Title": title} | ({"Date": None} if new.suffix == ".svg" else {})
            )
            if new.suffix == ".png":
                freeze(figure)
                figure.savefig(new.with_suffix(".svg"), metadata={"Title": title, "Date": None})


__all__ = [
    "ACCENT", "INK", "LEVEL", "MARK", "NO_MATPLOTLIB", "RC", "axes_height", "can_draw",
    "end_labels", "entry", "legend_below", "log_axis", "power_of_two", "saved_figure",
    "value_ticks", "widen",
]  # fmt: skip
