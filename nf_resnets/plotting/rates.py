"""Accuracy and loss against the learning rate: a sweep's raw result."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.plotting.style import power

Row = Mapping[str, Any]

# Name, factor by which it is drawn, whether more is better.
METRICS = {
    "test_accuracy": ("test accuracy (%)", 100, True),
    "train_accuracy": ("training accuracy (%)", 100, True),
    "test_loss": ("test loss", 1, False),
    "train_loss": ("training loss", 1, False),
}
LEGEND = {"best": "best", "open": "best, at the grid's edge", "--": "fitted"}


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

    Of one batch size there is a panel for each metric with a curve for each scheme; of several a
    panel for each scheme with a curve for each batch size. A curve is the mean over seeds in a band
    of one standard deviation, with a gap where all diverged; rates at which seeds diverged are
    marked in a band at the bad end of the axis. The best rate is a large dot, hollow at the edge of
    the grid.

    Args:
      optima: what ``dataclasses.asdict`` makes of :class:`nf_resnets.sweep.Optimum`.
      path: as of :func:`nf_resnets.plotting.curves_figure`.
      title: what the figure shows.
      subtitle: the settings it was made with.
      chance: the accuracy of guessing, 0 to 1; drawn where accuracy is.
      names: what to call schemes; else by their keys.
      batch_size: the field of the batch size in ``group``, or of another size, such as
        ``"depth"``.
      label: what the legend calls a size.
    """
    sizes = sorted({one["group"].get(batch_size, 0) for one in optima})
    schemes = dict.fromkeys(series_title(one["group"], batch_size, names) for one in optima)
    panels = []
    for metric in dict.fromkeys(one["metric"] for one in optima):
        of_metric = [one for one in optima if one["metric"] == metric]
        if len(sizes) == 1:
            curves = [(series_title(one["group"], batch_size, names), one) for one in of_metric]
            panels.append(_panel("", curves, of_metric, metric, chance))
            continue
        for scheme in schemes:
            curves = [
                (label.format(one["group"][batch_size]), one)
                for one in sorted(of_metric, key=lambda one: one["group"][batch_size])
                if series_title(one["group"], batch_size, names) == scheme
            ]
            panels.append(_panel(scheme, curves, of_metric, metric, chance))
    styles = None if len(sizes) == 1 else _size_looks([label.format(size) for size in sizes])
    columns = len(panels) if len(schemes) == 1 else min(len(schemes), 4)
    curves_figure(panels, path, title=title, subtitle=subtitle, legend=LEGEND, styles=styles,
                  columns=len(panels) if len(sizes) == 1 else columns)  # fmt: skip


def _panel(
    heading: str, optima: Sequence[tuple[str, Row]], every: Sequence[Row], metric: str,
    chance: float | None,
) -> Panel:  # fmt: skip
    """The curves of a panel, on the axis that all panels of a metric share."""
    name, factor, more_is_better = METRICS[metric]
    curves = []
    for title, one in optima:
        rates = [rate["rate"] for rate in one["rates"]]
        mean, std = ([math.nan if rate[each] is None else factor * rate[each]
                      for rate in one["rates"]] for each in ("mean", "std"))  # fmt: skip
        low, high = ([a + s * b for a, b in zip(mean, std, strict=True)] for s in (-1, 1))
        lost = [rate["rate"] for rate in one["rates"] if rate["diverged"]]
        curves.append(Curve(title, rates, mean, low=low, high=high, lost=lost))
        if one["best"] is not None:
            style = "open" if one["at_edge"] else "best"
            curves.append(Curve(title, [one["best"]], [factor * one["mean"]], style=style))
    means = [
        factor * rate["mean"] for one in every for rate in one["rates"] if rate["mean"] is not None
    ]
    level = None
    if metric.endswith("accuracy") and chance is not None:
        level = (100 * chance, f"chance ({100 * chance:.3g}%)")
        means.append(level[0])
    low_end, high_end = min(means, default=0.0), max(means, default=1.0)
    margin = 0.06 * (high_end - low_end) or 0.05 * high_end or 1.0
    log, limits = False, (low_end - margin, high_end + margin)
    if not more_is_better and low_end > 0 and high_end > 10 * low_end:
        # Losses far above the others lie beyond the edge.
        log, limits = True, (low_end / 1.4, min(1.4 * high_end, 10 * statistics.median(means)))
    return Panel(
        "learning rate", name, curves, y_limits=limits, level=level, heading=heading,
        more_is_better=more_is_better, x_base=2, y_base=10 * log,
    )  # fmt: skip


def _size_looks(titles: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colours for sizes in order, from dark to light."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    shades = [0.87 * at / max(1, len(titles) - 1) for at in range(len(titles))]
    return {
        title: {"color": to_hex(colormaps["viridis"](shade)), "marker": "osD^vh<>"[at % 8]}
        for at, (title, shade) in enumerate(zip(titles, shades, strict=True))
    }


def series_title(group: Row, size: str, names: Mapping[str, str] | None) -> str:
    """What to call the runs that share all of a group but a size.

    Example:
      >>> series_title({"scheme": "skipinit", "alpha": 0.5, "batch_size": 8}, "batch_size", None)
      'skipinit, alpha=0.5'
    """
    parts = [
        str((names or {}).get(value, value)) if name == "scheme" else f"{name}={value}"
        for name, value in group.items()
        if name != size
    ]
    return ", ".join(parts) or "all runs"


def rate_range(one: Row, marks: str = "") -> str:
    """The best rate of an optimum with the range of rates as good, if that is wider."""
    best, low, high = (power(one[name]) for name in ("best", "low", "high"))
    return best + marks + ("" if low == high else f" ({low} to {high})")
