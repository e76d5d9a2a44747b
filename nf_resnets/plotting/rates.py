"""Accuracy and loss against the learning rate, a curve for each batch size: a sweep's raw result.

The figures of a sweep take optima and fits as plain mappings, with the fields that
``dataclasses.asdict`` makes of ``Optimum`` and ``Regimes`` in ``nf_resnets.sweep``.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nf_resnets.plotting.style import ACCENT, INK, LEVEL, entry, power_of_two, saved_figure

Row = Mapping[str, Any]

# Name, factor by which it is drawn, whether more is better.
METRICS = {
    "test_accuracy": ("test accuracy (%)", 100, True),
    "train_accuracy": ("training accuracy (%)", 100, True),
    "test_loss": ("test loss", 1, False),
    "train_loss": ("training loss", 1, False),
}


# Without the two that look like the crosses of diverged runs.
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
    is a large dot, hollow at the edge of the grid. Rates at which all seeds diverged are bold
    crosses at the bad end of the axis, thin ones if only some did.

    Args:
      optima: with ``group``, ``metric``, ``best``, ``at_edge`` and ``rates``, each of which has
        ``rate``, ``n``, ``mean``, ``std`` and ``diverged``.
      path: where to save; the suffix chooses the format.
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
    color = dict(zip(sizes, size_colors(len(sizes)), strict=True))
    rates = [rate["rate"] for one in optima for rate in one["rates"]]
    # One scheme has its metrics side by side, several have theirs one above the other.
    single = len(series) == 1
    across = len(metrics) if single else min(len(series), 4)
    down = 1 if single else -(-len(series) // across) * len(metrics)
    size = max(2.9 * across + 2.5, 6.4), 2.7 * down + 1
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
                _draw(axes, curves, metric, color, limits)
                if metric.endswith("accuracy") and chance is not None:
                    axes.axhline(100 * chance, **LEVEL, zorder=1)
                log2_axis(axes, "x", rates, room=6)
                axes.set_xlim(min(rates) / 2**0.5, max(rates) * 2**0.5)
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
            entry(label.format(size), color=color[size], marker=_marker(sizes, size), ms=5)
            for size in sizes
        ]
        entries += _marks(optima)
        if chance is not None and any(metric.endswith("accuracy") for metric in metrics):
            entries.append(entry(f"chance ({100 * chance:.3g}%)", **LEVEL))
        figure.legend(handles=entries, loc="outside right center")


def groups_of(
    optima: Sequence[Row], names: Mapping[str, str] | None, batch_size: str
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


def size_colors(count: int) -> list[Any]:
    """Colours for ``count`` batch sizes in order, from dark to light, for colour-blind eyes too."""
    if count == 1:
        return [ACCENT]
    from matplotlib import colormaps

    # The last part of the scale is too light for lines on white.
    return [colormaps["viridis"](0.87 * index / (count - 1)) for index in range(count)]


def power_label(value: float) -> str:
    """A rate as a power of two where it is one, else as a number.

    Example:
      >>> power_label(0.25), power_label(1.0), power_label(0.1)
      ('$2^{-2}$', '$2^{0}$', '0.1')
    """
    exponent = power_of_two(value)
    return f"{value:.3g}" if exponent is None else f"$2^{{{exponent}}}$"


def log2_axis(axes: Any, which: str, values: Sequence[float], *, room: int = 8) -> None:
    """Makes an axis logarithmic to base 2 with labels at whole powers of two.

    Args:
      axes: of Matplotlib.
      which: ``"x"`` or ``"y"``.
      values: what is drawn along it; the labels span them.
      room: how many labels fit at most.
    """
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    first, last = math.floor(math.log2(min(values))), math.ceil(math.log2(max(values)))
    every = max(1, -(-(last - first + 1) // max(2, min(room, 8))))
    # Multiples of the step, so that 2^0 is among them.
    exponents = [e for e in range(first, last + 1) if e % every == 0]
    getattr(axes, f"set_{which}scale")("log", base=2)
    axis = getattr(axes, f"{which}axis")
    axis.set_major_locator(FixedLocator([2.0**e for e in exponents]))
    axis.set_major_formatter(FixedFormatter([f"$2^{{{e}}}$" for e in exponents]))
    axis.set_minor_locator(NullLocator())


def _draw(
    axes: Any, optima: Sequence[Row], metric: str, color: Mapping[Any, Any], limits: _Limits
) -> None:
    """One panel: the curves of a scheme."""
    _, factor, more_is_better = METRICS[metric]
    if limits.log:
        axes.set_yscale("log")
    stacks: dict[float, int] = {}
    for one in optima:
        size = one["size"]
        look = {"color": color[size], "marker": _marker(list(color), size)}
        points = [rate for rate in one["rates"] if rate["mean"] is not None]
        x = [rate["rate"] for rate in points]
        y = [factor * rate["mean"] for rate in points]
        axes.plot(x, y, ms=4, **look, zorder=3)
        bars = [(rate["rate"], factor * rate["mean"], factor * rate["std"])
                for rate in points if rate["std"] is not None]  # fmt: skip
        if bars and len(color) <= 4 and len(bars) == len(points):
            # A logarithmic axis has no place for a spread that reaches zero.
            least = limits.low if limits.log else -math.inf
            below = [max(mean - std, least) for _, mean, std in bars]
            above = [mean + std for _, mean, std in bars]
            axes.fill_between(x, below, above, color=color[size], alpha=0.18, lw=0, zorder=2)
        elif bars:
            axes.errorbar(*zip(*bars, strict=True), fmt="none", color=color[size], lw=0.9, zorder=2)
        if one["best"] is not None:
            at = factor * one["mean"]
            axes.plot(one["best"], at, **_best(one["at_edge"]), **look, zorder=5)
        for rate in one["rates"]:
            if rate["diverged"]:
                place = stacks.get(rate["rate"], 0)
                stacks[rate["rate"]] = place + 1
                up = 0.03 + limits.apart * place
                axes.plot(
                    rate["rate"],
                    up if more_is_better else 1 - up,
                    transform=axes.get_xaxis_transform(),
                    color=color[size],
                    **cross(whole=not rate["n"], small=limits.apart < 0.04),
                )
    axes.set_ylim(limits.low, limits.high)
    if not any(rate["mean"] is not None for one in optima for rate in one["rates"]):
        axes.set_yticks([])
    elif not limits.log:
        # No number stands where there are only crosses.
        axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= limits.high])
        axes.set_ylim(limits.low, limits.high)


class _Limits(NamedTuple):
    """The ends of a metric's axis, its scale, and how far apart its crosses stand on it."""

    low: float
    high: float
    log: bool
    apart: float


def _limits(series: Mapping[str, Sequence[Row]], metric: str, chance: float | None) -> _Limits:
    """The same axis for all panels of a metric, with room for the crosses at its bad end."""
    _, factor, more_is_better = METRICS[metric]
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
    log = False
    if metric.endswith("accuracy"):
        level = [] if chance is None else [100 * chance]
        low = max(0.0, min([*means, *spread, *level], default=0.0))
        high = min(100.0, max([*means, *spread, *level])) if means else 100.0
        margin = 0.04 * (high - low) or 1.0
        low, high = low - margin, high + margin
    elif means and min(means) > 0 and max(means) > 10 * min(means):
        log = True
        low, high = min(means) / 1.4, 1.2 * max([*means, *spread])
    else:
        low, high = 0.0, 1.06 * max([*means, *spread], default=1.0) or 1.0

    stacks = Counter((rate["series"], rate["rate"]) for rate in rates if rate["diverged"])
    highest = max(stacks.values(), default=0)
    apart = 0.045 if highest < 6 else 0.03
    room = (0.03 + apart * highest) if highest else 0.0
    ends = (math.log(low), math.log(high)) if log else (low, high)
    more = room / (1 - room) * (ends[1] - ends[0])
    ends = (ends[0] - more, ends[1]) if more_is_better else (ends[0], ends[1] + more)
    if log:
        ends = (math.exp(ends[0]), math.exp(ends[1]))
    return _Limits(ends[0], ends[1], log, apart)


def _marker(sizes: Sequence[Any], size: Any) -> str:
    return _MARKERS[list(sizes).index(size) % len(_MARKERS)]


def _best(at_edge: str | None) -> dict[str, Any]:
    hollow = {"markerfacecolor": "white", "markeredgewidth": 1.8}
    return {"ms": 9, "linestyle": "none", **(hollow if at_edge else {"markeredgecolor": "white"})}


def cross(*, whole: bool, small: bool = False) -> dict[str, Any]:
    """The mark of runs that diverged: bold if all seeds did."""
    return {
        "marker": "x",
        "markersize": (7 if whole else 5) - 1.5 * small,
        "markeredgewidth": 2.2 if whole else 0.9,
        "linestyle": "none",
        "clip_on": False,
        "zorder": 6,
    }


def _marks(optima: Sequence[Row]) -> list[Any]:
    """The legend's entries for what is marked in the figure."""
    bests = [one for one in optima if one["best"] is not None]
    diverged = [rate for one in optima for rate in one["rates"] if rate["diverged"]]
    dot: dict[str, Any] = {"color": INK, "marker": "o"}
    edge = any(one["at_edge"] for one in bests)
    inside = not all(one["at_edge"] for one in bests)
    whole, part = not all(rate["n"] for rate in diverged), any(rate["n"] for rate in diverged)
    marks = [
        ("best", inside, {**dot, **_best(None)}),
        ("best, at the grid's edge", edge, {**dot, **_best("highest")}),
        ("all seeds diverged", whole, {"color": INK, **cross(whole=True)}),
        ("some seeds diverged", part, {"color": INK, **cross(whole=False)}),
    ]
    return [entry(label, **look) for label, there, look in marks if there]


__all__ = [
    "METRICS", "cross", "groups_of", "log2_axis", "power_label", "rates_figure", "series_title",
    "size_colors",
]  # fmt: skip
