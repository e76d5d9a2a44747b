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

__all__ = ["export", "to_csv", "to_optuna", "to_parquet"]

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".db": "optuna", ".sqlite": "optuna"}
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
STUDY = "nf_resnets"
# Of Optuna's tables since its version 3.2: those that `_insert` knows.
OPTUNA_TABLES = "v3.2.0.a"


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
      LedgerError: the format is unknown, or the file exists or cannot be written.
    """
    parse_url(str(path))
    if format is None:
        is_url = "://" in str(path)
        format = "optuna" if is_url else SUFFIXES.get(Path(path).suffix.lower())
    writers: dict[str | None, Callable[[Ledger, str | Path], int]] = {
        "csv": to_csv,
        "parquet": to_parquet,
        "optuna": to_optuna,
    }
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
      path: a file that is not there yet.
      keys: none but these runs.

    Returns:
      How many runs were written.

    Raises:
      LedgerError: the file exists or cannot be written.
    """
    rows = ledger.rows(keys)
    columns = [*_fields(rows), *COLUMNS]
    with new_file(path) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            writer.writerow([_cell(name, row.get(name)) for name in columns])
    return len(rows)


def to_parquet(ledger: Ledger, path: str | Path, *, keys: Collection[str] | None = None) -> int:
    """Writes the table of `to_csv` with types: numbers as numbers, times as times.

    Args:
      ledger: what to write.
      path: a file that is not there yet.
      keys: none but these runs.

    Returns:
      How many runs were written.

    Raises:
      LedgerError: pyarrow is not installed, or the file exists or cannot be written.
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
    """Writes a study in which every run is a trial, for `optuna-dashboard sqlite:///FILE`.

    A trial's parameters are the settings that differ between the runs; the others are attributes
    of the study. Its value is the test accuracy, its intermediate values are those of the epochs.
    Runs that diverged, failed or ran out of memory are failed trials; the attribute `state` tells
    which.

    Args:
      ledger: what to write.
      storage: a file that is not there yet, or the URL of a storage of Optuna.
      study_name: a study that is not in the storage yet.
      keys: none but these runs.

    Returns:
      How many runs were written.

    Raises:
      LedgerError: Optuna is not installed, or the file or the study exists or cannot be written.
    """
    try:
        import optuna
    except ImportError as error:
        raise LedgerError("a study needs Optuna: pip install 'nf_resnets[optuna]'") from error
    rows = ledger.rows(keys)
    trials = _trials(ledger, rows)
    fixed = {name: rows[0].get(name) for name in _fields(rows) if name not in _swept(rows)}
    facts = {"ledger": ledger.name, "settings": fixed}
    verbosity = optuna.logging.get_verbosity()
    # It announces the study that it makes, and failed connections with their URL.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        if "://" in str(storage):
            _write_study(str(storage), study_name, trials, facts)
        else:
            with new_file(storage) as unfinished:
                _write_study(f"sqlite:///{unfinished}", study_name, trials, facts)
    finally:
        optuna.logging.set_verbosity(verbosity)
    return len(rows)


# Tables


def _fields(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the settings of any run."""
    return sorted({name for row in rows for name in row} - set(COLUMNS))


def _kind(values: Sequence[Any]) -> str:
    """What all values are that are not None: bool, int, float or text; none if there are none."""
    kinds = {type(value) for value in values if value is not None}
    if not kinds:
        return "none"
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return "int"
    return "float" if kinds <= {int, float} else "text"


def _time(seconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(seconds, tz=datetime.UTC)


def _cell(name: str, value: Any) -> Any:
    """A value as a text, of which numbers keep all their digits; None is an empty cell."""
    if isinstance(value, str):
        # A spreadsheet would take it for a formula.
        return f"'{value}" if value.startswith(FORMULAS) else value
    if value is None:
        return None
    if name == "finished_at":
        return _time(value).isoformat(timespec="milliseconds")
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# Optuna


def _swept(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings of which there is more than one value."""
    return [
        name
        for name in _fields(rows)
        if len({json.dumps(row.get(name), sort_keys=True) for row in rows}) > 1
    ]


def _distribution(values: Sequence[Any]) -> optuna.distributions.BaseDistribution:
    """Of what a parameter with these values would have been drawn."""
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
    if kind == "int":
        return IntDistribution(low, high, log=log)
    return FloatDistribution(low, high, log=log)


def _trials(ledger: Ledger, rows: Sequence[Mapping[str, Any]]) -> list[optuna.trial.FrozenTrial]:
    """A trial for each run."""
    from optuna.trial import FrozenTrial, TrialState

    states = {"waiting": TrialState.WAITING, "running": TrialState.RUNNING}
    swept = _swept(rows)
    distributions = {name: _distribution([row.get(name) for row in rows]) for name in swept}
    accuracies: dict[str, dict[int, float]] = {}
    for epoch in ledger.epochs():
        if epoch["test_accuracy"] is not None:
            accuracies.setdefault(epoch["key"], {})[epoch["epoch"]] = epoch["test_accuracy"]
    started = {attempt["key"]: attempt["started_at"] for attempt in ledger.attempts()}
    names = [name for name in COLUMNS if name not in ("finished_at", "position", "test_accuracy")]
    trials = []
    for number, row in enumerate(rows):
        value = row["test_accuracy"] if row["state"] == "finished" else None
        ended = TrialState.FAIL if value is None else TrialState.COMPLETE
        state = states.get(row["state"], ended)
        start = started.get(row["key"]) if state != TrialState.WAITING else None
        trials.append(
            FrozenTrial(
                number=number,
                trial_id=number,
                state=state,
                value=value,
                # Optuna's times are local ones.
                datetime_start=start and datetime.datetime.fromtimestamp(start),
                datetime_complete=(
                    datetime.datetime.fromtimestamp(row["finished_at"])
                    if state.is_finished()
                    else None
                ),
                params={name: row.get(name) for name in swept},
                distributions=distributions,
                user_attrs={name: row[name] for name in names if row[name] is not None},
                system_attrs={},
                intermediate_values=accuracies.get(row["key"], {}),
            )
        )
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
                    # It has been called experimental since version 3.2.
                    warnings.simplefilter("ignore")
                    study.set_metric_names(["test_accuracy"])
                for name, fact in facts.items():
                    study.set_user_attr(name, fact)
                if storage.get_current_version() == OPTUNA_TABLES:
                    _insert(storage, study_name, trials)
                else:
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


def _insert(
    storage: optuna.storages.RDBStorage,
    study_name: str,
    trials: Sequence[optuna.trial.FrozenTrial],
) -> None:
    """`study.add_trials` for many trials at once, which takes it 20 ms and more for each one."""
    from optuna.distributions import distribution_to_json

    metadata = sa.MetaData()
    metadata.reflect(storage.engine)
    table = metadata.tables
    with storage.engine.begin() as connection:

        def put(name: str, rows: list[dict[str, Any]]) -> None:
            if rows:
                connection.execute(sa.insert(table[name]), rows)

        studies = table["studies"]
        study = connection.execute(
            sa.select(studies.c.study_id).where(studies.c.study_name == study_name)
        ).scalar_one()
        put(
            "trials",
            [
                {
                    "number": number,
                    "study_id": study,
                    "state": trial.state.name,
                    "datetime_start": trial.datetime_start,
                    "datetime_complete": trial.datetime_complete,
                }
                for number, trial in enumerate(trials)
            ],
        )
        ids = connection.scalars(
            sa.select(table["trials"].c.trial_id)
            .where(table["trials"].c.study_id == study)
            .order_by(table["trials"].c.number)
        ).all()
        placed = list(zip(ids, trials, strict=True))
        put(
            "trial_values",
            [
                {"trial_id": i, "objective": 0, "value": trial.value, "value_type": "FINITE"}
                for i, trial in placed
                if trial.value is not None
            ],
        )
        texts = {
            name: distribution_to_json(distribution)
            for name, distribution in (trials[0].distributions if trials else {}).items()
        }
        put(
            "trial_params",
            [
                {
                    "trial_id": i,
                    "param_name": name,
                    "param_value": trial.distributions[name].to_internal_repr(param),
                    "distribution_json": texts[name],
                }
                for i, trial in placed
                for name, param in trial.params.items()
            ],
        )
        put(
            "trial_user_attributes",
            [
                {"trial_id": i, "key": name, "value_json": json.dumps(value)}
                for i, trial in placed
                for name, value in trial.user_attrs.items()
            ],
        )
        put(
            "trial_intermediate_values",
            [
                {
                    "trial_id": i,
                    "step": step,
                    "intermediate_value": value,
                    "intermediate_value_type": "FINITE",
                }
                for i, trial in placed
                for step, value in trial.intermediate_values.items()
            ],
        )
