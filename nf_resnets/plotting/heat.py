"""Learning rate by batch size as a heat map, one for each scheme."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nf_resnets.plotting.rates import METRICS, groups_of, power_label
from nf_resnets.plotting.style import INK, MARK, saved_figure

Row = Mapping[str, Any]

# Of the colour bar's length, what a tick's number needs.
_TICK_ROOM = 0.035


def heat_figure(
    optima: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    metric: str = "test_accuracy",
    names: Mapping[str, str] | None = None,
) -> None:
    """Draws a metric over learning rate and batch size and saves the figure.

    A cell is the mean over the seeds that did not diverge, with its number; brighter is better. A
    hatched cell diverged with every seed, a small cross counts the seeds that did. The best rate of
    a batch size has a thick frame, dashed at the edge of the grid, and the rates as good a thin
    one. Where one metric has values of several magnitudes, colours follow the logarithm of the
    loss, or of the error: between 90% and 95% there is as much to see as between 80% and 90%.

    Arguments are those of :func:`nf_resnets.plotting.rates_figure`; of each optimum ``as_good`` is
    used as well, and those of other metrics than ``metric`` are passed over.

    Raises:
      ValueError: if there are no optima of the metric, or it is not known.
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} found; expected one of {', '.join(METRICS)}.")
    optima = [one for one in optima if one["metric"] == metric]
    if not optima:
        raise ValueError(f"optima has none of metric={metric!r}; expected at least one group.")
    series, sizes, _ = groups_of(optima, names)
    rates = sorted({rate["rate"] for one in optima for rate in one["rates"]})
    label, _, more_is_better = METRICS[metric]
    colors = "viridis" if more_is_better else "viridis_r"
    across = min(len(series), 2)
    down = -(-len(series) // across)
    # Titles need their width also above a narrow map.
    width = max(across * (0.46 * len(sizes) + 0.9) + 1.6, 5.6)
    height = max(down * (0.27 * len(rates) + 0.95) + 1.15, 2.8)
    wide = (width - 1.6 - 0.7 * across) / across / len(sizes) / 0.27
    with saved_figure(
        path, (width, height), title=title, subtitle=subtitle, foot=0.3,
        rc={"axes.grid": False, "hatch.linewidth": 0.6},
    ) as figure:  # fmt: skip
        from matplotlib.cm import ScalarMappable

        grid = figure.subplots(down, across, squeeze=False)
        for axes in grid.flat[len(series) :]:
            axes.remove()
        norm, ticks = _norm(optima, metric)
        for index, (axes, name) in enumerate(zip(grid.flat, series, strict=False)):
            for one in series[name]:
                _draw_column(axes, one, sizes.index(one["size"]), rates, (norm, colors), wide)
            axes.set_title(name, fontsize=10)
            axes.set_xlim(-0.5, len(sizes) - 0.5)
            axes.set_ylim(-0.5, len(rates) - 0.5)
            axes.set_xticks(range(len(sizes)), [str(size) for size in sizes], fontsize=8)
            axes.set_yticks(range(len(rates)), [power_label(rate) for rate in rates], fontsize=8)
            axes.tick_params(length=0)
            axes.spines[:].set_visible(False)
            if index % across == 0:
                axes.set_ylabel("learning rate")
            # Also above an empty place of the grid.
            if index + across >= len(series):
                axes.set_xlabel("batch size $B$")
        if any(rate["mean"] is not None for one in optima for rate in one["rates"]):
            bar = figure.colorbar(
                ScalarMappable(norm, colors), ax=list(grid.flat[: len(series)]), label=label,
                aspect=30, ticks=ticks,
            )  # fmt: skip
            bar.outline.set_visible(False)
            if ticks is not None:
                bar.ax.set_yticklabels([f"{tick:g}" for tick in ticks])
            bar.ax.minorticks_off()
        note = "thick frame: best (dashed: at the grid's edge); thin: as good; "
        note += "$\\times$: diverged; 1$\\times$: one seed did; white: none"
        figure.text(0.012, 0.15 / height, note, fontsize=7, color=INK, va="center")


def _draw_column(
    axes: Any,
    one: Row,
    column: int,
    rates: Sequence[float],
    look_of: tuple[Any, str],
    wide: float,
) -> None:
    """The cells of one batch size; ``wide`` is their width over their height."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    for rate in one["rates"]:
        row = rates.index(rate["rate"])
        corner, middle = (column - 0.5, row - 0.5), {"ha": "center", "va": "center"}
        if rate["mean"] is None:
            if rate["diverged"]:
                look: Any = {"facecolor": "#F2F2F2", "edgecolor": "#AAAAAA", "linewidth": 0}
                axes.add_patch(Rectangle(corner, 1, 1, hatch="/////", **look))
                axes.text(column, row, r"$\times$", color="#333333", fontsize=11, **middle)
            continue
        factor = METRICS[one["metric"]][1]
        value = factor * rate["mean"]
        fill = colormaps[look_of[1]](float(look_of[0](value)))
        axes.add_patch(Rectangle(corner, 1, 1, facecolor=fill, edgecolor="white", linewidth=0.8))
        # Luminance as the eye weighs it decides between black and white.
        dark = 0.299 * fill[0] + 0.587 * fill[1] + 0.114 * fill[2] < 0.55
        ink = "white" if dark else "black"
        axes.text(column, row, _number(value, factor), color=ink, fontsize=7, **middle)
        if rate["diverged"]:
            text = f"{rate['diverged']}$\\times$"
            axes.text(column + 0.44, row + 0.44, text, ha="right", va="top", color=ink, fontsize=5)
    for rate in one["as_good"]:
        best = rate == one["best"]
        # Frames lie inside their cells, so that neighbours do not hide them. Their black edge keeps
        # them apart from yellow where red and green look alike.
        inset = 0.08 if best else 0.04
        width = 2.0 if best else 0.8
        axes.add_patch(
            Rectangle(
                (column - 0.5 + inset / wide, rates.index(rate) - 0.5 + inset),
                1 - 2 * inset / wide,
                1 - 2 * inset,
                fill=False,
                edgecolor=MARK,
                linewidth=width,
                linestyle=(0, (2, 1)) if best and one["at_edge"] else "-",
                path_effects=[Stroke(linewidth=1.7 * width, foreground="black"), Normal()],
                zorder=4,
            )
        )


def _number(value: float, factor: float) -> str:
    """A metric in the width of a cell."""
    if factor == 100:
        return f"{value:.1f}"
    if value >= 100:
        return f"{value:.0f}" if value < 1e4 else f"{value:.0e}".replace("e+0", "e")
    return f"{value:.2f}" if 0.1 <= value < 10 else f"{value:.2g}"


def _norm(optima: Sequence[Row], metric: str) -> tuple[Any, list[float] | None]:
    """From a value to its place on the colour bar, 0 to 1, and the bar's ticks; None for usual."""
    from matplotlib.colors import FuncNorm, LogNorm, Normalize

    _, factor, more_is_better = METRICS[metric]
    means = [
        factor * rate["mean"] for one in optima for rate in one["rates"] if rate["mean"] is not None
    ]
    low, high = min(means, default=0.0), max(means, default=1.0)
    if high - low < 1e-9 * max(1.0, abs(high)):
        low, high = low - 0.5, high + 0.5
    if more_is_better:
        # The error's logarithm; a perfect score has none.
        least = max(100 - high, 0.5)
        if 100 - low <= 3 * least:
            return Normalize(low, high), None
        shown = [t for t in (10.0, 20, 40, 60, 70, 80, 90, 95, 98, 99) if low <= t <= high]
        scale = (
            lambda value: -np.log(np.maximum(100 - np.asarray(value, float), least)),
            lambda place: 100 - np.exp(-np.asarray(place, float)),
        )
        return FuncNorm(scale, low, high), _apart(shown, scale[0], low, high) or None
    if low <= 0 or high <= 3 * low:
        return Normalize(low, high), None
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1, 2, 5) if len(decades) < 4 else (1,)
    shown = [d * 10.0**e for e in decades for d in digits if low <= d * 10.0**e <= high]
    return LogNorm(low, high), shown or None


def _apart(ticks: Sequence[float], scale: Any, low: float, high: float) -> list[float]:
    """The ticks whose numbers do not overlap; of two, the upper one stays."""
    length = float(scale(high) - scale(low))
    kept: list[float] = []
    for tick in reversed(ticks):
        if not kept or float(scale(kept[-1]) - scale(tick)) > _TICK_ROOM * length:
            kept.append(tick)
    return kept[::-1]


__all__ = ["heat_figure"]
