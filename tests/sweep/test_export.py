"""Ledgers as tables and as studies of Optuna, read back by those who will read them."""

from __future__ import annotations

import csv
import datetime
import json
import math
import sys

import pytest
import sqlalchemy as sa

from nf_resnets.sweep import export as module
from nf_resnets.sweep.export import export, to_csv, to_optuna, to_parquet
from nf_resnets.sweep.ledger import COLUMNS, LedgerError, NewRun, open_ledger, this_worker

# As RunSettings has them: 16 runs, of which the rate, batch size, scheme, alpha and a flag differ.
GRID = [
    {"peak_lr": rate, "batch_size": batch, "scheme": scheme, "alpha": alpha, "flip": rate > 0.1,
     "epochs": 10.0, "steps": 0, "dataset": "digits, 8x8", "dropout": None}
    for rate in (0.0625, 0.125, 0.25, 0.5)
    for batch in (8, 32)
    for scheme, alpha in (("fixup", None), ("skipinit", 0.5))
]  # fmt: skip
STATES = ["finished"] * 11 + ["diverged", "failed", "oom", "running", "waiting"]


@pytest.fixture
def ledger(tmp_path):
    new = [
        NewRun(json.dumps(s), f"p{s['batch_size']}", i, '{"num_steps": 20}')
        for i, s in enumerate(GRID)
    ]
    with open_ledger(tmp_path / "ledger" / "ledger.db") as opened:
        opened.add(new)
        worker = this_worker("cpu", {"jax": "0.10.2"})
        for position, state in enumerate(STATES[:-1]):
            (claim,) = opened.claim(worker, keys=[new[position].key])
            rows = [
                {"epoch": e, "step": 10 * e, "test_accuracy": 0.1 * e + position / 100}
                for e in (1, 2)
            ]
            opened.record(claim, worker, [*rows, {"epoch": 3, "test_accuracy": math.nan}])
            if state == "failed":
                opened.fail(claim, worker, 'Traceback\nValueError: "x",\ty\n', max_attempts=1)
            elif state != "running":
                accuracy = None if state == "oom" else 0.5 + position / 100
                result = {"steps": 20, "test_accuracy": accuracy, "train_loss": 1 / 3}
                result["measures"] = {"curve": [[1, 0.5], [20, None]]}
                opened.finish(claim, worker, state, result)
        yield opened


def same(found, row, *, time):
    """Whether a row that was read back is the ledger's."""
    for name, value in row.items():
        if name == "finished_at":
            # Milliseconds are kept.
            kept = found[name] and time(found[name])
            assert kept == value or abs(kept - value) < 1e-3
        elif name in ("resolved", "measures"):
            assert json.loads(found[name]) == value
        else:
            assert (found[name], type(found[name])) == (value, type(value)), name
    return set(found) == set(row)


def test_a_csv_file_holds_every_run(ledger, tmp_path):
    path = tmp_path / "new" / "runs.csv"
    assert to_csv(ledger, path) == 16
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    fields = ["alpha", "batch_size", "dataset", "dropout", "epochs", "flip", "peak_lr", "scheme",
              "steps"]  # fmt: skip
    assert list(lines[0]) == [*fields, *COLUMNS]
    texts = {"dataset", "scheme", "key", "program", "state", "message", "resolved", "finished_at",
             "measures"}  # fmt: skip
    for line, row in zip(lines, ledger.rows(), strict=True):
        read = {
            name: (text or None) if name in texts else json.loads(text or "null")
            for name, text in line.items()
        }
        assert same(read, row, time=lambda text: datetime.datetime.fromisoformat(text).timestamp())
    assert lines[12]["message"] == 'ValueError: "x",\ty'
    assert [p.name for p in path.parent.iterdir()] == ["runs.csv"]


def test_a_parquet_file_holds_every_run_with_types(ledger, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    path = tmp_path / "runs.parquet"
    assert export(ledger, path) == 16
    table = parquet.read_table(path)
    types = {field.name: str(field.type) for field in table.schema}
    assert {name: types[name] for name in ("alpha", "batch_size", "flip", "scheme", "dropout")} == {
        "alpha": "double", "batch_size": "int64", "flip": "bool", "scheme": "string",
        "dropout": "null",
    }  # fmt: skip
    assert (types["finished_at"], types["seconds"]) == ("timestamp[us, tz=UTC]", "double")
    for read, row in zip(table.to_pylist(), ledger.rows(), strict=True):
        assert same(read, row, time=lambda time: time.timestamp())


def test_settings_of_several_kinds_become_text(tmp_path):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet

    with open_ledger(tmp_path / "ledger.db") as ledger:
        texts = ['{"a": 1, "b": 1}', '{"a": "x", "b": 2.5}', '{"b": true, "c": 3}']
        ledger.add([NewRun(text, "p", i) for i, text in enumerate(texts)])
        to_parquet(ledger, tmp_path / "runs.parquet")
    read = pyarrow.parquet.read_table(tmp_path / "runs.parquet").to_pydict()
    assert read["a"] == ["1", "x", None]
    assert read["b"] == ["1", "2.5", "true"] and read["c"] == [None, None, 3]


@pytest.fixture
def optuna():
    return pytest.importorskip("optuna", reason="Optuna is not installed")


def check_study(optuna, study, ledger):
    states = optuna.trial.TrialState
    expected = {"finished": states.COMPLETE, "running": states.RUNNING, "waiting": states.WAITING}
    rows = ledger.rows()
    assert len(study.trials) == len(rows) == 16
    for number, (trial, row) in enumerate(zip(study.trials, rows, strict=True)):
        assert trial.number == number
        assert trial.state == expected.get(row["state"], states.FAIL)
        names = ("peak_lr", "batch_size", "scheme", "alpha", "flip")
        assert trial.params == {name: row[name] for name in names}
        assert type(trial.params["batch_size"]) is int
        assert trial.value == (row["test_accuracy"] if row["state"] == "finished" else None)
        attributes = trial.user_attrs
        for name in ("key", "state", "resolved", "measures"):
            assert attributes[name] == row[name]
        assert attributes.get("steps_done") == row["steps_done"]
        assert attributes.get("message") == row["message"]
        accuracies = {
            e["epoch"]: e["test_accuracy"]
            for e in ledger.epochs(row["key"])
            if e["test_accuracy"] is not None
        }
        assert trial.intermediate_values == accuracies
        assert len(accuracies) == (0 if row["state"] == "waiting" else 2)
        if row["finished_at"] is not None:
            assert abs(trial.datetime_complete.timestamp() - row["finished_at"]) < 1e-3
            assert trial.datetime_start <= trial.datetime_complete
    assert study.best_trial.user_attrs["key"] == rows[10]["key"]
    assert study.metric_names == ["test_accuracy"]
    assert study.user_attrs["settings"] == {
        "dataset": "digits, 8x8", "dropout": None, "epochs": 10.0, "steps": 0
    }  # fmt: skip
    of = study.trials[0].distributions
    assert (of["peak_lr"].low, of["peak_lr"].high, of["peak_lr"].log) == (0.0625, 0.5, True)
    assert of["alpha"].choices == (None, 0.5) and of["flip"].choices == (False, True)
    # Optuna goes on with it: whatever the sampler, the study is one of its own.
    trial = study.ask()
    assert 0.0625 <= trial.suggest_float("peak_lr", 0.0625, 0.5, log=True) <= 0.5


def test_a_study_holds_every_run(ledger, tmp_path, optuna):
    path = tmp_path / "study.db"
    assert export(ledger, path) == 16
    study = optuna.load_study(study_name="nf_resnets", storage=f"sqlite:///{path}")
    check_study(optuna, study, ledger)


def test_a_study_is_written_whole_or_not_at_all(ledger, tmp_path, optuna, monkeypatch):
    url = f"sqlite:///{tmp_path / 'storage.db'}"
    add_trials = optuna.Study.add_trials

    def breaks(study, trials):
        add_trials(study, trials[:3])
        raise sa.exc.OperationalError("INSERT", None, Exception("disk full"))

    monkeypatch.setattr(optuna.Study, "add_trials", breaks)
    with pytest.raises(LedgerError, match="the study cannot be written: disk full"):
        to_optuna(ledger, url)
    assert optuna.get_all_study_names(url) == []
    with pytest.raises(LedgerError, match="the study cannot be written: disk full"):
        to_optuna(ledger, tmp_path / "study.db")
    assert not (tmp_path / "study.db").exists()
    monkeypatch.undo()
    # Others' studies may stand beside it, and one of its own name is not touched.
    optuna.create_study(study_name="other", storage=url)
    assert to_optuna(ledger, url) == 16
    with pytest.raises(LedgerError, match="has a study 'nf_resnets' already, which is not overw"):
        to_optuna(ledger, url)
    assert sorted(optuna.get_all_study_names(url)) == ["nf_resnets", "other"]


def test_nothing_is_overwritten(ledger, tmp_path):
    for name in ("runs.csv", "runs.parquet", "study.db"):
        path = tmp_path / name
        path.write_text("mine")
        with pytest.raises(LedgerError, match=f"{name} exists, and is not overwritten"):
            export(ledger, path)
        assert path.read_text() == "mine"


def test_a_file_is_written_whole_or_not_at_all(ledger, tmp_path, monkeypatch):
    path = tmp_path / "runs.csv"

    def full(name, value):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_cell", full)
    with pytest.raises(LedgerError, match="cannot be written: No space left on device"):
        to_csv(ledger, path)
    assert [p.name for p in tmp_path.iterdir()] == ["ledger"]
    with pytest.raises(LedgerError, match="/proc/runs.csv cannot be written: "):
        to_csv(ledger, "/proc/runs.csv")


def test_an_empty_ledger_is_an_empty_table(tmp_path, optuna):
    with open_ledger(tmp_path / "ledger.db") as ledger:
        assert to_csv(ledger, tmp_path / "runs.csv") == 0
        assert to_optuna(ledger, tmp_path / "study.db") == 0
    assert (tmp_path / "runs.csv").read_text() == ",".join(COLUMNS) + "\n"


def test_the_format_is_said_by_the_ending_or_by_name(ledger, tmp_path):
    assert export(ledger, tmp_path / "runs.txt", "csv") == 16
    with pytest.raises(LedgerError, match="cannot tell how to export to .*runs.xlsx; expected a"):
        export(ledger, tmp_path / "runs.xlsx")
    with pytest.raises(LedgerError, match="to format 'excel'; expected"):
        export(ledger, tmp_path / "runs.csv", "excel")


def test_a_part_of_the_ledger_can_be_written(ledger, tmp_path):
    part = [row["key"] for row in ledger.rows()[2:4]]
    assert to_csv(ledger, tmp_path / "runs.csv", keys=part) == 2


@pytest.mark.parametrize(
    ("missing", "name", "extra"),
    [("pyarrow", "runs.parquet", "parquet"), ("optuna", "study.db", "optuna")],
)
def test_what_is_not_installed_is_said(ledger, tmp_path, monkeypatch, missing, name, extra):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(LedgerError, match=rf"pip install 'nf_resnets\[{extra}\]'"):
        export(ledger, tmp_path / name)
    assert not (tmp_path / name).exists()


def test_the_password_of_a_storage_is_not_said(ledger, optuna):
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(LedgerError, match="the study cannot be written: ") as caught:
        to_optuna(ledger, "postgresql://me:hunter2@127.0.0.1:1/name")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "kind", "log"),
    [
        ([2.0**-i for i in range(8)], "FloatDistribution", True),
        ([8, 32, 128, 512], "IntDistribution", True),
        ([1, 2, 3, 4, 5], "IntDistribution", False),
        ([0, 1], "IntDistribution", False),
        ([0.0, 1e-4, 1e-3], "FloatDistribution", False),
        ([1, 0.5, 0.25], "FloatDistribution", True),
        ([True, False], "CategoricalDistribution", None),
        ([None, 0.5], "CategoricalDistribution", None),
        ([None, 1, True], "CategoricalDistribution", None),
        (["a", "b", "a"], "CategoricalDistribution", None),
    ],
)
def test_a_parameter_has_the_scale_of_its_values(values, kind, log, optuna):
    distribution = module._distribution(values)
    assert type(distribution).__name__ == kind
    assert getattr(distribution, "log", None) is log
    # Each value is one that Optuna finds in it again.
    for value in values:
        found = distribution.to_external_repr(distribution.to_internal_repr(value))
        assert found == value and distribution._contains(distribution.to_internal_repr(value))
