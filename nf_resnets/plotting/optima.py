"""The best rate, and the best rate divided by the batch size, against the batch size."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.diverged import Mark, diverged_band
from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.rates import METRICS, groups_of, series_title
from nf_resnets.plotting.style import INK, entry, legend_below, log_axis, saved_figure

Row = Mapping[str, Any]

_DASHES: Any = (0, (5, 2))


def optima_figure(
    optima: Sequence[Row],
    regimes: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draws the optimum against the batch size, a curve for each scheme, and saves the figure.

    Three panels for each metric: the best mean with a bar of one standard deviation; the best rate
    with the range of rates as good; both divided by the batch size. Dashed lines are the fit
    ``min(slope * B, largest)``, as far as the data show its parts; dotted ones are ``largest /
    (1 + B_noise / B)``, where that is nearer. A best rate at the edge of its grid is hollow, with
    an arrow to where the true one may lie; a batch size at which all runs diverged has a mark in a
    band below. Curves stand slightly apart, so that their bars can be seen.

    Arguments are those of :func:`nf_resnets.plotting.rates_figure`, and ``regimes`` with ``group``
    (without the batch size), ``metric``, ``slope``, ``largest`` and ``form``; of each optimum
    ``mean``, ``std``, ``low`` and ``high`` are used as well.

    Raises:
      ValueError: if there are no optima, or one has a metric that is not known.

    Source: De and Smith 2020, the figures on batch size.
    """
    series, sizes, metrics = groups_of(optima, names)
    styles = looks(series)
    size = 10.2, 3.1 * len(metrics) + 1
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(len(metrics), 3, squeeze=False)
        for row, metric in zip(grid, metrics, strict=True):
            here = [one for curve in series.values() for one in curve if one["metric"] == metric]
            for index, (name, look) in enumerate(styles.items()):
                points = [one for one in series[name] if one["metric"] == metric]
                fits = [
                    fit
                    for fit in regimes
                    if fit["metric"] == metric
                    and series_title(fit["group"], "batch_size", names) == name
                ]
                # Curves of one batch size stand within half a doubling.
                apart = 2 ** (0.5 * ((index + 0.5) / len(series) - 0.5))
                _draw(row, points, fits, metric, apart, look)
            _finish(row, here, metric, sizes)
            gone = [
                Mark(one["size"], styles[name])
                for name, curve in series.items()
                for one in curve
                if one["metric"] == metric
                and one["best"] is None
                and any(rate["diverged"] for rate in one["rates"])
            ]
            for axes in row if gone else ():
                diverged_band(axes, gone)
        entries = [entry(name, **look.dots, ms=6) for name, look in styles.items()]
        none = {"color": INK, "linestyle": "none"}
        if any(one["at_edge"] for one in optima):
            entries.append(entry("at the grid's edge", marker="o", mfc="white", mew=1.6, **none))
        drawn = {fit["form"] == "smooth" for fit in regimes if fit["slope"] or fit["largest"]}
        for smooth, label, dashes in (
            (False, r"$\min(sB,\ \eta_{\max})$, fitted", _DASHES),
            (True, r"$\eta_{\max} / (1 + B_{\rm noise} / B)$, fitted", ":"),
        ):
            if smooth in drawn:
                entries.append(entry(label, color=INK, lw=1.3, ls=dashes))
        legend_below(figure, entries)


def _draw(
    row: Sequence[Any],
    optima: Sequence[Row],
    fits: Sequence[Row],
    metric: str,
    apart: float,
    look: Look,
) -> None:
    """One curve in the three panels of a metric."""
    factor = METRICS[metric][1]
    color = look.color
    for panel, axes in enumerate(row):
        drawn = []
        for one in optima:
            size = one["size"]
            if one["best"] is None:
                continue
            if panel == 0:
                spread = factor * (one["std"] or 0)
                y = factor * one["mean"]
                low, high = y - spread, y + spread
            else:
                unit = size if panel == 2 else 1
                y, low, high = one["best"] / unit, one["low"] / unit, one["high"] / unit
            drawn.append((size * apart, y, low, high, one["at_edge"]))
        if panel == 0 or not any(fit["slope"] or fit["largest"] for fit in fits):
            # What has a fit is joined by its lines, and by these otherwise.
            axes.plot([d[0] for d in drawn], [d[1] for d in drawn], color=color, lw=1.2, alpha=0.7)
        for x, y, low, high, at_edge in drawn:
            axes.plot([x, x], [low, high], color=color, lw=1.4, zorder=3, solid_capstyle="butt")
            if low < high:
                axes.plot([x, x], [low, high], "_", color=color, ms=6, mew=1.4, zorder=3)
            hollow = {"markerfacecolor": "white"} if at_edge else {}
            axes.plot(x, y, **look.dots, ms=7, markeredgewidth=1.6, **hollow, zorder=4)
            if panel and at_edge in ("lowest", "highest"):
                axes.annotate(
                    "", (x, y), xytext=(0, 17 if at_edge == "highest" else -17),
                    textcoords="offset points", annotation_clip=False, zorder=3,
                    arrowprops={"arrowstyle": "<-", "color": color, "lw": 1.4, "shrinkA": 0},
                )  # fmt: skip
        if panel:
            for fit in fits:
                _draw_fit(axes, fit, [one["size"] for one in optima], panel, color)


def _draw_fit(axes: Any, fit: Row, sizes: Sequence[float], panel: int, color: str) -> None:
    """The fitted curve over the batch sizes that were tried."""
    slope, largest = fit["slope"], fit["largest"]
    if not sizes or (slope is None and largest is None):
        return
    low, high = min(sizes) / 2**0.25, max(sizes) * 2**0.25
    if fit["form"] == "smooth":
        dashes = ":"
        at = [low * (high / low) ** (k / 60) for k in range(61)]
        rates = [largest / (1 + largest / slope / size) for size in at]
    else:
        meet = largest / slope if slope is not None and largest is not None else math.nan
        at, dashes = [low, *([meet] if low < meet < high else []), high], _DASHES
        rates = [min(slope * size if slope else math.inf, largest or math.inf) for size in at]
    y = [rate / size if panel == 2 else rate for rate, size in zip(rates, at, strict=True)]
    axes.plot(at, y, color=color, linestyle=dashes, linewidth=1.3, alpha=0.85, zorder=2)


def _finish(row: Sequence[Any], optima: Sequence[Row], metric: str, sizes: Sequence[Any]) -> None:
    """Scales, labels and headings of the three panels of a metric."""
    name = METRICS[metric][0]
    by = name.split(" (")[0]
    best = [one for one in optima if one["best"] is not None]
    ends = {
        1: [one[end] for one in best for end in ("low", "high")],
        2: [one[end] / one["size"] for one in best for end in ("low", "high")],
    }
    for panel, axes in enumerate(row):
        log_axis(axes, "x", [float(size) for size in sizes], base=2)
        axes.set_xlim(min(sizes) / 2**0.5, max(sizes) * 2**0.5)
        # Batch sizes are known by their numbers, and are few.
        every = -(-len(sizes) // 8)
        shown = list(sizes)[::every]
        axes.set_xticks(shown, [str(size) for size in shown], fontsize=10 if len(shown) < 6 else 8)
        axes.set_xlabel("batch size $B$")
        axes.set_ylabel((name, r"best rate $\eta$", r"$\eta/B$")[panel])
        axes.set_title((f"Best {by}", f"Best rate by {by}", r"The same, $\eta/B$")[panel])
        if not best:
            axes.set_yticks([])
        elif panel:
            low, high = min(ends[panel]), max(ends[panel])
            log_axis(axes, "y", [low, high], base=2)
            axes.set_ylim(low / 2, high * 2)
        elif METRICS[metric][2]:
            axes.set_ylim(max(axes.get_ylim()[0], 0), min(axes.get_ylim()[1], 101))


__all__ = ["optima_figure"]
