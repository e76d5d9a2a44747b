"""Signal propagation along the blocks of a network: measured dots on the lines of closed forms."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, column, curves_figure

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Quantity:
    """One pair of axes over the block's index ``k``.

    Attributes:
      column: what is drawn, a column of the rows; dots.
      label: of the vertical axis.
      form: the column of the closed form, a dashed line; ``""`` for none.
      second_form: the column of another one, a dotted line; ``""`` for none.
      scale: ``"log2"``, ``"log10"`` or ``"linear"``. Zeros are left out where it is a logarithm.
      error: the column of the standard error of the dots; ``""`` for none.
    """

    column: str
    label: str
    form: str = ""
    second_form: str = ""
    scale: str = "linear"
    error: str = ""


BASES = {"linear": 0, "log2": 2, "log10": 10}


def signal_figure(
    panels: Sequence[tuple[str, Sequence[Row], Quantity]],
    path: str | os.PathLike[str],
    *,
    title: str,
    subtitle: str,
    form: str = "closed form",
    second_form: str = "",
    columns: int = 2,
) -> None:
    """Draws panels of measured dots and closed forms, one colour for each title, and saves them.

    Args:
      panels: for each the heading, the rows and the quantity. Rows have ``k``, ``title`` (the
        curve), ``transition`` (whether a stage begins) and the quantity's columns; what is ``""``
        or NaN is not drawn.
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
      title: what the figure shows.
      subtitle: the settings it was made with.
      form: what the legend calls the line.
      second_form: what it calls the dotted line; ``""`` if there is none.
      columns: panels beside each other.

    Example:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "signal.svg")
      >>> rows = [{"k": k, "title": "He", "transition": False, "Var": 2.1**k, "form": 2.0**k}
      ...         for k in (1, 2, 3)]
      >>> variance = Quantity("Var", "variance of the sum", "form", scale="log2")
      >>> signal_figure([("WRN-10", rows, variance)], path, title="It doubles", subtitle="digits")
      >>> path.exists()
      True
    """
    drawn = []
    for heading, rows, quantity in panels:
        curves: list[Curve] = []
        for name in dict.fromkeys(row["title"] for row in rows):
            of_title = [row for row in rows if row["title"] == name]
            curves += blocks_curves(name, of_title, quantity)
        drawn.append(blocks_panel(heading, rows, quantity, curves))
    legend = {"--": form, ":": second_form}
    curves_figure(drawn, path, title=title, subtitle=subtitle, columns=columns, legend=legend)


def blocks_curves(name: str, rows: Sequence[Row], quantity: Quantity) -> list[Curve]:
    """The lines of the closed forms, and the measured dots with their standard errors."""
    k = column(rows, "k")
    forms = ((quantity.form, "--"), (quantity.second_form, ":"))
    curves = [
        Curve(name, k, column(rows, each), style=style)
        for each, style in forms
        if each and not all(map(math.isnan, column(rows, each)))
    ]
    y, errors = column(rows, quantity.column), column(rows, quantity.error)
    low, high = ([a + s * b for a, b in zip(y, errors, strict=True)] for s in (-1, 1))
    bars: Any = {"low": low, "high": high} if quantity.error else {}
    return [*curves, Curve(name, k, y, style="dots", **bars)]


def blocks_panel(
    heading: str, rows: Sequence[Row], quantity: Quantity, curves: Sequence[Curve]
) -> Panel:
    """A panel over the blocks, with a vertical line where a stage begins."""
    begins = sorted({int(row["k"]) - 0.5 for row in rows if str(row.get("transition")) == "True"})
    return Panel(
        "block $k$", quantity.label, curves, y_base=BASES[quantity.scale], heading=heading,
        lines=begins,
    )  # fmt: skip


__all__ = ["Quantity", "blocks_curves", "blocks_panel", "signal_figure"]
