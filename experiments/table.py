"""Text tables: columns aligned, names to the left, numbers to the right; and curves of rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.plotting.curves import Curve, mean_curve
from nf_resnets.plotting.sweep import EDGE, mark_notes, text_table


def grouped(
    rows: Iterable[Mapping[str, Any]], *columns: str
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """The rows by their values in some columns, as text.

    >>> grouped([{"a": "1", "b": "2"}, {"a": "3", "b": "2"}], "b")
    {('2',): [{'a': '1', 'b': '2'}, {'a': '3', 'b': '2'}]}
    """
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in columns), []).append(row)
    return groups


def finished(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows of runs that did not diverge."""
    return [row for row in rows if row["status"] == "finished"]


def edge_mark(best: float, tried: Iterable[float]) -> str:
    """The mark of a best rate that is the lowest or the highest tried; nothing of another.

    >>> edge_mark(0.1, [0.1, 0.2]), edge_mark(0.2, [0.1, 0.2, 0.4])
    ('!', '')
    """
    tried = set(tried)
    return EDGE if best in (min(tried), max(tried)) else ""


def rate_table(cells: Sequence[Sequence[str]]) -> str:
    """Lays out a table of best rates, and says below it what their marks mean, if there are any."""
    return "\n".join([text_table(cells), *mark_notes(cell for line in cells for cell in line)])


def accuracy_cell(
    rows: Sequence[Mapping[str, Any]], column: str = "test_accuracy", *, error: bool = False
) -> str:
    """The mean of an accuracy, or the error, in percent of those runs that finished.

    The others are counted.

    >>> accuracy_cell([{"status": "finished", "test_accuracy": "0.931"}, {"status": "diverged"}])
    '93.1 (1 diverged)'
    """
    values = [100 * float(row[column]) for row in finished(rows)]
    gone = len(rows) - len(values)
    mean = sum(values) / len(values) if values else 0.0
    shown = [f"{100 - mean if error else mean:.1f}"] if values else []
    return " ".join([*shown, *([f"({gone} diverged)"] if gone else [])]) or "-"


def spread_cell(rows: Sequence[Mapping[str, Any]], column: str = "test_accuracy") -> str:
    """As :func:`accuracy_cell`, with the sample's standard deviation where several runs finished.

    >>> spread_cell([{"status": "finished", "test_accuracy": share} for share in (0.5, 0.6, 0.7)])
    '60.0 ± 10.0 (3 runs)'
    """
    values = [100 * float(row[column]) for row in finished(rows)]
    if len(values) < 2:
        return accuracy_cell(rows, column)
    gone = len(rows) - len(values)
    runs = f"{len(values)} runs" + (f", {gone} diverged" if gone else "")
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f} ({runs})"


def error_cells(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    """Mean and median test error (%) of the runs that finished; how many ran, and diverged."""
    errors = [100 - 100 * float(row["test_accuracy"]) for row in finished(rows)]
    shown = [f"{of(errors):.2f}" if errors else "-" for of in (statistics.mean, statistics.median)]
    return shown[0], shown[1], str(len(rows)), str(len(rows) - len(errors))


def published_cell(value: float | None, digits: int = 1) -> str:
    """A published number, if there is one."""
    return "-" if value is None else f"{value:.{digits}f}"


def mean_curves(
    results: Any, rows: Iterable[Mapping[str, Any]], column: str = "accuracy"
) -> list[Curve]:
    """A curve for the runs of each title: the mean of a column of their lines.

    It goes as far as all of them went, in a band from the lowest run to the highest; accuracies are
    in percent. Of runs without a line at the same step it has where they diverged.
    """
    factor, curves = 100 if column == "accuracy" else 1, []
    for (title,), runs in grouped(rows, "title").items():
        values = [
            {
                int(line["step"]): factor * float(line[column])
                for line in results.curve(run)
                if line.get(column) not in (None, "")
            }
            for run in runs
        ]
        steps = sorted(set.intersection(*map(set, values)))
        at = {step: [run[step] for run in values] for step in steps}
        pairs = zip(runs, values, strict=True)
        lost = [max(run) for row, run in pairs if run and not at and not finished([row])]
        if at or lost:
            gone = len(finished(runs)) < len(runs)
            curves.append(mean_curve(title, at, diverged=gone, lost=lost))
    return curves
