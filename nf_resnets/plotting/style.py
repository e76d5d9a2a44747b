"""The look of all figures: the colour and marker of each scheme, axes, headings, files."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nf_resnets.places import whole_file

INK = "#444444"
LEVEL: Any = {"color": "#777777", "linewidth": 1, "linestyle": (0, (4, 3))}
"""A level such as chance."""

LOOKS: dict[str, tuple[str, Any]] = {
    "Fixup": ("#0072B2", "o"),
    "SkipInit": ("#D55E00", "s"),
    "RescaleNet": ("#009E73", "D"),
    "NF-ResNet": ("#CC79A7", "v"),
    "ReZero": ("#56B4E9", "p"),
    "T-Fixup": ("#332288", "h"),
    "α = 1/√L": ("#E69F00", "^"),
    "regularised SkipInit": ("#9C4500", "s"),
    "α = 0": ("#D55E00", "s"),  # SkipInit, as its paper calls it
    "LSUV": ("#882255", "P"),
    "CompleteP": ("#B2182B", "8"),
    "depth-μP": ("#542788", "8"),
    "μP": ("#01665E", "8"),
    "orthogonal": ("#999933", "<"),
    "DyT": ("#997700", "X"),
    "Derf": ("#994455", "X"),
    "BatchNorm": ("#707070", "d"),
    "one BatchNorm": ("#303030", "d"),
    "GroupNorm": ("#8A8A8A", "H"),
    "LayerNorm": ("#5A5A5A", (4, 1, 0)),
    "DeepNorm": ("#3E5A6E", (5, 1, 0)),
    "Admin": ("#7488A0", (5, 1, 0)),
    "plain residual": ("#4A3B2A", (6, 1, 0)),
    "no LayerNorm": ("#4A3B2A", (6, 1, 0)),
    "He": ("#4A3B2A", (6, 1, 0)),
    "Xavier": ("#7F6A4D", ">"),
    "α = 1": ("#8C510A", ">"),
    "(x + F)/√2": ("#B08A3E", "<"),
}
"""Colour and marker of each scheme by its title, for colour-blind readers too (Okabe and Ito; Tol).

Baselines are grey or brown. A scheme of your own may have a line here.
"""
_SPARE = (
    ("#117733", "P"), ("#CC6677", "^"), ("#222255", "s"), ("#44AA99", "v"), ("#661100", "o"),
    ("#6699CC", "p"),
)  # fmt: skip
_VARIANTS = (("-", "full"), ("--", "none"), (":", "none"), ("-.", "none"))

RC: Any = {
    "figure.dpi": 160,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    # The same figure gives the same file.
    "svg.hashsalt": "nf_resnets",
}

NO_MATPLOTLIB = (
    "No figure is drawn without Matplotlib and Jinja2: pip install 'nf_resnets[experiments]'."
)


def can_draw() -> bool:
    """Tells whether Matplotlib and Jinja2 are installed, which figures and reports need."""
    return all(importlib.util.find_spec(name) for name in ("matplotlib", "jinja2"))


def looks(titles: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns Matplotlib's arguments for the curve of each title.

    A title that begins with a scheme's is a variant of it: it has the scheme's colour and another
    line. Other titles have spare colours.

    Example:
      >>> styles = looks(["Fixup", "Fixup + mixup", "mine"])
      >>> styles["Fixup + mixup"]["color"], styles["Fixup + mixup"]["linestyle"]
      ('#0072B2', '--')
    """
    titles = list(dict.fromkeys(titles))
    styles: dict[str, dict[str, Any]] = {}
    for title in sorted(titles, key=lambda title: title not in LOOKS):
        schemes = [name for name in LOOKS if re.match(rf"{re.escape(name)}(?![\w.])", title, re.I)]
        colors = [LOOKS[max(schemes, key=len)]] if schemes else _SPARE
        options = [
            {"color": color, "marker": marker, "linestyle": line, "fillstyle": fill}
            for line, fill in _VARIANTS
            for color, marker in colors
        ]
        unused = [look for look in options if look not in styles.values()]
        styles[title] = (unused or options)[0]
    return {title: styles[title] for title in titles}


def log_axis(axis: Any, base: int, low: float, high: float) -> None:
    """Makes an axis logarithmic; 1, 2 and 5 times a power of ten are ticks where few powers are."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log", base=base)
    axis.set_minor_locator(NullLocator())
    if base == 10 and high < 100 * low:
        axis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def diverged_band(axes: Any, marks: Sequence[tuple[float, Any]], *, bottom: bool) -> None:
    """Adds a shaded band at the bad end of the vertical axis, with marks ``(x, look)`` in it."""
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import offset_copy

    height, middle, scale = 0.09, 0.045 if bottom else 0.955, axes.yaxis.get_transform()
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    labels = axes.yaxis.get_major_formatter().format_ticks(ticks)
    ends = scale.transform([low, high])
    room = height / (1 - height) * (ends[1] - ends[0])
    ends = ends + ([-room, 0] if bottom else [0, room])
    *limits, at = scale.inverted().transform([*ends, ends[0] + middle * (ends[1] - ends[0])])
    axes.set_ylim(*limits)
    axes.set_yticks([*ticks, at], [*labels, "diverged"])
    tick = axes.yaxis.get_major_ticks()[-1]
    tick.gridline.set_visible(False)
    tick.tick1line.set_visible(False)
    tick.label1.set(fontsize=8, color="#8A3B2E")
    corner = (0, 0 if bottom else 1 - height)
    band = Rectangle(corner, 1, height, transform=axes.transAxes, color="#F3E6E3", lw=0, zorder=0.6)
    axes.add_patch(band)
    for x in dict.fromkeys(x for x, _ in marks):
        here = [look for place, look in marks if place == x]
        for index, look in enumerate(here):
            aside = offset_copy(
                axes.get_xaxis_transform(), axes.figure, x=6 * (index - (len(here) - 1) / 2),
                units="points",
            )  # fmt: skip
            axes.plot(x, middle, **look, transform=aside, zorder=6)


@contextlib.contextmanager
def saved_figure(
    path: str | os.PathLike[str], size: tuple[float, float], *, title: str, subtitle: str
) -> Iterator[Any]:
    """A figure with its headings above the panels, saved at the end, a PNG as SVG, too."""
    import matplotlib

    with matplotlib.rc_context(RC):
        # A figure by itself, not by pyplot: no window, no global state, any thread.
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        width = size[0]
        titles = textwrap.wrap(title, int(12 * width))
        subtitles = textwrap.wrap(subtitle, int(17 * width))
        head = 0.1 + 0.2 * len(titles) + 0.16 * len(subtitles)
        height = size[1] + head
        layout = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - head / height))
        figure = Figure(figsize=(width, height), layout=layout)
        yield figure
        left, text = 0.1 / width, figure.text
        text(left, 1 - 0.05 / height, "\n".join(titles), va="top", fontsize=11, fontweight="bold")
        top = 1 - (0.07 + 0.2 * len(titles)) / height
        text(left, top, "\n".join(subtitles), va="top", fontsize=8, color=INK)
        with whole_file(path) as new:
            for file in (new, new.with_suffix(".svg"))[: 2 if new.suffix == ".png" else 1]:
                date = {"Date": None} if file.suffix == ".svg" else {}
                figure.savefig(file, metadata={"Title": title, **date})
                figure.set_layout_engine("none")  # to find the layout again costs as much


def power(rate: float) -> str:
    """A learning rate as text, as a power of two where it is one.

    >>> power(0.25), power(0.1)
    ('2^-2', '0.1')
    """
    mantissa, exponent = math.frexp(rate)
    return f"2^{exponent - 1}" if mantissa == 0.5 else f"{rate:g}"
