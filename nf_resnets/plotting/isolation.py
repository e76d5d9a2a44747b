"""One setting at a time: a metric against each setting of a sweep, by the best of the others."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.diverged import SIZES, Mark, diverged_band
from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.rates import METRICS
from nf_resnets.plotting.style import INK, entry, legend_below, log_axis, saved_figure, value_ticks

Row = Mapping[str, Any]


def isolation_figure(
    isolations: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draws a panel for each setting and metric, a curve for each scheme, and saves the figure.

    A small dot is one configuration of the other settings, the mean over its seeds. The line joins
    the best of each value, with a bar of one standard deviation. Infeasible configurations, of
    which seeds diverged, are counted at marks in a band at the bad end of the axis; the mark of
    those of which only some did is small.

    Args:
      isolations: with the fields of ``Isolation`` in ``nf_resnets.sweep.select``; of the group
        ``scheme`` names the curve.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      names: what to call schemes; else by their keys.

    Raises:
      ValueError: if there is nothing to draw.

    Source: Godbole et al., *Deep Learning Tuning Playbook*, 2023: isolation plots.
    """
    if not isolations:
        raise ValueError("isolations is empty; expected at least one setting to draw.")
    fields = list(dict.fromkeys(one["field"] for one in isolations))
    metrics = list(dict.fromkeys(one["metric"] for one in isolations))
    called = names or {}
    styles = looks(_name(one, called) for one in isolations)
    across, down = len(fields), len(metrics)
    size = (max(3.6 * across + 0.4, 6.4), 2.8 * down + 1)
    with saved_figure(path, size, title=title, subtitle=subtitle) as figure:
        grid = figure.subplots(down, across, squeeze=False)
        for axes_row, metric in zip(grid, metrics, strict=True):
            marks: list[list[Mark]] = []
            for axes, field in zip(axes_row, fields, strict=True):
                own = [o for o in isolations if o["field"] == field and o["metric"] == metric]
                place = _place(axes, field, [v for one in own for v in one["values"]])
                marks.append(
                    [m for o in own for m in _draw(axes, o, place, styles[_name(o, called)])]
                )
            ends = [axes.get_ylim() for axes in axes_row]
            rows = max((n for of in marks for n in Counter(m.x for m in of).values()), default=0)
            for axes, own_marks in zip(axes_row, marks, strict=True):
                axes.set_ylim(min(low for low, _ in ends), max(high for _, high in ends))
                if rows:
                    at: Any = "bottom" if METRICS[metric][2] else "top"
                    diverged_band(axes, own_marks, at=at, across=1, rows=rows)
                axes.tick_params(labelleft=axes is axes_row[0])
            axes_row[0].set_ylabel(METRICS[metric][0])
        diverged = [c for one in isolations for of in one["configurations"] for c in of]
        entries = [entry(n, **{**look.line, **look.dots}, ms=5) for n, look in styles.items()]
        entries.append(entry("one configuration", color=INK, marker=".", ls="none", alpha=0.5))
        if any(c["diverged"] and c["n"] for c in diverged):
            small = {"marker": "o", "ms": SIZES[False], "linestyle": "none"}
            entries.append(entry("some seeds diverged", color=INK, **small))
        legend_below(figure, entries)


def _name(one: Row, names: Mapping[str, str]) -> str:
    scheme = one["group"].get("scheme", "all runs")
    return str(names.get(scheme, scheme))


def _place(axes: Any, field: str, values: Sequence[Any]) -> Mapping[Any, float]:
    """Where each value stands on the axis, whose scale and label this sets."""
    axes.set_xlabel("learning rate" if field == "peak_lr" else field.replace("_", " "))
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    distinct = list(dict.fromkeys(values))
    if numbers and min(distinct) > 0 and max(distinct) >= 4 * min(distinct):
        log_axis(axes, "x", [float(value) for value in distinct], base=2, room=6)
        if field != "peak_lr":
            value_ticks(axes, distinct)
        axes.set_xlim(min(distinct) / 2**0.5, max(distinct) * 2**0.5)
    elif not numbers or len(distinct) < 3:
        axes.set_xticks(range(len(distinct)), [str(value) for value in distinct])
        axes.set_xlim(-0.5, len(distinct) - 0.5)
        return {value: float(index) for index, value in enumerate(distinct)}
    return {value: float(value) for value in distinct}


def _draw(axes: Any, one: Row, place: Mapping[Any, float], look: Look) -> list[Mark]:
    """The configurations of a curve and the best of them; the marks of what is infeasible."""
    factor, marks = METRICS[one["metric"]][1], []
    for value, configurations in zip(one["values"], one["configurations"], strict=True):
        x = place[value]
        means = [factor * c["mean"] for c in configurations if c["mean"] is not None]
        axes.plot([x] * len(means), means, ".", color=look.color, ms=4, alpha=0.35, zorder=2)
        for whole in (True, False):
            count = sum(c["diverged"] > 0 and (not c["n"]) == whole for c in configurations)
            marks += [Mark(x, look, whole, str(count))] if count else []
    best = [(place[v], b) for v, b in zip(one["values"], one["best"], strict=True) if b is not None]
    at = [x for x, _ in best]
    y = [factor * b["mean"] for _, b in best]
    spread = [factor * (b["std"] or 0.0) for _, b in best]
    most = factor if factor == 100 else math.inf
    low = [max(mean - std, 0.0) for mean, std in zip(y, spread, strict=True)]
    high = [min(mean + std, most) for mean, std in zip(y, spread, strict=True)]
    axes.vlines(at, low, high, look.color, lw=1.0, zorder=3)
    axes.plot(at, y, **{**look.line, **look.dots}, ms=5, zorder=4)
    return marks


__all__ = ["isolation_figure"]
