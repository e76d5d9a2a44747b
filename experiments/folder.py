"""A results folder: its settings, a row for each run that has ended, the curves of the runs.

Files are written whole, through a second file and a rename, so that a process killed at any moment
leaves a folder from which the next start continues.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from nf_resnets import places
from nf_resnets.plotting.whole import whole_file

from .machine import machine

Row = dict[str, Any]


class ResultsFolder:
    """The rows and settings of one experiment, written by one process.

    Args:
      path: the folder; made if it is not there.
      settings: all that the rows depend on. A folder of other settings is refused.
      grid: names of those settings that only say which rows there are to be; they may change.
      columns: of ``rows.csv``, in order.
      key: the columns that name a row.

    Attributes:
      path: the folder, ``~`` expanded.
      rows: those that are there, as text.
      faults: what could not be made of the rows, a sentence for each file.

    Raises:
      SystemExit: if the settings differ, or a file cannot be read; the sentence says what to do.
    """

    def __init__(
        self,
        path: Path,
        settings: Mapping[str, Any],
        *,
        grid: Sequence[str],
        columns: Sequence[str],
        key: Sequence[str],
    ) -> None:
        self.faults: list[str] = []
        self._waiting: dict[str, str] = {}
        self._columns, self.key = tuple(columns), tuple(key)
        try:
            self.path = path = places.try_folder(path, "--out")
        except (places.PlaceError, OSError) as error:
            raise SystemExit(str(error)) from None
        try:
            self._check_settings(json.loads(json.dumps(dict(settings))), grid)
            self.rows = read_rows(path / "rows.csv", self._columns)
        except OSError as error:
            self._refuse(f"cannot use the results folder {path}: {error}; choose another")

    def _refuse(self, sentence: str) -> NoReturn:
        raise SystemExit(f"{sentence} folder with --out.") from None

    def _check_settings(self, settings: dict[str, Any], grid: Sequence[str]) -> None:
        file, now = self.path / "settings.json", machine()
        record: dict[str, Any] = {"settings": settings, "machine": now}
        if file.exists():
            try:
                old = json.loads(places.read_file(file))
                there = dict(old["settings"])
                machines = [old.get("machine"), *list(old.get("later_machines", []))]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise SystemExit(
                    f"{file} cannot be read ({error}); expected the settings of these rows. "
                    "Move it away, or choose another folder with --out."
                ) from None
            changed = [
                f"{name}: {there.get(name)!r} there, {settings.get(name)!r} now"
                for name in sorted({*there, *settings} - set(grid))
                if there.get(name) != settings.get(name)
            ]
            if changed:
                self._refuse(
                    f"{self.path} holds results of other settings ({'; '.join(changed)}); choose "
                    "another"
                )
            # The rows there were made by earlier starts, whose machines stay named.
            first, *later = machines if now in machines else [*machines, now]
            record |= {"machine": first} | ({"later_machines": later} if later else {})
        else:
            for name in ("rows.csv", "table.txt", "figure.png"):
                if (self.path / name).exists():
                    self._refuse(
                        f"{self.path} has {name} but no settings.json to say what it is; choose "
                        "another"
                    )
        write_whole(file, json.dumps(record, indent=2) + "\n")

    def has(self, **key: Any) -> bool:
        """Whether a row with these values is there, of some or all of its columns."""
        wanted = {name: str(value) for name, value in key.items()}
        return any(wanted.items() <= row.items() for row in self.rows)

    def add(self, *rows: Row) -> None:
        """Adds rows and writes all of them to disk (see :meth:`keep`).

        Raises:
          ValueError: if a row has other columns, or one of its key is there already.
        """
        for row in rows:
            if set(row) != set(self._columns):
                raise ValueError(
                    f"row has the columns {sorted(row)}; expected {sorted(self._columns)}."
                )
            if self.has(**{name: row[name] for name in self.key}):
                raise ValueError(f"the row {[row[name] for name in self.key]} is there already.")
            self.rows.append({name: str(row[name]) for name in self._columns})
        self.keep("rows.csv", csv_text(self._columns, self.rows))

    def keep(self, name: str, text: str) -> None:
        """Writes all of a file of results; what cannot be written waits in memory until it can."""
        try:
            write_whole(self.path / name, text)
        except OSError as error:
            if name not in self._waiting:
                print(
                    f"{self.path / name} cannot be written: {error.strerror or error}; it is tried "
                    "again after the next run.",
                    file=sys.stderr,
                )
            self._waiting[name] = text
        else:
            self._waiting.pop(name, None)

    def settle(self) -> None:
        """Writes what could not be written; what cannot even now, into the temporary folder."""
        for name, text in list(self._waiting.items()):
            self.keep(name, text)
            if name in self._waiting:
                where = "in memory only, and lost"
                with contextlib.suppress(OSError):
                    place = Path(tempfile.mkdtemp(prefix="nf_resnets-"), name)
                    write_whole(place, text)
                    where = f"kept as {place}"
                self.faults.append(f"{self.path / name} cannot be written; it is {where}.")

    def write_text(self, name: str, text: str) -> None:
        """Writes a file that can be made again from the rows; a fault is added to ``faults``."""
        self.draw(name, lambda new: new.write_text(text))

    def draw(self, name: str, make: Callable[[Path], Any]) -> None:
        """As :meth:`write_text`, but ``make(path)`` writes the file."""
        try:
            with whole_file(self.path / name) as new:
                make(new)
        except Exception as error:
            what = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            text = " ".join(what.split()).removesuffix(".")
            self.faults.append(f"{self.path / name} cannot be made: {text}.")


class CurvesFile:
    """A file of a results folder with several lines of each run, such as ``curves.csv``.

    Args:
      folder: held by this process.
      columns: of the file, in order; the key among them names a run.
      key: columns of the folder's rows, too.
      name: of the file.

    Raises:
      SystemExit: if the file has other columns.
    """

    def __init__(
        self,
        folder: ResultsFolder,
        *,
        columns: Sequence[str],
        key: Sequence[str],
        name: str = "curves.csv",
    ) -> None:
        self._folder = folder
        self.path = folder.path / name
        self._columns, self.key = tuple(columns), tuple(key)
        self._lock = threading.Lock()
        self._curves: dict[tuple[str, ...], list[Row]] = {}
        for line in read_rows(self.path, self._columns):
            self._curves.setdefault(self._name(line), []).append(line)

    def _name(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self.key)

    def check(self) -> None:
        """Refuses a folder with a row whose run has no lines.

        Raises:
          SystemExit: with one sentence that names the run.
        """
        for row in self._folder.rows:
            if self._name(row) not in self._curves:
                raise SystemExit(
                    f"{self.path} has no lines of the run {', '.join(self._name(row))}, whose row "
                    "is in rows.csv; remove that row, or choose another folder with --out."
                )

    def put(self, key: Mapping[str, Any], lines: Sequence[Mapping[str, Any]]) -> None:
        """Writes the lines of a run to disk; whatever there was of it is replaced."""
        with self._lock:
            self._curves[self._name(key)] = [
                {name: str({**line, **key}[name]) for name in self._columns} for line in lines
            ]
            lines = [line for curve in self._curves.values() for line in curve]
            self._folder.keep(self.path.name, csv_text(self._columns, lines))

    def of(self, key: Mapping[str, Any]) -> list[Row]:
        """The lines of a run, as text; none if there are none."""
        return self._curves.get(self._name(key), [])

    def values(
        self, keys: Sequence[Mapping[str, Any]], column: str
    ) -> tuple[list[int], list[list[float]]]:
        """The steps that all of several runs have, and there a column's value in each run."""
        runs = [{int(line["step"]): float(line[column]) for line in self.of(key)} for key in keys]
        steps = sorted(set.intersection(*map(set, runs)))
        return steps, [[run[step] for run in runs] for step in steps]


def read_rows(file: Path, columns: Sequence[str]) -> list[Row]:
    """Reads the rows of a file, as text; none if the file is not there.

    Raises:
      SystemExit: if the file has other columns, or a line has another number of values.
    """
    if not file.exists():
        return []
    try:
        text = places.read_file(file).decode()
        reader = csv.DictReader(io.StringIO(text, newline=""))
        if tuple(reader.fieldnames or ()) != tuple(columns):
            raise SystemExit(
                f"{file} has the columns {', '.join(reader.fieldnames or ())}; expected "
                f"{', '.join(columns)}. Choose another folder with --out."
            )
        rows = list(reader)
    except (ValueError, csv.Error) as error:
        raise SystemExit(
            f"{file} cannot be read ({error}). Move it away, or choose another folder with --out."
        ) from None
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise SystemExit(
                f"{file}, line {number}: expected {len(columns)} values. Remove the line, or "
                "choose another folder with --out."
            )
    return rows


def csv_text(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as the text of a file, their columns on its first line."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def write_whole(file: Path, text: str) -> None:
    """Writes a file so that, whenever the process is cut off, the old or the new one is there."""
    with whole_file(file) as new, open(new, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


__all__ = ["CurvesFile", "ResultsFolder", "Row", "csv_text", "read_rows", "write_whole"]
