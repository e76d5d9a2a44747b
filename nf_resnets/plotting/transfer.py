"""The best rate against the size of a network, and what the smallest network's rate costs there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.diverged import Mark, diverged_band
from nf_resnets.plotting.looks import Look, looks
from nf_resnets.plotting.rates import METRICS, series_title
from nf_resnets.plotting.style import INK, entry, legend_below, log_axis, saved_figure

Row = Mapping[str, Any]


def transfer_figure(
    moves: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    size: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Draws whether the best rate stays where it is, a curve for each scheme.

    On the left the best rate over that of the smallest network, with the range of rates as good; a
    level line is a rate that transfers. It is hollow where it lies at the edge of the rates tried.
    On the right the metric at each size's own best rate, and, dashed, at the best rate of the
    smallest network; where the line ends, more than half of these runs diverged. Sizes at which no
    run finished are marked in a band below. Curves stand slightly apart, so that their bars can be
    seen.

    Args:
      moves: with the fields of :class:`nf_resnets.sweep.transfer.Move`, of one metric.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      size: what the sizes are called, such as ``"layers"``.
      names: what to call schemes; else by their keys.

    Raises:
      ValueError: if there are no moves.

    Example:
      >>> import dataclasses, pathlib, tempfile
      >>> from nf_resnets import sweep
      >>> moves = [sweep.Move({"scheme": "fixup"}, depth, "train_loss", best=0.25, low=0.25,
      ...                     high=0.5, mean=0.1, at_base=0.1, diverged=0.0) for depth in (10, 34)]
      >>> path = pathlib.Path(tempfile.mkdtemp(), "transfer.svg")
      >>> rows = [dataclasses.asdict(move) for move in moves]
      >>> transfer_figure(rows, path, title="The rate stays", subtitle="digits", size="layers")
      >>> path.exists()
      True
    """
    if not moves:
        raise ValueError("moves is empty; expected at least one size of a network to draw.")
    curves: dict[str, list[Row]] = {}
    for move in moves:
        curves.setdefault(series_title(move["group"], "", names), []).append(move)
    for of in curves.values():
        of.sort(key=lambda move: move["size"])
    sizes = sorted({move["size"] for move in moves})
    metric, factor, _ = METRICS[moves[0]["metric"]]
    with saved_figure(path, (9.2, 4.6), title=title, subtitle=subtitle) as figure:
        left, right = figure.subplots(1, 2)
        styles = looks(curves)
        for index, (curve, look) in enumerate(styles.items()):
            apart = 2 ** (0.4 * ((index + 0.5) / len(curves) - 0.5))
            _draw(left, right, curves[curve], factor, apart, look)
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{one:,}" for one in sizes], minor=False)
            axes.minorticks_off()
            axes.set_xlim(min(sizes) / 2**0.4, max(sizes) * 2**0.4)
            axes.set_xlabel(size)
        first = {curve: of[0]["best"] for curve, of in curves.items()}
        drawn = [
            move[end] / first[curve]
            for curve, of in curves.items()
            for move in of
            for end in ("low", "high")
            if move["best"] is not None and first[curve]
        ]
        left.set_title("Best rate over that of the smallest network")
        log_axis(left, "y", drawn or [0.5, 2.0], base=2)
        left.set_ylabel("best rate, relative")
        left.axhline(1.0, color=INK, lw=0.8, zorder=1)
        gone = [
            Mark(move["size"], styles[curve])
            for curve, of in curves.items()
            for move in of
            if move["best"] is None or not first[curve]
        ]
        if gone:
            diverged_band(left, gone, label="none finished")
        means = [move[each] for move in moves for each in ("mean", "at_base") if move[each]]
        if means and max(means) > 10 * min(means):
            log_axis(right, "y", means, base=10)
        right.set_title("At its own best rate; dashed: the smallest's")
        right.set_ylabel(metric)
        entries = [entry(name, **{**look.line, **look.dots}) for name, look in styles.items()]
        none = {"color": INK, "linestyle": "none"}
        if any(move["at_edge"] for move in moves):
            marks = {"marker": "o", "mfc": "white", "mew": 1.6, **none}
            entries.append(entry("at the edge of the rates", **marks))
        legend_below(figure, entries)


def _draw(
    left: Any, right: Any, moves: Sequence[Row], factor: float, apart: float, look: Look
) -> None:
    """One scheme in both panels."""
    base = moves[0]["best"]
    there = [move for move in moves if move["best"] is not None and base]
    x = [move["size"] * apart for move in there]
    left.plot(x, [move["best"] / base for move in there], **look.line, zorder=3)
    for at, move in zip(x, there, strict=True):
        left.plot([at, at], [move["low"] / base, move["high"] / base], color=look.color, lw=1.2)
        hollow = {"markerfacecolor": "white"} if move["at_edge"] else {}
        left.plot(at, move["best"] / base, **look.dots, markeredgewidth=1.6, **hollow, zorder=4)
    right.plot(x, [factor * move["mean"] for move in there], **{**look.line, **look.dots})
    moved = [move for move in there if move["at_base"] is not None and move["diverged"] <= 0.5]
    dashed = {**look.line, "linestyle": (0, (2, 2)), "alpha": 0.7}
    right.plot(
        [move["size"] * apart for move in moved],
        [factor * move["at_base"] for move in moved],
        **dashed,
    )


__all__ = ["transfer_figure"]
