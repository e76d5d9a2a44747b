"""One page for one network: everything that is measured along its residual blocks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nf_resnets.plotting.looks import looks
from nf_resnets.plotting.signal import (
    Quantity,
    draw_quantity,
    finish_axes,
    finite,
    transition_lines,
)
from nf_resnets.plotting.style import INK, saved_figure

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
    notes: Sequence[str] = (),
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
        ``bound``, ``eta`` and ``scalar``; a panel of which nothing is there says so.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: the network.
      subtitle: the settings.
      notes: lines for the foot of the page.
      reference: what is drawn as lines beside the dots: the closed form, or the network's start,
        whose columns begin with ``start_``.

    Raises:
      ValueError: if there are no rows.
    """
    if not rows:
        raise ValueError("rows is empty; expected one for each residual block.")
    foot = 0.2 * len(notes) + 0.1
    size = 12.6, 7.4 + foot
    with saved_figure(path, size, title=title, subtitle=subtitle, foot=foot) as figure:
        for axes, panel in zip(figure.subplots(2, 3).ravel(), _PANELS, strict=True):
            _draw_panel(axes, rows, reference, *panel)
        for index, line in enumerate(notes):
            height = (foot - 0.1 - 0.2 * index) / size[1]
            figure.text(0.012, height, line, fontsize=9, color=INK, va="center")


def _draw_panel(
    axes: Any,
    rows: Sequence[Row],
    reference: str,
    heading: str,
    label: str,
    scale: str,
    curves: Sequence[tuple[str, str, str]],
) -> None:
    axes.set_title(heading, fontsize=10)
    if reference == "start":
        curves = [(column, name, f"start_{column}") for column, name, _ in curves]
    there = [
        (index, curve) for index, curve in enumerate(curves) if finite(rows, curve[0], "linear")
    ]
    if not there:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color="#777777")
        axes.set_axis_off()
        return
    transition_lines(axes, rows)
    zeros = []
    own = looks(name for _, name, _ in curves)
    for _, (column, name, form) in there:
        quantity = Quantity(column, label, form, scale=scale)
        draw_quantity(axes, rows, quantity, own[name], size=4.5)
        if finite(rows, column, scale):
            axes.plot([], [], **own[name].dots, ms=4.5, linestyle="none", label=name)
        else:
            zeros.append(name)
    if any(form and finite(rows, form, scale) for _, (_, _, form) in there):
        axes.plot([], [], "--", color=INK, linewidth=1.3, label=_REFERENCES[reference])
    if axes.get_legend_handles_labels()[0]:
        finish_axes(axes, Quantity("", label, scale=scale))
        axes.margins(y=0.12)
        axes.legend(fontsize=8, loc="best")
    else:
        axes.set_axis_off()
    if zeros:
        said = f"{' and '.join(zeros)}: 0 at every block"
        axes.text(0.03, 0.03, said, transform=axes.transAxes, fontsize=8, color=INK)
    if scale == "linear":
        # From 0 on, unless something is below it.
        low, high = axes.dataLim.y0, axes.dataLim.y1
        axes.set_ylim(1.1 * min(low, 0.0), 1.1 * high if high > 0 else 1.0)


__all__ = ["page_figure"]
