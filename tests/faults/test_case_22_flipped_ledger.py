"""Case 22: a flipped bit in a run's settings or results in the ledger. It is noticed at the read.

Bits are flipped by SQLite itself in any column of a row, so that the file stays a database and only
its contents are wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import sqlite3
import struct

import pytest

from nf_resnets.sweep import __main__ as main
from nf_resnets.sweep import image_task, schema
from nf_resnets.sweep.export import salvage, to_csv
from nf_resnets.sweep.ledger import LedgerError, NewRun, open_ledger, this_worker
from nf_resnets.sweep.options import Options

CASE = "22 a flipped bit in the ledger"
STATES = ("finished", "diverged", "oom", "failed", "running", "waiting")


def fill(path, runs=12, measures=True):
    """A ledger with runs in every state, two epochs each."""
    with open_ledger(path) as book:
        book.add(
            [
                NewRun(json.dumps({"peak_lr": 0.1 * i, "seed": i}), "p", i, '{"num_steps": 44}')
                for i in range(1, runs + 1)
            ]
        )
        worker = this_worker("cpu", {"jax": "0.10.2"})
        for claim in book.claim(worker, limit=runs, lease_seconds=10_000):
            seed = json.loads(claim.settings)["seed"]
            state = STATES[seed % len(STATES)]
            rows = [
                {"epoch": e, "step": 22 * e, "test_accuracy": seed / 100, "train_loss": 1 / seed}
                | ({"measures": {"norm": seed / e}} if measures else {})
                for e in (1, 2)
            ]
            book.record(claim, worker, rows)
            if state == "failed":
                book.fail(claim, worker, "ValueError: no", max_attempts=1)
            elif state == "waiting":
                book.release(claim, worker)
            elif state != "running":
                result = {"steps": 44, "test_accuracy": seed / 100, "train_loss": 0.0}
                if measures:
                    result["measures"] = {"curve": [[1, 0.5], [22, 0.25]]}
                book.finish(claim, worker, state, {**result, "message": "it came to its end"})
    return path


@pytest.fixture
def ledger(tmp_path):
    return fill(tmp_path / "ledger.db")


def flipped(value, rng):
    """The value with one bit flipped, and the SQL by which SQLite stores it as it was stored."""
    if isinstance(value, str):
        raw = bytearray(value.encode())
        bit = rng.randrange(8 * len(raw))
        raw[bit // 8] ^= 1 << bit % 8
        return bytes(raw), "CAST(? AS TEXT)"
    code = "<d" if isinstance(value, float) else "<q"
    number = int.from_bytes(struct.pack(code, value), "little") ^ 1 << rng.randrange(64)
    return struct.unpack(code, number.to_bytes(8, "little"))[0], "?"


def known(path):
    with open_ledger(path, create=False) as book:
        return book.rows(), book.epochs()


def fuzz(path, flips, seed):
    """Flips bits one at a time; counts those noticed, without effect, and not noticed."""
    rng, before = random.Random(seed), known(path)
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA ignore_check_constraints = ON")
    counts = {"noticed": 0, "harmless": 0, "changed": []}
    places = []
    for table, key in (("runs", "id"), ("epochs", "run, epoch")):
        columns = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
        for number in raw.execute(f"SELECT {key} FROM {table}").fetchall():
            names = key.split(", ")
            where = " AND ".join(f"{name} = {n}" for name, n in zip(names, number, strict=True))
            places += [(table, column, where) for column in columns if column not in names]
    with open_ledger(path, create=False) as book:
        while sum((counts["noticed"], counts["harmless"], len(counts["changed"]))) < flips:
            table, column, where = rng.choice(places)
            (old,) = raw.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
            if old is None or old == "":
                continue
            new, store = flipped(old, rng)
            put = f"UPDATE {table} SET {column} = {{}} WHERE {where}"
            raw.execute("BEGIN")
            try:
                raw.execute(put.format(store), [new])
            except sqlite3.IntegrityError:
                raw.execute("ROLLBACK")
                continue
            raw.execute("COMMIT")
            try:
                same = (book.rows(), book.epochs()) == before
            except LedgerError as error:
                assert "\n" not in str(error) and str(error).isprintable()
                counts["noticed"] += 1
            else:
                if same:
                    counts["harmless"] += 1
                else:
                    counts["changed"].append((table, column, old, new))
            raw.execute(put.format("?"), [old])
    raw.close()
    assert known(path) == before
    return counts


def test_flipped_bits_are_noticed_or_change_nothing(ledger, record_property):
    counts = fuzz(ledger, 75, seed=0)
    record_property("tries", 75)
    assert counts["changed"] == []
    # What is not shown: who held a run, and until when.
    assert counts["noticed"] > 60


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_flipped_bits_are_noticed_or_change_nothing(ledger, seed, record_property):
    record_property("tries", 1500)
    assert fuzz(ledger, 1500, seed)["changed"] == []


def put(path, column, value, where="position = 1"):
    raw = sqlite3.connect(path, isolation_level=None)
    (old,) = raw.execute(f"SELECT key FROM runs WHERE {where}").fetchone()
    raw.execute(f"UPDATE runs SET {column} = ? WHERE {where}", [value])
    raw.close()
    return old


def test_a_run_of_other_settings_is_not_trained_under_the_old_key(ledger):
    # Seed 5 waits to be taken up again; 5 becomes 4 by one bit.
    settings = json.dumps({"peak_lr": 0.5, "seed": 4})
    put(ledger, "settings", settings, where="state = 'waiting' AND position = 5")
    raw = sqlite3.connect(ledger)
    (key,) = raw.execute("SELECT key FROM runs WHERE position = 5").fetchone()
    raw.close()
    with open_ledger(ledger, create=False) as book:
        worker = this_worker("cpu", {})
        for read in (book.rows, lambda: book.claim(worker), lambda: book.rows([key])):
            with pytest.raises(LedgerError, match=f"damaged in the run {key} .* is not its key"):
                read()
        assert book.counts()["running"] == 2


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("settings", "{", "its settings is not its key"),
        ("resolved", "[" * 200_000, "do not have their checksum"),
        ("test_accuracy", 0.99, "do not have their checksum"),
        ("test_accuracy", "much", "its test_accuracy is no float"),
        ("message", b"\xff\x1b[2J", "its message is no str"),
        ("message", "\x1b[2J", "do not have their checksum"),
        ("state", "won", "do not have their checksum"),
        ("attempt", 2.5, "its attempt is no int"),
    ],
)
def test_what_cannot_be_is_an_error_that_names_the_row(ledger, column, value, said):
    raw = sqlite3.connect(ledger)
    raw.execute("PRAGMA ignore_check_constraints = ON")
    (key,) = raw.execute("SELECT key FROM runs WHERE position = 1").fetchone()
    raw.execute(f"UPDATE runs SET {column} = ? WHERE position = 1", [value])
    raw.commit()
    raw.close()
    with pytest.raises(LedgerError) as caught:
        known(ledger)
    text = str(caught.value)
    assert "\n" not in text and text.isprintable() and len(text) < 500
    # A state that no run can have, SQLite itself refuses when the file is opened.
    assert said in text and key in text or column == "state" and "damaged" in text


def forged(path, **columns):
    """Writes columns of the first run with the checksum, and the key, that they should have."""
    raw = sqlite3.connect(path, isolation_level=None)
    raw.execute("PRAGMA ignore_check_constraints = ON")
    raw.row_factory = sqlite3.Row
    row = dict(raw.execute("SELECT * FROM runs WHERE position = 1").fetchone()) | columns
    row["key"] = hashlib.sha256(row["settings"].encode()).hexdigest()
    row["checksum"] = schema.checksum(schema.runs, row)
    names = ", ".join(f"{name} = :{name}" for name in row)
    raw.execute(f"UPDATE runs SET {names} WHERE position = 1", row)
    raw.close()


NESTED = '{"a":' * 200_000 + "1" + "}" * 200_000


@pytest.mark.parametrize(
    "columns",
    [
        {"settings": NESTED},
        {"resolved": NESTED},
        {"settings": "[]"},
        {"settings": '{"seed": ' + "9" * 5000 + "}"},
        {"resolved": "null"},
        {"measures": NESTED},
        {"measures": "[]"},
        {"test_accuracy": "\x1b[2J"},
        {"finished_at": 1e300},
        {"finished_at": None},
        {"seconds": math.inf},
        {"position": 1.5},
        {"attempt": "many"},
        {"program": None},
    ],
    ids=lambda columns: next(iter(columns)),
)
def test_what_somebody_wrote_on_purpose_is_an_error_that_names_the_row(ledger, columns, tmp_path):
    (row,) = (row for row in known(ledger)[0] if row["position"] == 1)
    assert row["state"] == "diverged"
    try:
        forged(ledger, **columns)
    except sqlite3.IntegrityError:
        return  # SQLite has not taken it
    with pytest.raises(LedgerError) as caught:
        known(ledger)
    said = str(caught.value)
    assert "is damaged" in said and said.isprintable() and len(said) < 500
    assert salvage(ledger, tmp_path / "new.db")[0] == 11


def test_escape_sequences_are_not_shown(ledger, tmp_path, capsys):
    evil = "\x1b[2J\x1b]0;title\x07 \u202e"
    forged(ledger, message=evil, settings=json.dumps({"peak_lr": evil, "seed": 1}))
    with open_ledger(ledger) as book:
        assert book.rows()[0]["message"] == evil  # the data is what was written
    sweep = image_task.make_sweep({"seed": (0,)}, {"model": "wrn-10-1"})
    with open_ledger(ledger) as book, pytest.raises(ValueError) as caught:
        image_task.refuse_other_settings(sweep, book)
    assert str(caught.value).isprintable()
    raw = sqlite3.connect(ledger, isolation_level=None)
    raw.execute("UPDATE runs SET program = ? WHERE position = 2", [evil])
    raw.execute("UPDATE runs SET key = ? WHERE position = 3", [evil])
    raw.close()
    wanted = main.Command(salvage=tmp_path / "new.db", options=Options(ledger=str(ledger)))
    assert main.main(wanted) == 0
    said = capsys.readouterr().out
    assert "10 runs" in said and all(line.isprintable() for line in said.splitlines())
    raw = sqlite3.connect(ledger, isolation_level=None)
    raw.execute("UPDATE notes SET value = ? WHERE name = 'nf_resnets ledger'", [evil])
    raw.close()
    with pytest.raises(LedgerError) as caught:
        open_ledger(ledger)
    assert str(caught.value).isprintable()


def test_the_others_are_salvaged(ledger, tmp_path):
    rows, epochs = known(ledger)
    first = put(ledger, "test_accuracy", 0.99)
    second = put(ledger, "settings", "{", where="position = 2")
    copied, left = salvage(ledger, tmp_path / "new.db")
    assert copied == 10 and len([line for line in left if "damaged" not in line]) == len(left)
    assert any(first in line and "checksum" in line for line in left)
    assert any(second in line and "is not its key" in line for line in left)
    found, found_epochs = known(tmp_path / "new.db")
    whole = [row for row in rows if row["key"] not in (first, second)]
    # What ran is nobody's now.
    assert found == [
        {**row, "state": "waiting"} if row["state"] == "running" else row for row in whole
    ]
    assert found_epochs == [row for row in epochs if row["key"] not in (first, second)]
    assert sorted(p.name for p in tmp_path.glob("new.db*")) == ["new.db"]
    with pytest.raises(LedgerError, match="exists, and is not overwritten"):
        salvage(ledger, tmp_path / "new.db")
    with pytest.raises(LedgerError, match="there is no ledger"):
        salvage(tmp_path / "nothing.db", tmp_path / "other.db")
    with pytest.raises(LedgerError, match="expected a path, not a URL"):
        salvage(ledger, "postgresql://me@host/name")


def test_damaged_pages_lose_their_own_rows_only(tmp_path):
    ledger = fill(tmp_path / "large.db", runs=200)
    rows, _ = known(ledger)
    data = bytearray(ledger.read_bytes())
    # A page in the middle of the runs: their settings stand there.
    place = data.index(b'"seed": 100}') // 4096 * 4096
    data[place : place + 8] = b"\xff" * 8
    ledger.write_bytes(data)
    with pytest.raises(LedgerError, match="--salvage NEW.db copies all that is whole"):
        open_ledger(ledger)
    copied, left = salvage(ledger, tmp_path / "new.db")
    found, _ = known(tmp_path / "new.db")
    assert 150 < copied < 200 and len(found) == copied
    assert any("rows of runs that cannot be read" in line for line in left)
    assert not any("--salvage" in line for line in left)
    by_key = {row["key"]: row for row in rows}
    for row in found:
        assert row == {**by_key[row["key"]], "state": row["state"]}


@pytest.mark.parametrize(
    ("version", "lacks"), [("1", ("measures", "checksum")), ("2", ("measures",))]
)
def test_a_ledger_of_an_earlier_version_is_opened_and_gets_what_it_lacks(tmp_path, version, lacks):
    ledger = fill(tmp_path / "ledger.db", measures=False)
    before = known(ledger)
    raw = sqlite3.connect(ledger, isolation_level=None)
    for table in ("runs", "epochs"):
        for column in lacks:
            raw.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    raw.execute("UPDATE notes SET value = ? WHERE name = 'nf_resnets ledger'", [version])
    sums = raw.execute("SELECT checksum FROM runs").fetchall() if version == "2" else None
    # What is whole of it can be salvaged.
    assert salvage(ledger, tmp_path / "new.db") == (12, [])
    # While a worker of that version holds runs, nothing is touched.
    with pytest.raises(LedgerError, match="whose workers are at work on it"):
        open_ledger(ledger)
    assert "measures" not in str(raw.execute("PRAGMA table_info(runs)").fetchall())
    raw.execute("UPDATE runs SET lease_until = 1 WHERE state = 'running'")
    assert known(ledger) == before
    assert sums in (None, raw.execute("SELECT checksum FROM runs").fetchall())
    raw.close()
    assert fuzz(ledger, 100, seed=0)["changed"] == []


def test_formulas_are_texts_in_a_table(tmp_path):
    with open_ledger(tmp_path / "ledger.db") as book:
        book.add([NewRun('{"scheme": "=HYPERLINK(1)", "seed": -1}', "p", 0)])
        worker = this_worker("cpu", {})
        (claim,) = book.claim(worker)
        book.fail(claim, worker, "", message="+1+cmd|' /C calc'!A0", max_attempts=1)
        to_csv(book, tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    assert "'=HYPERLINK(1)" in text and "'+1+cmd" in text
    # A number is one.
    assert "'-1" not in text and ",-1," in text
