"""One look for all figures: sizes, colours that colour-blind readers can tell apart, markers."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's palette without its yellow, which is too light for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#882255")
MARKERS = ("o", "s", "D", "^", "v", "P", "X", "h")

RC: Any = {
    "figure.figsize": (7.2, 4.4),
    "figure.dpi": 160,
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    "legend.frameon": False,
}

__all__ = ["COLORS", "MARKERS", "RC"]
