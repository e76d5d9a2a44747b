"""Rows: every damaged line is passed over and named, a key counts once, one process a file."""

import errno
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nf_resnets.places import write_csv
from nf_resnets.sweep.rows import Rows, flat

ROOT = Path(__file__).parents[2]


def row(key, **more):
    return {"key": key, "state": "finished", "loss": 0.1, "measures": {"curve": [1, 2]}, **more}


@pytest.fixture
def ten(tmp_path):
    """Ten rows on disk."""
    with Rows(tmp_path).open() as rows:
        rows.add([row(f"k{number}") for number in range(5)])
        rows.add([row(f"k{number}") for number in range(5, 10)])
    return tmp_path / "rows-0-of-1.jsonl"


def test_rows_come_back_as_they_were(ten):
    rows = Rows(ten.parent)
    assert rows.read() == {f"k{number}": row(f"k{number}") for number in range(10)}
    assert rows.keys() == [f"k{number}" for number in range(10)] and rows.damaged == []
    assert "k3" in rows and "k10" not in rows
    # What the documentation says of other readers: each line is JSON.
    lines = [json.loads(line) for line in ten.read_text().splitlines()]
    assert [each["key"] for each in lines] == rows.keys()


def test_a_key_counts_once(ten):
    with Rows(ten.parent).open() as rows:
        assert [each["key"] for each in rows.add([row("k9"), row("new"), row("k0")])] == ["new"]
        assert rows.add([row("new", loss=2.0)]) == []
        # A run that is tried again: its last row counts.
        rows.follow({*rows.keys()} - {"k9"})
        assert len(rows.add([row("k9", state="diverged")])) == 1
    found = Rows(ten.parent).read()
    assert len(found) == 11 and found["k9"]["state"] == "diverged" and found["new"]["loss"] == 0.1


def test_a_failure_does_not_count_where_another_shard_has_made_the_run(tmp_path):
    for index, state in ((1, "failed"), (0, "finished")):
        with Rows(tmp_path, (index, 2)).open() as rows:
            rows.retry()
            assert len(rows.add([row("k", state=state)])) == 1
    assert Rows(tmp_path).read()["k"]["state"] == "finished"


def test_of_several_failures_the_last_one_counts(tmp_path):
    for number in (1, 2):
        with Rows(tmp_path).open() as rows:
            rows.retry()
            rows.add([row("k", state="failed", loss=number)])
    assert Rows(tmp_path).read()["k"]["loss"] == 2


def test_a_flipped_bit_is_named_and_no_number_changes(ten):
    whole, data, rng = Rows(ten.parent).read(), ten.read_bytes(), random.Random(0)
    ends = [place for place, letter in enumerate(data) if letter in b"}\n"]
    for place in [*rng.sample(range(len(data)), 60), *ends[:4]]:
        flipped = bytearray(data)
        flipped[place] ^= 1 << rng.randrange(8)
        ten.write_bytes(flipped)
        rows = Rows(ten.parent)
        found = rows.read()
        number = data[:place].count(b"\n") + 1
        # Without the end of a line two are one; the last one needs none.
        lost = 10 - len(found)
        assert lost in ((1, 2) if data[place] == ord("\n") else (1,)), place
        assert found.items() < whole.items() if lost else found == whole
        assert rows.damaged[0] == f"{ten}, line {number}"


@pytest.mark.parametrize("size", [0, 1, 2, 7, 50, 90, 120, 190])
def test_a_line_that_was_cut_is_made_again(ten, size):
    whole, data = Rows(ten.parent).read(), ten.read_bytes()
    ten.write_bytes(data[:-size] if size else data)
    lost = whole.keys() - Rows(ten.parent).read().keys()
    with Rows(ten.parent).open() as rows:
        # A line is whole without its end, too.
        assert len(rows.damaged) == (b"\n" not in data[-size - 1 :][:2] and size > 0)
        rows.add([row(key) for key in sorted(lost)])
    assert Rows(ten.parent).read() == whole


HOLD = """
import sys
from pathlib import Path
from nf_resnets.sweep.rows import Rows
with Rows(Path(sys.argv[1]), (int(sys.argv[2]), 2)).open() as rows:
    print("open", flush=True)
    sys.stdin.readline()
    rows.add([{"key": "theirs", "state": "finished"}])
"""


def test_two_processes_write_files_of_their_own_and_never_one(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), "0"],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == "open\n"
        sentence = f"another process is writing {tmp_path / 'rows-0-of-2.jsonl'}; wait for it, or "
        with pytest.raises(OSError, match=re.escape(sentence)), Rows(tmp_path, (0, 2)).open():
            pass
        with Rows(tmp_path, (1, 2)).open() as rows:
            rows.add([row("ours")])
            process.communicate("\n", timeout=60)
            assert rows.read().keys() == {"ours", "theirs"}
    finally:
        process.kill()
    # The system has let go of the file of the process that ended.
    with Rows(tmp_path, (0, 2)).open() as rows:
        assert rows.keys() == ["ours", "theirs"]


@pytest.mark.parametrize("shard", [(0, 1), (0, 3)])
def test_another_number_of_shards_is_refused(tmp_path, shard):
    with Rows(tmp_path, (1, 2)).open() as rows:
        rows.add([row("k")])
    sentence = f"rows-1-of-2.jsonl is of 2 shards, and --shard {shard[0]} {shard[1]} found; expec"
    with pytest.raises(OSError, match=sentence), Rows(tmp_path, shard).open():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["rows-1-of-2.jsonl"]


def test_a_disk_that_fills_up_costs_the_rows_that_did_not_fit(ten, monkeypatch):
    write, free = os.pwrite, [20, 0]

    def short(file, data, at):
        if not free:
            return write(file, data, at)
        if left := free.pop(0):
            return write(file, data[:left], at)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", short)
    with Rows(ten.parent).open() as rows:
        with pytest.raises(OSError, match=f"^{ten} cannot be written: No space left on device"):
            rows.add([row("lost")])
        assert "lost" not in rows
        # With space again nothing else is lost.
        rows.add([row("new")])
    rows = Rows(ten.parent)
    assert len(rows.read()) == 11 and rows.damaged == []


def test_a_table_has_what_is_flat_of_the_rows(tmp_path):
    write_csv(tmp_path / "rows.csv", [flat(row("a", flip=True)), flat(row("b", more="x,y"))])
    assert (tmp_path / "rows.csv").read_text().splitlines() == [
        "key,state,loss,flip,more", "a,finished,0.1,true,", 'b,finished,0.1,,"x,y"'
    ]  # fmt: skip
