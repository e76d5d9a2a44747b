"""A ledger as a table in CSV or Parquet, or as a study of Optuna."""

from __future__ import annotations

import csv
import datetime
import json
import statistics
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from nf_resnets.sweep.ledger import COLUMNS, Ledger, LedgerError, new_file
from nf_resnets.sweep.schema import one_line, parse_url

if TYPE_CHECKING:
    import optuna

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".db": "optuna", ".sqlite": "optuna"}
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet takes a cell that begins so for a formula."""
STUDY = "nf_resnets"


def export(ledger: Ledger, path: str | Path, format: str | None = None) -> int:
    """Writes a ledger in the format that the path's ending says.

    Args:
      ledger: what to write.
      path: a new file that ends in .csv, .parquet, or .db or .sqlite for Optuna; or the URL of a
        storage of Optuna.
      format: "csv", "parquet" or "optuna", whatever the ending.

    Returns:
      How many runs were written.

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
    """Writes one line for each run: the settings in the order of their names, then the results.

    Args:
      ledger: what to write.
      path: a new file.
      keys: none but these runs.

    Returns:
      How many runs were written.

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
    ledger: Ledger,
    storage: str | Path,
    study_name: str = STUDY,
    *,
    keys: Collection[str] | None = None,
) -> int:
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
    url: str,
    study_name: str,
    trials: Sequence[optuna.trial.FrozenTrial],
    facts: Mapping[str, Any],
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
            study = optuna.create_study(
                storage=storage, study_name=study_name, direction="maximize"
            )
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # it is called experimental
                    study.set_metric_names(["test_accuracy"])
                for name, fact in facts.items():
                    study.set_user_attr(name, fact)
                study.add_trials(trials)
            except BaseException:
                optuna.delete_study(study_name=study_name, storage=storage)
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


__all__ = ["export", "to_csv", "to_optuna", "to_parquet"]
