"""A ledger as a table in CSV or Parquet, as a study of Optuna, or as what is whole of it."""

from __future__ import annotations

import contextlib
import csv
import datetime
import json
import os
import statistics
import tempfile
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nf_resnets import places
from nf_resnets.sweep import schema
from nf_resnets.sweep.ledger import COLUMNS, Ledger, LedgerError, open_ledger
from nf_resnets.sweep.schema import (
    COVERED,
    Damage,
    attempts,
    checksum,
    decoded,
    epochs,
    measurements,
    one_line,
    parse_url,
    programs,
    runs,
    workers,
)  # fmt: skip

if TYPE_CHECKING:
    import optuna

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".db": "optuna", ".sqlite": "optuna"}
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""
STUDY = "nf_resnets"


def export(ledger: Ledger, path: str | Path, format: str | None = None) -> int:
    """Writes a ledger in a format; returns how many runs were written.

    Args:
      ledger: what to write.
      path: a new file that ends in .csv, .parquet, or .db or .sqlite for Optuna; or the URL of a
        storage of Optuna.
      format: "csv", "parquet" or "optuna"; None for what the path's ending says.

    Raises:
      LedgerError: if the format is unknown, or the file exists or cannot be written.
    """
    parse_url(str(path))
    if format is None:
        is_url = "://" in str(path)
        format = "optuna" if is_url else SUFFIXES.get(Path(path).suffix.lower())
    writers: dict[str | None, Callable[[Ledger, str | Path], int]] = {
        "csv": to_csv, "parquet": to_parquet, "optuna": to_optuna
    }  # fmt: skip
    if format not in writers:
        given = str(path) if format is None else f"format {format!r}"
        raise LedgerError(
            f"cannot tell how to export to {given}; expected a file that ends in "
            f"{', '.join(SUFFIXES)}, or the format csv, parquet or optuna"
        )
    return writers[format](ledger, path)


def to_csv(ledger: Ledger, path: str | Path, *, keys: Collection[str] | None = None) -> int:
    """Writes a line for each run, or those of these keys; returns how many.

    In it are the settings in the order of their names, then the results.

    Raises:
      LedgerError: if the file exists or cannot be written.
    """
    rows = ledger.rows(keys)
    columns = [*_fields(rows), *COLUMNS]
    with new_file(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_cell(name, row.get(name)) for name in columns] for row in rows)
    return len(rows)


def to_parquet(ledger: Ledger, path: str | Path, *, keys: Collection[str] | None = None) -> int:
    """As :func:`to_csv`, but with types: numbers as numbers, times as times.

    Raises:
      LedgerError: if pyarrow is not installed, or the file exists or cannot be written.
    """
    try:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise LedgerError("Parquet needs pyarrow: pip install 'nf_resnets[parquet]'") from error
    rows = ledger.rows(keys)
    whole, real, text = pa.int64(), pa.float64(), pa.string()
    types = {
        **dict.fromkeys(("key", "program", "state", "message", "resolved", "measures"), text),
        **dict.fromkeys(("position", "attempts", "steps_done"), whole),
        "finished_at": pa.timestamp("us", tz="UTC"),
    }
    by_kind = {"none": pa.null(), "bool": pa.bool_(), "int": whole, "float": real, "text": text}
    table = {}
    for name in (*_fields(rows), *COLUMNS):
        values = [row.get(name) for row in rows]
        kind = types.get(name, real) if name in COLUMNS else by_kind[_kind(values)]
        if name == "finished_at":
            values = [None if value is None else _time(value) for value in values]
        elif kind == text:
            values = [v if isinstance(v, str) else _cell(name, v) for v in values]
        elif kind == real:
            values = [None if value is None else float(value) for value in values]
        table[name] = pa.array(values, type=kind)
    with new_file(path) as unfinished:
        pyarrow.parquet.write_table(pa.table(table), unfinished, compression="zstd")
    return len(rows)


def to_optuna(
    ledger: Ledger, storage: str | Path, study_name: str = STUDY, *,
    keys: Collection[str] | None = None,
) -> int:  # fmt: skip
    """Writes a study in which every run is a trial, for ``optuna-dashboard sqlite:///FILE``.

    A trial's parameters are the settings that differ between the runs; the others are attributes
    of the study. Its value is the test accuracy, its intermediate values are those of the epochs.
    Runs that diverged, failed or ran out of memory are failed trials; the attribute ``state`` tells
    which.

    Args:
      ledger: what to write.
      storage: a new file, or the URL of a storage of Optuna.
      study_name: a study that is not in the storage yet.
      keys: none but these runs.

    Returns:
      How many runs were written.

    Raises:
      LedgerError: if Optuna is not installed, or the file or the study exists or cannot be written.
    """
    try:
        import optuna
    except ImportError as error:
        raise LedgerError("a study needs Optuna: pip install 'nf_resnets[optuna]'") from error
    rows = ledger.rows(keys)
    swept = _swept(rows)
    fixed = {name: rows[0].get(name) for name in _fields(rows) if name not in swept}
    study = study_name, _trials(ledger, rows, swept), {"ledger": ledger.name, "settings": fixed}
    verbosity = optuna.logging.get_verbosity()
    # It announces the study that it makes, and failed connections with their URL.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if "://" in str(storage):
            _write_study(str(storage), *study)
        else:
            with new_file(storage) as unfinished:
                _write_study(f"sqlite:///{unfinished}", *study)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return len(rows)


def _fields(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings of any run."""
    return sorted({name for row in rows for name in row} - set(COLUMNS))


def _swept(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings that have more than one value."""
    values = {
        name: {json.dumps(r.get(name), sort_keys=True) for r in rows} for name in _fields(rows)
    }
    return [name for name, found in values.items() if len(found) > 1]


def _kind(values: Sequence[Any]) -> str:
    """What all values are that are not None: bool, int, float or text; none if there are none."""
    kinds = {type(value) for value in values if value is not None}
    for name, kind in (("none", set()), ("bool", {bool}), ("int", {int})):
        if kinds == kind:
            return name
    return "float" if kinds <= {int, float} else "text"


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)


def _cell(name: str, value: Any) -> Any:
    """A value as text, of which numbers keep all their digits; None is an empty cell."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULAS) else value
    if value is None:
        return None
    if name == "finished_at":
        return _time(value).isoformat(timespec="milliseconds")
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    """The distribution that a parameter with these values comes from."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    kind = _kind(values)
    if None in values or kind not in ("int", "float"):
        # The first run's value first, and so on; True is not 1 here.
        choices = {(type(value), value): value for value in values}
        return CategoricalDistribution(list(choices.values()))
    low, high = min(values), max(values)
    middle = statistics.median(sorted(set(values)))
    # Powers of two have their middle at the geometric mean, 0, 1, 2, ... at the arithmetic one.
    log = low > 0 and middle - (low * high) ** 0.5 < (low + high) / 2 - middle
    return (IntDistribution if kind == "int" else FloatDistribution)(low, high, log=log)


def _trials(
    ledger: Ledger, rows: Sequence[Mapping[str, Any]], swept: Sequence[str]
) -> list[optuna.trial.FrozenTrial]:
    """A trial for each run."""
    from optuna.trial import TrialState, create_trial

    states = {"waiting": TrialState.WAITING, "running": TrialState.RUNNING}
    distributions = {name: _distribution([row.get(name) for row in rows]) for name in swept}
    accuracies: dict[str, dict[int, float]] = {}
    for epoch in ledger.epochs():
        if epoch["test_accuracy"] is not None:
            accuracies.setdefault(epoch["key"], {})[epoch["epoch"]] = epoch["test_accuracy"]
    started = {attempt["key"]: attempt["started_at"] for attempt in ledger.attempts()}
    names = [name for name in COLUMNS if name not in ("finished_at", "position", "test_accuracy")]
    trials = []
    for row in rows:
        value = row["test_accuracy"] if row["state"] == "finished" else None
        ended = TrialState.FAIL if value is None else TrialState.COMPLETE
        trial = create_trial(
            state=states.get(row["state"], ended),
            value=value,
            params={name: row.get(name) for name in swept},
            distributions=distributions,
            user_attrs={name: row[name] for name in names if row[name] is not None},
            intermediate_values=accuracies.get(row["key"], {}),
        )
        # Optuna's times are local ones, and those of the export unless they are set.
        start = started.get(row["key"]) if row["state"] != "waiting" else None
        trial.datetime_start = start and datetime.datetime.fromtimestamp(start)
        if trial.state.is_finished():
            trial.datetime_complete = datetime.datetime.fromtimestamp(row["finished_at"])
        trials.append(trial)
    return trials


def _write_study(
    url: str, study_name: str, trials: Sequence[optuna.trial.FrozenTrial], facts: Mapping[str, Any]
) -> None:
    """Makes the study with all its trials, or leaves nothing of it."""
    import optuna

    where, _, rest = url.partition("://")
    if where in ("postgresql", "postgres"):
        url = f"postgresql+psycopg://{rest}"
    parse_url(url)
    try:
        storage = optuna.storages.RDBStorage(url)
        try:
            named: dict[str, Any] = {"storage": storage, "study_name": study_name}
            study = optuna.create_study(**named, direction="maximize")
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it is called experimental
                    study.set_metric_names(["test_accuracy"])
                for name, fact in facts.items():
                    study.set_user_attr(name, fact)
                study.add_trials(trials)
            except BaseException:
                optuna.delete_study(**named)
                raise
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except optuna.exceptions.DuplicatedStudyError:
        raise LedgerError(
            f"the storage has a study {study_name!r} already, which is not overwritten"
        ) from None
    except (ImportError, sa.exc.SQLAlchemyError, optuna.exceptions.OptunaError) as error:
        # The cause is not shown, which says the URL as it is.
        raise LedgerError(f"the study cannot be written: {one_line(error)}") from None


# Salvage


@contextlib.contextmanager
def new_file(path: str | Path) -> Iterator[Path]:
    """A file beside `path`, which takes its name when it is whole and does not replace another.

    Raises:
      LedgerError: there is something under the name already, or it cannot be written.
    """
    path = places.expanded(path)
    exists = f"{path} exists, and is not overwritten"
    if path.exists():
        raise LedgerError(exists)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            unfinished = Path(folder) / path.name
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            if path.exists():
                raise LedgerError(exists)
            unfinished.rename(path)
    except OSError as error:
        raise LedgerError(f"{path} cannot be written: {error.strerror or error}") from error


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
        raise LedgerError(f"there is no ledger in {name}")
    if schema.locate(path)[0].get_backend_name() != "sqlite":
        raise LedgerError("the whole ledger is a new file; expected a path, not a URL")
    engine = schema.open_engine(url, name, patience=30.0)
    left: list[str] = []
    try:
        with new_file(path) as unfinished, open_ledger(unfinished) as new:
            with engine.connect() as old:
                copied = new._write(lambda connection: _copy(old, connection, left))
            new.close()  # SQLite leaves no log beside a file that nobody has open
    except sa.exc.SQLAlchemyError as error:
        raise LedgerError(
            f"the ledger {name} failed: {schema.one_line(error, advice='')}"
        ) from error
    finally:
        engine.dispose()
    return copied, left


def _copy(old: sa.Connection, new: sa.Connection, left: list[str]) -> int:
    """Copies what is whole, and notes in `left` what is not; returns the number of runs."""
    keys: dict[int, str] = {}
    there: dict[sa.Table, set[str]] = {programs: set(), workers: set()}
    for table in (programs, workers, measurements, runs, epochs, attempts):
        for row in _salvaged(old, table, left):
            try:
                if "run" in row:
                    row["key"] = keys.get(row["run"])
                    if row["key"] is None or row.get("worker") not in {*there[workers], None}:
                        raise Damage(f"a row of {table.name}: its run or its worker is not there")
                decoded(table, row)
            except Damage as damage:
                left.append(str(damage))
                continue
            if table is runs:
                if row["program"] not in there[programs]:
                    new.execute(sa.insert(programs), {"name": row["program"]})
                    there[programs].add(row["program"])
                waits = row["state"] in ("waiting", "running")
                row |= {"state": "waiting" if waits else row["state"]}
                row |= {"worker": None, "lease_until": None}
                keys[row["id"]] = row["key"]
            elif table in there:
                there[table].add(next(iter(row.values())))
            if table.name in COVERED:
                row["checksum"] = checksum(table, row)
            new.execute(sa.insert(table), {c.key: row[c.key] for c in table.c})
    return len(keys)


def _salvaged(old: sa.Connection, table: sa.Table, left: list[str]) -> Iterator[dict[str, Any]]:
    """The rows of a table, from both its ends where one cannot be read in the middle."""
    there = {column["name"] for column in sa.inspect(old).get_columns(table.name)}
    columns = [column for column in table.c if column.name in there]
    first = list(table.primary_key.columns)
    seen: set[tuple[Any, ...]] = set()
    for order in (first, [column.desc() for column in first]):
        try:
            for values in old.execute(sa.select(*columns).order_by(*order)):
                row = dict(zip((column.key for column in columns), values, strict=True))
                key = tuple(row[column.key] for column in first)
                if key not in seen:
                    seen.add(key)
                    yield {"measures": None, **row} if "measures" in table.c else row
            return
        except sa.exc.DBAPIError as error:
            fault = f"rows of {table.name} that cannot be read: {schema.one_line(error, advice='')}"
            if fault not in left:
                left.append(fault)


__all__ = ["export", "new_file", "salvage", "to_csv", "to_optuna", "to_parquet"]
