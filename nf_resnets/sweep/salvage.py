"""Out of a damaged ledger all that is whole, into a new one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from nf_resnets.sweep import schema
from nf_resnets.sweep.export import new_file
from nf_resnets.sweep.integrity import Damage, check_attempt, check_epoch, check_run, check_types
from nf_resnets.sweep.ledger import open_ledger
from nf_resnets.sweep.schema import LedgerError, epoch_checksum, run_checksum

__all__ = ["salvage"]


def salvage(where: str | Path, path: str | Path) -> tuple[int, list[str]]:
    """Copies the runs that are as they were written, with their epochs and attempts.

    Args:
      where: the damaged ledger, as for `open_ledger`; it is only read.
      path: a file that is not there yet.

    Returns:
      How many runs were copied, and a line for everything that was left out.

    Raises:
      LedgerError: there is no ledger, its tables cannot be read at all, or the file exists.
    """
    url, name = schema.locate(where)
    if url.get_backend_name() == "sqlite" and not Path(name).is_file():
        raise LedgerError(f"there is no ledger {name}")
    engine = schema.open_engine(url, name, patience=30.0)
    left: list[str] = []
    try:
        with new_file(path) as unfinished, open_ledger(unfinished) as new:
            with engine.connect() as connection:
                copied = new._write(lambda into: _copy(connection, into, left))
            new.close()  # SQLite leaves no log beside a file that nobody has open
    except sa.exc.SQLAlchemyError as error:
        raise LedgerError(f"the ledger {name} failed: {schema.one_line(error)}") from error
    finally:
        engine.dispose()
    return copied, left


def _copy(old: sa.Connection, new: sa.Connection, left: list[str]) -> int:
    """Copies what is whole in one transaction, and notes in `left` what is not."""
    copied = 0
    for table in (schema.programs, schema.workers, schema.measurements):
        for row in _read(old, table, left):
            try:
                check_types(table, row)
            except Damage as damage:
                left.append(f"a row of {table.name}: {damage}")
            else:
                new.execute(sa.insert(table), row)
    workers = {row.id: row._asdict() for row in new.execute(sa.select(schema.workers))}
    programs = set(new.scalars(sa.select(schema.programs.c.name)))
    keys: dict[int, str] = {}
    for row in _read(old, schema.runs, left):
        row.setdefault("checksum", run_checksum(row))  # version 1 has none
        try:
            check_run(row)
        except Damage as damage:
            left.append(f"the run {row['key']} (row {row['id']}): {damage}")
            continue
        if row["program"] not in programs:
            new.execute(sa.insert(schema.programs), {"name": row["program"]})
            programs.add(row["program"])
        if row["state"] == "running":
            row["state"] = "waiting"
        row |= {"worker": None, "lease_until": None, "checksum": run_checksum(row)}
        new.execute(sa.insert(schema.runs), row)
        keys[row["id"]] = row["key"]
        copied += 1
    for row in _read(old, schema.epochs, left):
        key = keys.get(row["run"])
        try:
            if key is None:
                raise Damage("its run is not there")
            row.setdefault("checksum", epoch_checksum(key, row))
            check_epoch({**row, "key": key})
        except Damage as damage:
            left.append(f"an epoch of the run {key or row['run']}: {damage}")
        else:
            new.execute(sa.insert(schema.epochs), row)
    for row in _read(old, schema.attempts, left):
        key = keys.get(row["run"])
        try:
            if key is None or row["worker"] not in workers:
                raise Damage("its run or its worker is not there")
            check_attempt({**workers[row["worker"]], **row})
        except Damage as damage:
            left.append(f"an attempt of the run {key or row['run']}: {damage}")
        else:
            new.execute(sa.insert(schema.attempts), row)
    return copied


def _read(old: sa.Connection, table: sa.Table, left: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table, from both its ends where one cannot be read in the middle."""
    there = {column["name"] for column in sa.inspect(old).get_columns(table.name)}
    columns = [column for column in table.c if column.name in there]
    first = list(table.primary_key.columns)
    seen: set[tuple[Any, ...]] = set()
    for order in (first, [column.desc() for column in first]):
        try:
            for row in old.execute(sa.select(*columns).order_by(*order)):
                values = {"measures": None} if "measures" in table.c else {}
                values |= dict(zip((column.key for column in columns), row, strict=True))
                key = tuple(values[column.key] for column in first)
                if key not in seen:
                    seen.add(key)
                    yield values
            return
        except sa.exc.DBAPIError as error:
            said = f"rows of {table.name} that cannot be read: {schema.one_line(error)}"
            if said not in left:
                left.append(said)
