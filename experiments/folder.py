"""A results folder: settings, one row for each finished run, and whoever is writing them.

Rows are written whole, through a second file and a rename, as soon as a run is finished, so that a
run that is cut off at any moment leaves a folder that the next start goes on from.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import fcntl
import importlib.metadata
import io
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nf_resnets import places
from nf_resnets.plotting.whole import whole_file

Row = dict[str, Any]


class ResultsFolder:
    """The rows and settings of one experiment, held by one process at a time.

    Args:
      path: the folder; made if it is not there.
      settings: all that the rows depend on, as JSON values. A folder of other settings is refused.
      grid: names of those settings that only say which rows there are to be; they may change.
      columns: the columns of ``rows.csv``, in order.
      key: the columns that name a row.

    Attributes:
      path: the folder, ``~`` expanded.
      rows: those that are there, as text.
      faults: what could not be made of the rows, a sentence for each file.

    Raises:
      SystemExit: if another process is writing there, the settings differ, or a file cannot be
        read; with one sentence that says which and what to do.
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
        self._columns = tuple(columns)
        self._key = tuple(key)
        try:
            self.path = path = places.try_folder(path, "--out")
            self._lock = open(path / ".lock", "w")  # noqa: SIM115 (held until the process ends)
        except (places.PlaceError, OSError) as error:
            raise SystemExit(str(error)) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(
                f"another process is writing to {path}; wait for it, or choose another folder with "
                "--out."
            ) from None
        try:
            self._check_settings(json.loads(json.dumps(dict(settings))), grid)
            self.rows = read_rows(path / "rows.csv", self._columns)
        except OSError as error:
            raise SystemExit(f"cannot use the results folder {path}: {error}.") from None

    def _check_settings(self, settings: dict[str, Any], grid: Sequence[str]) -> None:
        file = self.path / "settings.json"
        if file.exists():
            try:
                old = json.loads(places.read_file(file))
                old_settings = dict(old["settings"])
                earlier = [old.get("machine"), *list(old.get("later_machines", []))]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise SystemExit(
                    f"{file} cannot be read ({error}); expected the settings of these rows. "
                    "Move it away, or choose another folder with --out."
                ) from None
            changed = [
                f"{name}: {old_settings.get(name)!r} there, {settings.get(name)!r} now"
                for name in sorted({*old_settings, *settings})
                if name not in grid and old_settings.get(name) != settings.get(name)
            ]
            if changed:
                raise SystemExit(
                    f"{self.path} holds results of other settings ({'; '.join(changed)}); choose "
                    "another folder with --out."
                )
        elif (self.path / "rows.csv").exists():
            raise SystemExit(
                f"{self.path} has rows.csv but no settings.json to say what they are; choose "
                "another folder with --out."
            )
        record: dict[str, Any] = {"settings": settings, "machine": machine()}
        if file.exists():
            # The rows there were made by earlier starts: theirs is kept beside this one's.
            later = [*earlier[1:], *([] if record["machine"] in earlier else [record["machine"]])]
            record |= {"machine": earlier[0]} | ({"later_machines": later} if later else {})
        write_whole(file, json.dumps(record, indent=2) + "\n")

    def has(self, **key: Any) -> bool:
        """Whether the row of that key is there."""
        wanted = tuple(str(key[name]) for name in self._key)
        return any(tuple(str(row[name]) for name in self._key) == wanted for row in self.rows)

    def add(self, row: Row) -> None:
        """Adds a row and writes all of them to disk (see :meth:`keep`).

        Raises:
          ValueError: if the row has other columns, or one of that key is there already.
        """
        if set(row) != set(self._columns):
            raise ValueError(
                f"row has the columns {sorted(row)}; expected {sorted(self._columns)}."
            )
        if self.has(**row):
            raise ValueError(f"the row {[row[name] for name in self._key]} is there already.")
        self.rows.append({name: str(row[name]) for name in self._columns})
        lines = [self._columns, *([row[name] for name in self._columns] for row in self.rows)]
        self.keep("rows.csv", "".join(_csv_line(line) for line in lines))

    def keep(self, name: str, text: str) -> None:
        """Writes a file of results, whole; one that cannot be written waits in memory until it can.

        Args:
          name: of the file.
          text: all of it, with what was there before.
        """
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
        """Writes a file that can be made again from the rows."""
        self.draw(name, lambda new: new.write_text(text))

    def draw(self, name: str, make: Callable[[Path], Any]) -> None:
        """Makes a figure or another file that can be made again from the rows.

        The rows are there; what keeps the file from being made is added to ``faults``, and the
        others can be made all the same.

        Args:
          name: of the file.
          make: writes it to a path that it is given.
        """
        try:
            with whole_file(self.path / name) as new:
                make(new)
        except Exception as error:
            what = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
            text = " ".join(what.split()).removesuffix(".")
            self.faults.append(f"{self.path / name} cannot be made: {text}.")


def read_rows(file: Path, columns: Sequence[str]) -> list[Row]:
    """Reads the rows of a folder, as text; none if the file is not there.

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


def _csv_line(values: Sequence[Any]) -> str:
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerow(values)
    return stream.getvalue()


def write_whole(file: Path, text: str) -> None:
    """Writes a file so that, whenever the process is cut off, the old or the new one is there."""
    with whole_file(file) as new, open(new, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def machine() -> dict[str, Any]:
    """When, on what and with which versions the results are being made."""
    packages = ("nf_resnets", "jax", "jaxlib", "flax", "optax", "numpy")
    versions = {}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    devices = jax.devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }
