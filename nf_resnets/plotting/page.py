"""One page for one network: everything that is measured along its residual blocks."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nf_resnets.plotting.curves import Curve, Panel, column, curves_figure
from nf_resnets.plotting.signal import Quantity, blocks_curves, blocks_panel

Row = Mapping[str, Any]

# What is drawn beside the dots as a line, by the prefix of its columns.
_REFERENCES = {"closed": "closed form", "start": "at initialisation"}
# Heading, label and scale of the panel; column, name and closed form of each of its curves.
_PANELS: tuple[tuple[str, str, str, tuple[tuple[str, str, str], ...]], ...] = (
    ("Forward", "Var (second moment)", "log2",
     (("sum", "sum", "closed_sum"), ("skip", "skip path", "closed_skip"),
      ("branch", "branch", "closed_branch"))),
    ("Who contributes", "branch's fraction of the sum", "linear",
     (("share", "branch / sum", "closed_share"),)),
    ("Same for all images, or not", "of the sum, mean over channels", "log2",
     (("squared_mean", "squared mean", ""), ("variance", "variance", ""))),
    ("Backward", r"$\|\partial\ell/\partial x_{k-1}\|$", "log10",
     (("gradient_norm", "gradient norm", "closed_gradient"),
      ("bound", "Theorem 1: at least", ""))),
    ("Skip and branch uncorrelated?", r"$\eta_k$ (%)", "linear", (("eta", r"$\eta_k$", ""),)),
    ("Learnable scalar", "multiplier or alpha", "linear", (("scalar", "scalar", ""),)),
)  # fmt: skip


def page_figure(
    rows: Sequence[Row],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    reference: Literal["closed", "start"] = "closed",
) -> None:
    """Draws the page of a network and saves it.

    Second moments of skip, branch and sum with the closed form over them, the branch's fraction of
    the sum, the channels' squared means and variances, gradients with Theorem 1's bound, ``eta_k``
    and scalars.

    Args:
      rows: one for each block, with ``k``, ``transition`` and any of the columns ``skip``,
        ``branch``, ``sum``, ``closed_skip``, ``closed_branch``, ``closed_sum``, ``share``,
        ``closed_share``, ``squared_mean``, ``variance``, ``gradient_norm``, ``closed_gradient``,
        ``bound``, ``eta`` and ``scalar``; a panel of which nothing is there is left out.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: the network.
      subtitle: the settings.
      reference: what is drawn as lines beside the dots: the closed form, or the network's start,
        whose columns begin with ``start_``.
    """
    panels: list[Panel] = []
    for heading, label, scale, quantities in _PANELS:
        curves: list[Curve] = []
        for name, shown, closed in quantities:
            form = f"start_{name}" if reference == "start" else closed
            positive = any(value > 0 or scale == "linear" for value in column(rows, name))
            if positive and not all(map(math.isnan, column(rows, name))):
                curves += blocks_curves(shown, rows, Quantity(name, label, form, scale=scale))
        if curves:
            panels.append(blocks_panel(heading, rows, Quantity("", label, scale=scale), curves))
    legend = {"--": _REFERENCES[reference]}
    curves_figure(panels, path, title=title, subtitle=subtitle, columns=3, legend=legend)


__all__ = ["page_figure"]
