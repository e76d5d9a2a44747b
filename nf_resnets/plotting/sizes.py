"""Figures against the size of a network: accuracy, the best rate, coordinates."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, curves_of, mean_curve
from nf_resnets.plotting.rates import METRICS, series_title

Row = Mapping[str, Any]


def depth_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    chance: float,
) -> None:
    """Draws test accuracy against depth, one curve for each scheme, as Fixup's figure 3.

    A point is the mean over seeds with a bar from the worst to the best. Depths at which runs
    diverged are marked in a band below; a curve has a gap where no run finished.

    Args:
      rows: one for each run, with ``title`` (the curve), ``depth`` (layers), ``test_accuracy``
        (0 to 1) and ``status`` (``"finished"`` or ``"diverged"``).
      path: as of :func:`nf_resnets.plotting.curves_figure`.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1.
    """
    curves = []
    for name in dict.fromkeys(row["title"] for row in rows):
        values: dict[int, list[float]] = {}
        lost: list[int] = []
        for row in sorted(rows, key=lambda row: int(row["depth"])):
            if row["title"] == name:
                accuracies = values.setdefault(int(row["depth"]), [])
                if row["status"] == "diverged":
                    lost.append(int(row["depth"]))
                else:
                    accuracies.append(100 * float(row["test_accuracy"]))
        curves.append(mean_curve(name, values, marked=True, lost=sorted({*lost})))
    level = (100 * chance, f"chance ({100 * chance:.0f}%)")
    heights = [y for curve in curves for y in (*curve.y, *curve.high) if math.isfinite(y)]
    top = min(102.0, 1.15 * max([level[0], *heights]))
    panel = Panel(
        "depth (layers)", "test accuracy (%)", curves, y_limits=(0, top), level=level, x_base=10
    )
    curves_figure([panel], path, title=title, subtitle=subtitle)


def coordinates_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    size: str,
) -> None:
    """Draws how large activations are, and how far they moved, after some numbers of steps.

    Two panels for each place in the network. A level line is what a parametrisation that transfers
    has; both axes are logarithmic.

    Args:
      rows: of :func:`nf_resnets.analysis.coordinate_rows`.
      path: as of :func:`nf_resnets.plotting.curves_figure`.
      title: what the figure shows.
      subtitle: the settings it was made with.
      size: what the sizes are called, such as ``"width"``.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "coordinates.svg")
      >>> rows = [{"place": "logits", "steps": 1, "size": width, "activation": 1.0, "change": 0.1}
      ...         for width in (16, 64)]
      >>> coordinates_figure(rows, path, title="muP", subtitle="AdamW", size="width")
      >>> path.exists()
      True
    """
    panels = []
    for place in dict.fromkeys(row["place"] for row in rows):
        lines = [{**row, "title": f"step {row['steps']}"} for row in rows if row["place"] == place]
        for name, what, label in (
            ("activation", "activation", "root mean square"),
            ("change", "change since the start", ""),
        ):
            curves = curves_of(lines, "size", name)
            heading = f"{place}: {what}"
            panels.append(Panel(size, label, curves, x_base=10, y_base=10, heading=heading))
    curves_figure(panels, path, title=title, subtitle=subtitle, columns=2)


def transfer_figure(
    moves: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    size: str,
) -> None:
    """Draws whether the best rate stays where it is, a curve for each scheme.

    On the left the best rate over that of the smallest network, with the range of rates as good; a
    level line is a rate that transfers. It is hollow where it lies at the edge of the rates tried.
    On the right the metric at each size's own best rate, and, dashed, at the best rate of the
    smallest network; where the line ends, more than half of these runs diverged.

    Args:
      moves: with the fields of :class:`nf_resnets.sweep.select.Move`, of one metric.
      path: as of :func:`nf_resnets.plotting.curves_figure`.
      title: what the figure shows.
      subtitle: the settings it was made with.
      size: what the sizes are called, such as ``"layers"``.

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
        curves.setdefault(series_title(move["group"], "", None), []).append(move)
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
