"""Coordinate checks: activations and their change against the width or depth of a network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Panel, curves_figure, curves_of


def coordinates_figure(
    rows: Sequence[Mapping[str, Any]],
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
      path: where to save; the suffix chooses the format. A PNG also has an SVG of its name.
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


__all__ = ["coordinates_figure"]
