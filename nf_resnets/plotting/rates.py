"""Accuracy and loss against the learning rate, a curve for each batch size: a sweep's raw result.

The figures of a sweep take optima and fits as plain mappings, with the fields that
``dataclasses.asdict`` makes of ``Optimum`` and ``Regimes`` in ``nf_resnets.sweep``.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nf_resnets.plotting.diverged import SIZES, Mark, diverged_band
from nf_resnets.plotting.looks import Look
from nf_resnets.plotting.style import (
    ACCENT,
    INK,
    LEVEL,
    entry,
    legend_below,
    log_axis,
    power_of_two,
    saved_figure,
)

Row = Mapping[str, Any]

# Name, factor by which it is drawn, whether more is better.
METRICS = {
    "test_accuracy": ("test accuracy (%)", 100, True),
    "train_accuracy": ("training accuracy (%)", 100, True),
    "test_loss": ("test loss", 1, False),
    "train_loss": ("training loss", 1, False),
}


_MARKERS = ("o", "s", "D", "^", "v", "h", "<", ">")


def rates_figure(
    optima: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    chance: float | None = None,
    names: Mapping[str, str] | None = None,
    batch_size: str = "batch_size",
    label: str = "B = {}",
) -> None:
    """Draws each metric against the learning rate and saves the figure.

    A column of panels for each scheme, a row for each metric, a curve for each batch size: the mean
    over seeds with a bar of one standard deviation (a band, up to four batch sizes). The best rate
    is a large dot, hollow at the edge of the grid. Rates at which seeds diverged are marked in a
    band at the bad end of the axis, small if only some did.

    Args:
      optima: with ``group``, ``metric``, ``best``, ``at_edge`` and ``rates``, each of which has
        ``rate``, ``n``, ``mean``, ``std`` and ``diverged``.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1; drawn where accuracy is.
      names: what to call schemes; else by their keys.
      batch_size: the field of the batch size in ``group``, or of another size, such as
        ``"depth"``.
      label: what the legend calls a size.

    Raises:
      ValueError: if there are no optima, or one has a metric that is not known.
    """
    series, sizes, metrics = groups_of(optima, names, batch_size)
    look = size_looks(sizes)
    rates = [rate["rate"] for one in optima for rate in one["rates"]]
    # One scheme has its metrics side by side, several have theirs one above the other.
    single = len(series) == 1
    # Rows of panels are about as long as each other.
    across = len(metrics) if single else -(-len(series) // -(-len(series) // 4))
    down = 1 if single else -(-len(series) // across) * len(metrics)
    size = max(2.5 * across + 0.6, 6.4), 2.7 * down + 1
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        unused = set(grid.flat)
        for m, metric in enumerate(metrics):
            here = {
                name: [one for one in curves if one["metric"] == metric]
                for name, curves in series.items()
            }
            limits = _limits(here, metric, chance)
            for index, (name, curves) in enumerate(here.items()):
                row, column = index // across * len(metrics) + m, index % across
                axes = grid[0, m] if single else grid[row, column]
                unused.discard(axes)
                log_axis(axes, "x", rates, base=2, room=6)
                axes.set_xlim(min(rates) / 2**0.5, max(rates) * 2**0.5)
                _draw(axes, curves, metric, look, limits)
                if metric.endswith("accuracy") and chance is not None:
                    axes.axhline(100 * chance, **LEVEL, zorder=1)
                axes.set_title(name if m == 0 or single else "", fontsize=10)
                if m == len(metrics) - 1 or single:
                    axes.set_xlabel("learning rate")
                if column == 0 or single:
                    axes.set_ylabel(METRICS[metric][0])
                else:
                    axes.tick_params(which="both", labelleft=False)
        for axes in unused:
            axes.remove()
        entries = [
            entry(label.format(size), **look[size].line | look[size].dots, ms=5) for size in sizes
        ]
        entries += _marks(optima)
        if chance is not None and any(metric.endswith("accuracy") for metric in metrics):
            entries.append(entry(f"chance ({100 * chance:.3g}%)", **LEVEL))
        legend_below(figure, entries)


def groups_of(
    optima: Sequence[Row], names: Mapping[str, str] | None, batch_size: str = "batch_size"
) -> tuple[dict[str, list[Row]], list[Any], list[str]]:
    """The optima of each curve by its title, the batch sizes in order, and the metrics.

    The optima are in the order of their batch sizes, which they have as ``size``.

    Raises:
      ValueError: if there are no optima, or one has a metric that is not known.
    """
    if not optima:
        raise ValueError("optima is empty; expected at least one group of runs to draw.")
    metrics = list(dict.fromkeys(one["metric"] for one in optima))
    for metric in metrics:
        if metric not in METRICS:
            raise ValueError(f"metric={metric!r} found; expected one of {', '.join(METRICS)}.")
    series: dict[str, list[Row]] = {}
    for one in optima:
        title = series_title(one["group"], batch_size, names)
        series.setdefault(title, []).append({**one, "size": one["group"][batch_size]})
    for curve in series.values():
        curve.sort(key=lambda one: one["size"])
    return series, sorted({one["group"][batch_size] for one in optima}), metrics


def series_title(group: Row, batch_size: str, names: Mapping[str, str] | None) -> str:
    """What to call the runs that share all of a group but the batch size.

    Example:
      >>> series_title({"scheme": "skipinit", "alpha": 0.5, "batch_size": 8}, "batch_size", None)
      'skipinit, alpha=0.5'
    """
    parts = [
        str((names or {}).get(value, value)) if name == "scheme" else f"{name}={value}"
        for name, value in group.items()
        if name != batch_size
    ]
    return ", ".join(parts) or "all runs"


def size_looks(sizes: Sequence[Any]) -> dict[Any, Look]:
    """Looks for batch sizes in order, from dark to light, for colour-blind eyes too."""
    if len(sizes) == 1:
        return {sizes[0]: Look(ACCENT, "o")}
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    # The last part of the scale is too light for lines on white.
    scale = colormaps["viridis"]
    return {
        size: Look(to_hex(scale(0.87 * i / (len(sizes) - 1))), _MARKERS[i % len(_MARKERS)])
        for i, size in enumerate(sizes)
    }


def power_label(value: float) -> str:
    """A rate as a power of two where it is one, else as a number.

    Example:
      >>> power_label(0.25), power_label(1.0), power_label(0.1)
      ('$2^{-2}$', '$2^{0}$', '0.1')
    """
    exponent = power_of_two(value)
    return f"{value:.3g}" if exponent is None else f"$2^{{{exponent}}}$"


CUT = 10.0
"""Losses above so many times their median lie on the upper edge."""


class _Limits(NamedTuple):
    """The ends of a metric's axis, its scale, and the rows of its band; 0 if it has none."""

    low: float
    high: float
    log: bool
    rows: int


def _draw(
    axes: Any, optima: Sequence[Row], metric: str, looks: Mapping[Any, Look], limits: _Limits
) -> None:
    """One panel: the curves of a scheme."""
    _, factor, more_is_better = METRICS[metric]
    marks = []
    for one in optima:
        look = looks[one["size"]]
        points = [rate for rate in one["rates"] if rate["mean"] is not None]
        x = [rate["rate"] for rate in points]
        # A line has a gap where all seeds diverged.
        y = [
            math.nan if rate["mean"] is None else min(factor * rate["mean"], limits.high)
            for rate in one["rates"]
        ]
        every = [rate["rate"] for rate in one["rates"]]
        axes.plot(every, y, **look.line | look.dots, ms=4, zorder=3)
        bars = [(rate["rate"], factor * rate["mean"], factor * rate["std"])
                for rate in points if rate["std"] is not None]  # fmt: skip
        below, above = (
            [min(max(mean + sign * std, limits.low), limits.high) for _, mean, std in bars]
            for sign in (-1, 1)
        )
        if bars and len(looks) <= 4 and len(bars) == len(points):
            axes.fill_between(x, below, above, color=look.color, alpha=0.18, lw=0, zorder=2)
        elif bars:
            axes.vlines([at for at, *_ in bars], below, above, look.color, lw=0.9, zorder=2)
        if one["best"] is not None:
            dot = look.dots | _best(one["at_edge"])
            axes.plot(one["best"], factor * one["mean"], **dot, zorder=5)
        marks += [
            Mark(rate["rate"], look, whole=not rate["n"])
            for rate in one["rates"]
            if rate["diverged"]
        ]
    axes.set_ylim(limits.low, limits.high)
    if limits.log:
        log_axis(axes, "y", (limits.low, limits.high), base=10)
        axes.set_ylim(limits.low, limits.high)
    if not any(rate["mean"] is not None for one in optima for rate in one["rates"]):
        axes.set_yticks([])
    if limits.rows:
        diverged_band(
            axes, marks, at="bottom" if more_is_better else "top", across=1, rows=limits.rows
        )


def _limits(series: Mapping[str, Sequence[Row]], metric: str, chance: float | None) -> _Limits:
    """The same axis for all panels of a metric; an accuracy's ends at 0 and 100 at most."""
    factor = METRICS[metric][1]
    rates = [
        {**rate, "series": name}
        for name, optima in series.items()
        for one in optima
        for rate in one["rates"]
    ]
    means = [factor * rate["mean"] for rate in rates if rate["mean"] is not None]
    spread = [
        factor * (rate["mean"] + sign * rate["std"])
        for rate in rates
        if rate["std"] is not None
        for sign in (-1, 1)
    ]
    stacks = Counter((rate["series"], rate["rate"]) for rate in rates if rate["diverged"])
    rows = max(stacks.values(), default=0)
    if metric.endswith("accuracy"):
        level = [] if chance is None else [100 * chance]
        low = max(0.0, min([*means, *spread, *level], default=0.0))
        high = min(100.0, max([*means, *spread, *level])) if means else 100.0
        margin = 0.04 * (high - low) or 1.0
        return _Limits(max(low - margin, 0.0), min(high + margin, 101.0), False, rows)
    if means and min(means) > 0 and max(means) > 10 * min(means):
        most = min(1.2 * max([*means, *spread]), CUT * statistics.median(means))
        return _Limits(min(means) / 1.4, most, True, rows)
    return _Limits(0.0, 1.06 * max([*means, *spread], default=1.0) or 1.0, False, rows)


def _best(at_edge: str | None) -> dict[str, Any]:
    hollow = {"fillstyle": "none", "markeredgewidth": 1.8}
    return {"ms": 9, "linestyle": "none", **(hollow if at_edge else {"markeredgecolor": "white"})}


def _marks(optima: Sequence[Row]) -> list[Any]:
    """The legend's entries for what is marked in the figure."""
    bests = [one for one in optima if one["best"] is not None]
    diverged = [rate for one in optima for rate in one["rates"] if rate["diverged"]]
    dot: dict[str, Any] = {"color": INK, "marker": "o"}
    edge = any(one["at_edge"] for one in bests)
    inside = not all(one["at_edge"] for one in bests)
    marks = [
        ("best", inside, {**dot, **_best(None)}),
        ("best, at the grid's edge", edge, {**dot, **_best("highest")}),
        ("some seeds diverged", any(rate["n"] for rate in diverged),
         {**dot, "linestyle": "none", "ms": SIZES[False]}),
    ]  # fmt: skip
    return [entry(label, **look) for label, there, look in marks if there]


def rate_range(one: Row, power: Callable[[float], str] = power_label) -> str:
    """The best rate of an optimum with the range of rates as good, if that is wider."""
    best, low, high = (power(one[name]) for name in ("best", "low", "high"))
    return best if low == high else f"{best} ({low} to {high})"


__all__ = [
    "METRICS",
    "groups_of",
    "power_label",
    "rate_range",
    "rates_figure",
    "series_title",
    "size_looks",
]
