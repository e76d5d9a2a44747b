"""One page for one network: everything that is measured along its residual blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, column, curves_figure, curves_of, stage_lines

Row = Mapping[str, Any]

# Heading, label and the base of its logarithm; column, name and closed form of each of its curves.
_PANELS: tuple[tuple[str, str, int, tuple[tuple[str, str, str], ...]], ...] = (
    ("Forward", "Var (second moment)", 2,
     (("sum", "sum", "closed_sum"), ("skip", "skip path", "closed_skip"),
      ("branch", "branch", "closed_branch"))),
    ("Who contributes", "branch's fraction of the sum", 0,
     (("share", "branch / sum", "closed_share"),)),
    ("Same for all images, or not", "of the sum, mean over channels", 2,
     (("squared_mean", "squared mean", ""), ("variance", "variance", ""))),
    ("Backward", r"$\|\partial\ell/\partial x_{k-1}\|$", 10,
     (("gradient_norm", "gradient norm", ""),
      ("bound", "Theorem 1: at least", ""))),
    ("Skip and branch uncorrelated?", r"$\eta_k$ (%)", 0, (("eta", r"$\eta_k$", ""),)),
    ("Learnable scalar", "multiplier or alpha", 0, (("scalar", "scalar", ""),)),
)  # fmt: skip


def page_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
) -> None:
    """Draws the page of a network and saves it.

    Args:
      rows: one for each block, with ``k``, ``transition`` and any of the columns of ``_PANELS``; a
        panel of which nothing is there is left out.
      path: as of :func:`nf_resnets.plotting.curves_figure`.
      title: the network.
      subtitle: the settings.
    """
    panels: list[Panel] = []
    for heading, label, base, quantities in _PANELS:
        curves: list[Curve] = []
        for name, shown, closed in quantities:
            lines = [{**row, "title": shown} for row in rows]
            if not base or any(value > 0 for value in column(rows, name)):
                curves += (dots := curves_of(lines, "k", name, "dots"))
                curves += curves_of(lines, "k", closed, "--") if dots else []
        if curves:
            begin = stage_lines(rows)
            panels.append(
                Panel("block $k$", label, curves, y_base=base, heading=heading, lines=begin)
            )
    legend = {"--": "closed form"}
    curves_figure(panels, path, title=title, subtitle=subtitle, columns=3, legend=legend)
