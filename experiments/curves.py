"""The curves of the runs of a results folder: thinned, kept in ``curves.csv``, and their mean."""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.folder import ResultsFolder, Row, read_rows


class CurvesFile:
    """A file such as ``curves.csv`` of a folder: written whole, a run's lines before its row.

    A run that is cut off between the two is made again, and its lines are replaced.

    Args:
      folder: the folder, held by this process.
      columns: the columns of the file, in order.
      key: those that name a run; they are columns of the folder's rows, too.
      name: of the file.

    Raises:
      SystemExit: if the file has other columns, or lacks the lines of a row that is there.
    """

    def __init__(
        self,
        folder: ResultsFolder,
        *,
        columns: Sequence[str],
        key: Sequence[str],
        name: str = "curves.csv",
    ):
        self._folder = folder
        self.path = folder.path / name
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
            self._folder.keep(self.path.name, stream.getvalue())

    def of(self, key: Mapping[str, Any]) -> list[Row]:
        """The lines of a run, as text."""
        return self._curves[self._name(key)]

    def found(self, key: Mapping[str, Any]) -> list[Row]:
        """The lines of a run, or none, also of one that was cut off before its row was written."""
        return self._curves.get(self._name(key), [])

    def mean(self, keys: Sequence[Mapping[str, Any]], column: str) -> tuple[list[int], list[float]]:
        """The steps that all of several runs have, and there the mean of a column."""
        runs = [{int(line["step"]): float(line[column]) for line in self.of(key)} for key in keys]
        steps = sorted(set.intersection(*map(set, runs)))
        return steps, [sum(run[step] for run in runs) / len(runs) for step in steps]


class GrowingCurve:
    """The curve of a run on its way, joined to what an earlier start of the same run has kept.

    Args:
      file: where it is kept; what there is of the run is read, and replaced by :meth:`keep`.
      key: the columns that name the run.
      points: of the part that this process makes, at most.
    """

    def __init__(self, file: CurvesFile, key: Mapping[str, Any], points: int):
        self._file, self._key, self._points = file, key, points
        self._earlier = file.found(key)
        self._made: list[Mapping[str, float]] = []
        self._step = 0

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes what a step gave; ``step`` counts from 1, and from a resumed run's first on."""
        self._step = step
        self._made.append(metrics)

    def keep(self) -> None:
        """Writes the curve up to the latest step."""
        first_step = self._step - len(self._made)
        earlier = [line for line in self._earlier if int(line["step"]) <= first_step]
        made = thinned(self._made, self._points, first_step=first_step)
        self._file.put(self._key, [*earlier, *made])


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


__all__ = ["CurvesFile", "GrowingCurve", "thinned"]
