"""The curves of the runs of a results folder: thinned, kept in ``curves.csv``, and their mean."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.folder import ResultsFolder, Row, read_rows, write_whole


class CurvesFile:
    """The file ``curves.csv`` of a folder: written whole, a run's lines before its row.

    A run that is cut off between the two is made again, and its lines are replaced.

    Args:
      folder: the folder, held by this process.
      columns: the columns of the file, in order.
      key: those that name a run; they are columns of the folder's rows, too.

    Raises:
      SystemExit: if the file has other columns, or lacks the lines of a row that is there.
    """

    def __init__(self, folder: ResultsFolder, *, columns: Sequence[str], key: Sequence[str]):
        self.path = folder.path / "curves.csv"
        self._columns, self._key = tuple(columns), tuple(key)
        self._lock = threading.Lock()
        self._curves: dict[tuple[str, ...], list[Row]] = {}
        for line in read_rows(self.path, self._columns):
            self._curves.setdefault(self._name(line), []).append(line)
        for row in folder.rows:
            if self._name(row) not in self._curves:
                raise SystemExit(
                    f"{self.path} has no lines of the run {', '.join(self._name(row))}, whose row "
                    "is in rows.csv; remove that row, or choose another folder with --out."
                )

    def _name(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self._key)

    def put(self, key: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes the lines of a run to disk; whatever there was of it is replaced."""
        with self._lock:
            self._curves[self._name(key)] = [
                {name: str({**line, **key}[name]) for name in self._columns} for line in lines
            ]
            stream = io.StringIO()
            writer = csv.DictWriter(stream, self._columns, lineterminator="\n")
            writer.writeheader()
            for curve in self._curves.values():
                writer.writerows(curve)
            write_whole(self.path, stream.getvalue())

    def of(self, key: Mapping[str, Any]) -> list[Row]:
        """The lines of a run, as text."""
        return self._curves[self._name(key)]

    def mean(self, keys: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
        """The steps and the mean of a column over several runs, as far as all of them went."""
        paths = [self.of(key) for key in keys]
        steps = [int(line["step"]) for line in min(paths, key=len)]
        means = [
            sum(float(line[column]) for line in at) / len(at) for at in zip(*paths, strict=False)
        ]
        return steps, means


MEANS = ("loss", "accuracy")


def thinned(
    curve: Sequence[Mapping[str, float]], points: int, *, first_step: int = 0
) -> list[dict[str, float]]:
    """A run's curve with at most that many points, each the mean of as many steps, and the last.

    Args:
      curve: ``loss`` and ``accuracy`` of every step.
      points: how many, at most.
      first_step: the steps that were made before those of the curve.

    Returns:
      ``step``, the last one of those that the point is the mean of, ``loss`` and ``accuracy``.

    >>> steps = [{"loss": float(step), "accuracy": 0.5} for step in range(5)]
    >>> [(point["step"], point["loss"]) for point in thinned(steps, 3)]
    [(2, 0.5), (4, 2.5), (5, 4.0)]
    """
    length = -(-len(curve) // points)
    found = []
    for start in range(0, len(curve), length or 1):
        part = curve[start : start + length]
        means = {name: sum(step[name] for step in part) / len(part) for name in MEANS}
        found.append({"step": first_step + start + len(part), **means})
    return found


__all__ = ["CurvesFile", "thinned"]
