"""The best rate against the size of a network, and what the smallest network's rate costs there."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.plotting.rates import METRICS, series_title

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
    smallest network; where the line ends, more than half of these runs diverged.

    Args:
      moves: with the fields of :class:`nf_resnets.sweep.select.Move`, of one metric.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      size: what the sizes are called, such as ``"layers"``.
      names: what to call schemes; else by their keys.

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
    curves: dict[str, list[Row]] = {}
    for move in sorted(moves, key=lambda move: move["size"]):
        curves.setdefault(series_title(move["group"], "", names), []).append(move)
    metric, factor, more_is_better = METRICS[moves[0]["metric"]]
    rates, costs = [], []
    for index, (name, of_scheme) in enumerate(curves.items()):
        base = of_scheme[0]["best"]
        # Curves stand slightly apart, so that their bars can be seen.
        apart = 2 ** (0.3 * ((index + 0.5) / len(curves) - 0.5))
        finished = [move for move in of_scheme if move["best"] is not None and base]
        x = [move["size"] * apart for move in finished]
        best, low, high = ([m[each] / base for m in finished] for each in ("best", "low", "high"))
        lost = [move["size"] * apart for move in of_scheme if move not in finished]
        rates.append(Curve(name, x, best, marked=True, low=low, high=high, lost=lost))
        edge = [at for at, move in enumerate(finished) if move["at_edge"]]
        rates.append(Curve(name, [x[at] for at in edge], [best[at] for at in edge], style="open"))
        moved = [
            math.nan if m["at_base"] is None or m["diverged"] > 0.5 else factor * m["at_base"]
            for m in finished
        ]
        costs.append(Curve(name, x, [factor * move["mean"] for move in finished], marked=True))
        costs.append(Curve(name, x, moved, style="--"))
    sizes = sorted({move["size"] for move in moves})
    means = [value for curve in costs for value in curve.y if value > 0]
    log = bool(means) and max(means) > 10 * min(means)
    panels = [
        Panel(size, "best rate / the smallest network's", rates, x_base=10, y_base=2,
              ticks=sizes),
        Panel(size, metric, costs, more_is_better=more_is_better, x_base=10, y_base=10 * log,
              ticks=sizes),
    ]  # fmt: skip
    legend = {"open": "at the edge of the rates", "--": "at the smallest network's best rate"}
    curves_figure(panels, path, title=title, subtitle=subtitle, legend=legend)


__all__ = ["transfer_figure"]
