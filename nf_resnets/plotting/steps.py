"""Steps to a target against the batch size, and the gradient noise scale beside its knee."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.diverged import Mark, diverged_band
from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.style import INK, entry, legend_below, log_axis, saved_figure, widen

Row = Mapping[str, Any]


def steps_figure(
    targets: Sequence[Row],
    knees: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draws the steps to a target against the batch size, both logarithmic, and saves the figure.

    A curve for each scheme: the median over the seeds of the best rate with their range, hollow
    where that rate lies at the edge of its grid, a mark in a band above where no rate reaches the
    target. A thin dashed line through the smallest batch size that does is perfect scaling, by
    which twice the batch needs half of the steps. The dotted line is the fit, and an arrow on the
    lower axis its knee, beyond which steps hardly fall.

    Where the gradient noise scale was measured, a second panel has it at each batch size, up to the
    target, and the knee as a line with a band of one standard error.

    Args:
      targets: with the fields of ``StepsToTarget`` in ``nf_resnets.sweep.targets``.
      knees: with those of ``Regimes``, as ``nf_resnets.sweep.knees`` makes them.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      names: what to call schemes; else by their keys.

    Raises:
      ValueError: if there are no targets.

    Source: after Shallue et al. 2019, and McCandlish et al. 2018.
    """
    if not targets:
        raise ValueError("targets is empty; expected at least one group of runs to draw.")
    series: dict[str, list[Row]] = {}
    for one in targets:
        series.setdefault(series_title(one["group"], "batch_size", names), []).append(one)
    fits = {series_title(fit["group"], "batch_size", names): fit for fit in knees}
    sizes = sorted({float(one["group"]["batch_size"]) for one in targets})
    noisy = any(one["noise_scale"] is not None for one in targets)
    styles = looks(series)
    panels = 1 + noisy
    metric, factor, more_is_better = METRICS[targets[0]["metric"]]
    level = f"{'≥' if more_is_better else '≤'} {factor * targets[0]['target']:.4g}"
    with saved_figure(
        path, (max(4.2 * panels + 0.4, 6.4), 4.4), title=title, subtitle=subtitle
    ) as figure:
        grid = figure.subplots(1, panels, squeeze=False)[0]
        for name, look in styles.items():
            _draw_steps(grid[0], series[name], fits.get(name), look)
            if noisy:
                _draw_noise(grid[1], series[name], fits.get(name), sizes, look)
        grid[0].set_yscale("log", base=2)
        grid[0].set_ylabel("steps")
        grid[0].set_title(f"Steps to a {metric.split(' (')[0]} {level}")
        if noisy:
            grid[1].set_yscale("log", base=2)
            widen(grid[1])
            grid[1].set_ylabel(r"$B_{\rm noise}$, and the knee as a line")
            grid[1].set_title("Gradient noise scale")
        for axes in grid:
            log_axis(axes, "x", sizes, base=2)
            axes.set_xlim(sizes[0] / 2**0.5, sizes[-1] * 2**0.5)
            axes.set_xlabel("batch size $B$")
            ends = axes.get_ylim()
            log_axis(axes, "y", ends, base=2)
            axes.set_ylim(*ends)
        missed = [
            Mark(one["group"]["batch_size"], styles[name])
            for name, own in series.items()
            for one in own
            if one["steps"] is None
        ]
        if missed:
            diverged_band(grid[0], missed, at="top", label="not reached")
        legend_below(figure, _legend(targets, knees, styles))


def _draw_steps(axes: Any, targets: Sequence[Row], fit: Row | None, look: Look) -> None:
    """A curve with its line of perfect scaling, its fit and its knee."""
    color = look.color
    there = [one for one in targets if one["steps"] is not None]
    for one in targets:
        size = one["group"]["batch_size"]
        if one["steps"] is None:
            continue
        axes.plot([size, size], [max(one["low"], 1), one["high"]], color=color, lw=1.4, zorder=3)
        hollow = {"fillstyle": "none"} if one["at_edge"] else {}
        axes.plot(size, one["steps"], **{**look.dots, **hollow}, ms=7, mew=1.6, zorder=4)
    if not there:
        return
    first = min(there, key=lambda one: one["group"]["batch_size"])
    low, high = (pick(one["group"]["batch_size"] for one in targets) for pick in (min, max))
    examples = first["steps"] * first["group"]["batch_size"]
    axes.plot([low, high], [examples / low, examples / high], color=color, lw=0.9, ls=(0, (5, 2)),
              alpha=0.8, zorder=2)  # fmt: skip
    knee = _knee(fit)
    if fit is None or knee is None:
        return
    at = [low * (high / low) ** (k / 60) for k in range(61)]
    least = 1 / fit["largest"]
    rises = [knee[0] / size for size in at]
    y = [least * (1 + r if fit["form"] == "smooth" else max(r, 1.0)) for r in rises]
    axes.plot(at, y, color=color, lw=1.5, ls=":", zorder=2)
    axes.plot(knee[0], 0.0, "^", color=color, ms=9, transform=axes.get_xaxis_transform(),
              clip_on=False, zorder=6)  # fmt: skip


def _draw_noise(
    axes: Any, targets: Sequence[Row], fit: Row | None, sizes: Sequence[float], look: Look
) -> None:  # fmt: skip
    """The noise scales of a curve, and its knee."""
    points = [(one["group"]["batch_size"], one["noise_scale"]) for one in targets]
    points = [(size, scale) for size, scale in points if scale is not None and scale > 0]
    axes.plot(*zip(*points, strict=True), **look.dots, ms=7, ls="none") if points else None
    knee = _knee(fit)
    if knee is not None:
        value, error = knee
        axes.axhline(value, color=look.color, lw=1.3, ls=":")
        ends = [sizes[0] / 2, sizes[-1] * 2]
        axes.fill_between(ends, value / 2**error, value * 2**error, color=look.color, alpha=0.12,
                          lw=0)  # fmt: skip


def _knee(fit: Row | None) -> tuple[float, float] | None:
    """The knee and its error in octaves, if both parts show."""
    if fit is None or fit["batch_size_error"] is None:
        return None
    return fit["batch_size"], fit["batch_size_error"]


def _legend(targets: Sequence[Row], knees: Sequence[Row], styles: Mapping[str, Look]) -> list[Any]:
    none = {"color": INK, "linestyle": "none"}
    shown = [_knee(fit) for fit in knees]
    marks: list[tuple[str, bool, dict[str, Any]]] = [
        ("perfect scaling", True, {"color": INK, "lw": 0.9, "ls": (0, (5, 2))}),
        ("fitted", any(shown), {"color": INK, "lw": 1.5, "ls": ":"}),
        ("knee", any(shown), {"marker": "^", **none}),
        ("at the grid's edge", any(one["at_edge"] for one in targets),
         {"marker": "o", "mfc": "white", "mew": 1.6, **none}),
    ]  # fmt: skip
    entries = [entry(name, **look.dots, ms=6) for name, look in styles.items()]
    return entries + [entry(label, **look) for label, there, look in marks if there]


__all__ = ["steps_figure"]
