"""Whether a ledger's rows say what was written: keys, checksums, types, readable JSON."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from nf_resnets.sweep.schema import (
    STATES,
    attempts,
    epoch_checksum,
    epochs,
    run_checksum,
    runs,
    workers,
)

__all__ = [
    "Damage",
    "check_attempt",
    "check_epoch",
    "check_run",
    "check_types",
    "read_json",
]

# Seconds since 1970 that a date can say in every time zone: the years up to 9999.
LAST = 253_402_128_000


class Damage(Exception):
    """What is wrong with a row, as the end of a sentence."""


def check_run(row: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, if the row says what was written.

    Raises:
      Damage: otherwise.
    """
    check_types(runs, row)
    text = row["settings"].encode("utf-8", "surrogateescape")
    if hashlib.sha256(text).hexdigest() != row["key"]:
        raise Damage("the SHA-256 of its settings is not its key")
    if run_checksum(row) != row["checksum"]:
        raise Damage("its columns do not have its checksum")
    if row["state"] not in STATES:
        raise Damage(f"its state is {row['state']!r}")
    if row["state"] not in ("waiting", "running") and row["finished_at"] is None:
        raise Damage(f"it is {row['state']}, and nothing says since when")
    settings = read_json("settings", row["settings"])
    for name, value in settings.items():
        if not isinstance(value, str | int | float | None):
            raise Damage(f"its setting {name!r} is no number and no text")
    read_json("resolved", row["resolved"])
    read_json("measures", row["measures"] or "{}")
    return settings


def check_epoch(row: Mapping[str, Any]) -> None:
    """Looks whether an epoch's row, with the key of its run, says what was written.

    Raises:
      Damage: otherwise.
    """
    check_types(epochs, row)
    if epoch_checksum(row["key"], row) != row["checksum"]:
        raise Damage(f"the columns of its epoch {row['epoch']!r} do not have their checksum")
    read_json(f"measures of epoch {row['epoch']}", row["measures"] or "{}")


def check_attempt(row: Mapping[str, Any]) -> None:
    """Looks whether an attempt's row, with its worker's, can be read.

    Raises:
      Damage: otherwise.
    """
    for table in (attempts, workers):
        check_types(table, row)
    if (row["outcome"] is None) != (row["ended_at"] is None):
        raise Damage(f"its attempt {row['attempt']} has half an end")
    read_json("versions", row["versions"])


def check_types(table: sa.Table, row: Mapping[str, Any]) -> None:
    """Looks whether each value is one that the table's column was made for.

    Raises:
      Damage: otherwise.
    """
    for column in table.c:
        if column.key not in row:
            continue
        value, kind = row[column.key], column.type.python_type
        if value is None:
            fits = bool(column.nullable)
        elif kind is float:
            fits = isinstance(value, int | float) and math.isfinite(value)
            fits = fits and (0 <= value < LAST or not column.name.endswith("_at"))
        else:
            fits = isinstance(value, kind)
        if not fits:
            raise Damage(f"its {column.name} is no {kind.__name__} that was written")


def read_json(name: str, text: str) -> dict[str, Any]:
    """A JSON object.

    Raises:
      Damage: the text is none.
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Damage(f"its {name} are no JSON object")
    return found
