"""Text tables: columns aligned, names to the left, numbers to the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def text_table(cells: Sequence[Sequence[str]]) -> str:
    """Lays out lines of cells, the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )


def accuracy_cell(rows: Sequence[Mapping[str, Any]]) -> str:
    """The mean test accuracy in percent of those runs that finished; the others are counted."""
    finished = [float(row["test_accuracy"]) for row in rows if row["status"] == "finished"]
    gone = len(rows) - len(finished)
    mean = f"{100 * sum(finished) / len(finished):.1f}" if finished else ""
    return " ".join(filter(None, [mean, f"({gone} diverged)" if gone else ""])) or "-"


__all__ = ["accuracy_cell", "text_table"]
