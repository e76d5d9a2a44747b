"""A results folder: settings, one row for each finished run, and whoever is writing them.

Rows are written whole, through a second file and a rename, as soon as a run is finished, so that a
run that is cut off at any moment leaves a folder that the next start goes on from.
"""

from __future__ import annotations

import csv
import datetime
import fcntl
import importlib.metadata
import io
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nf_resnets import places

Row = dict[str, Any]


class ResultsFolder:
    """The rows and settings of one experiment, held by one process at a time.

    Args:
      path: the folder; made if it is not there.
      settings: all that the rows depend on, as JSON values. A folder of other settings is refused.
      grid: names of those settings that only say which rows there are to be; they may change.
      columns: the columns of ``rows.csv``, in order.
      key: the columns that name a row.

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
                old = json.loads(file.read_text())
                old_settings = dict(old["settings"])
            except (ValueError, KeyError, TypeError) as error:
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
            earlier = [old.get("machine"), *old.get("later_machines", [])]
            later = [*earlier[1:], *([] if record["machine"] in earlier else [record["machine"]])]
            record |= {"machine": earlier[0]} | ({"later_machines": later} if later else {})
        write_whole(file, json.dumps(record, indent=2) + "\n")

    def has(self, **key: Any) -> bool:
        """Whether the row of that key is there."""
        wanted = tuple(str(key[name]) for name in self._key)
        return any(tuple(str(row[name]) for name in self._key) == wanted for row in self.rows)

    def add(self, row: Row) -> None:
        """Adds a row and writes all of them to disk.

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
        write_whole(self.path / "rows.csv", "".join(_csv_line(line) for line in lines))

    def write_text(self, name: str, text: str) -> None:
        """Writes a file that can be made again from the rows."""
        write_whole(self.path / name, text)


def read_rows(file: Path, columns: Sequence[str]) -> list[Row]:
    """Reads the rows of a folder, as text; none if the file is not there.

    Raises:
      SystemExit: if the file has other columns, or a line has another number of values.
    """
    if not file.exists():
        return []
    with open(file, newline="") as stream:
        reader = csv.DictReader(stream)
        if tuple(reader.fieldnames or ()) != tuple(columns):
            raise SystemExit(
                f"{file} has the columns {', '.join(reader.fieldnames or ())}; expected "
                f"{', '.join(columns)}. Choose another folder with --out."
            )
        rows = list(reader)
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
    temporary = file.with_name(file.name + ".new")
    with open(temporary, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, file)


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
