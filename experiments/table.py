"""Text tables: columns aligned, names to the left, numbers to the right."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nf_resnets.plotting.sweep import EDGE, EDGE_NOTE, PASSED, PASSED_NOTE, text_table


def grouped(
    rows: Iterable[Mapping[str, Any]], *columns: str
) -> dict[tuple[str, ...], list[Mapping[str, Any]]]:
    """The rows by their values in some columns, as text.

    >>> grouped([{"a": "1", "b": "2"}, {"a": "3", "b": "2"}], "b")
    {('2',): [{'a': '1', 'b': '2'}, {'a': '3', 'b': '2'}]}
    """
    found: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(str(row[name]) for name in columns), []).append(row)
    return found


def counted(values: Sequence[Any], noun: str) -> str:
    """How many there are, in words.

    >>> counted((0,), "seed"), counted((0, 1), "seed")
    ('1 seed', '2 seeds')
    """
    return f"{len(values)} {noun}{'' if len(values) == 1 else 's'}"


def data_title(name: str) -> str:
    """What texts call a data set.

    >>> data_title("cifar10"), data_title("digits")
    ('CIFAR-10', 'the digits')
    """
    return {"cifar10": "CIFAR-10", "digits": "the digits"}.get(name, name)


def seeds_shown(rows: Iterable[Mapping[str, Any]], *columns: str) -> str:
    """How many seeds the curve of each combination is the mean of, and what its band is.

    >>> rows = [{"depth": 10, "seed": 0}, {"depth": 10, "seed": 1}]
    >>> seeds_shown(rows[:1], "depth"), seeds_shown(rows, "depth")
    ('1 seed', 'means of 2 seeds, bands from the lowest to the highest')
    """
    seeds = seeds_counted(rows, *columns)
    return seeds if seeds == "1 seed" else f"means of {seeds}, bands from the lowest to the highest"


def seeds_counted(rows: Iterable[Mapping[str, Any]], *columns: str) -> str:
    """How many seeds each combination of some columns has.

    >>> rows = [{"depth": 10, "seed": 0}, {"depth": 10, "seed": 1}, {"depth": 34, "seed": 0}]
    >>> [seeds_counted(some, "depth") for some in (rows, rows[:2], rows[2:])]
    ['1 to 2 seeds', '2 seeds', '1 seed']
    """
    counts = {len(of) for of in grouped(rows, *columns).values()}
    most = counted(range(max(counts)), "seed")
    return most if len(counts) == 1 else f"{min(counts)} to {most}"


def edge_mark(best: float, tried: Iterable[float]) -> str:
    """The mark of a best rate that is the lowest or the highest tried; nothing of another.

    >>> edge_mark(0.1, [0.1, 0.2]), edge_mark(0.2, [0.1, 0.2, 0.4])
    ('!', '')
    """
    tried = set(tried)
    return EDGE if best in (min(tried), max(tried)) else ""


def rate_table(cells: Sequence[Sequence[str]]) -> str:
    """Lays out a table of best rates, and says below it what their marks mean, if there are any."""
    text = "".join(cell for line in cells for cell in line)
    notes = [note for mark, note in ((EDGE, EDGE_NOTE), (PASSED, PASSED_NOTE)) if mark in text]
    return "\n".join([text_table(cells), *notes])


def accuracy_cell(
    rows: Sequence[Mapping[str, Any]], column: str = "test_accuracy", *, error: bool = False
) -> str:
    """The mean of an accuracy, or the error, in percent of those runs that finished.

    The others are counted.

    >>> accuracy_cell([{"status": "finished", "test_accuracy": "0.931"}, {"status": "diverged"}])
    '93.1 (1 diverged)'
    """
    finished = [100 * float(row[column]) for row in rows if row["status"] == "finished"]
    gone = len(rows) - len(finished)
    mean = sum(finished) / len(finished) if finished else 0.0
    shown = [f"{100 - mean if error else mean:.1f}"] if finished else []
    return " ".join([*shown, *([f"({gone} diverged)"] if gone else [])]) or "-"


def spread_cell(rows: Sequence[Mapping[str, Any]], column: str = "test_accuracy") -> str:
    """As :func:`accuracy_cell`, with the sample's standard deviation where several runs finished.

    >>> spread_cell([{"status": "finished", "test_accuracy": share} for share in (0.5, 0.6, 0.7)])
    '60.0 ± 10.0 (3 runs)'
    """
    finished = [100 * float(row[column]) for row in rows if row["status"] == "finished"]
    if len(finished) < 2:
        return accuracy_cell(rows, column)
    gone = len(rows) - len(finished)
    runs = f"{len(finished)} runs" + (f", {gone} diverged" if gone else "")
    return f"{statistics.fmean(finished):.1f} ± {statistics.stdev(finished):.1f} ({runs})"


def error_cells(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str, str, str]:
    """Mean and median test error (%) of the runs that finished; how many ran, and diverged."""
    errors = [
        100 - 100 * float(row["test_accuracy"]) for row in rows if row["status"] == "finished"
    ]
    middle = (statistics.mean, statistics.median)
    found = [f"{of(errors):.2f}" if errors else "-" for of in middle]
    gone = sum(row["status"] == "diverged" for row in rows)
    return found[0], found[1], str(len(rows)), str(gone)


def published_cell(value: float | None, digits: int = 1) -> str:
    """A published number, if there is one."""
    return "-" if value is None else f"{value:.{digits}f}"


__all__ = [
    "accuracy_cell", "counted", "data_title", "edge_mark", "error_cells", "grouped",
    "published_cell", "rate_table", "seeds_counted", "seeds_shown", "spread_cell", "text_table",
]  # fmt: skip
