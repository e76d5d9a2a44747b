"""Case 23: a ledger deleted, emptied or replaced by an older one beside newer checkpoints: said."""

from __future__ import annotations

import csv
import os
import re
import shutil
import signal

import pytest

from nf_resnets.sweep import command, image_task, settings, worker
from nf_resnets.sweep.ledger import LedgerError, open_ledger, this_worker
from tests.faults import sweeping
from tests.faults.sweeping import TINY

CASE = "23 a ledger older than the checkpoints beside it"
AXES = ["seed=0:2"]
BASE = {"epochs": 4.0}


@pytest.fixture(scope="module")
def killed():
    """A folder whose worker was killed in the fourth epoch, and the ledger as it was before."""
    folder = sweeping.new_folder()
    with open_ledger(folder / "older.db") as book:
        worker.enter(image_task.make_sweep(settings.parse(AXES), {**TINY, **BASE}).runs, book)
    shutil.copy(folder / "older.db", folder / "ledger.db")
    sweeping.run(
        folder, AXES, BASE, workers=1, terminate_at=80, terminate_by=signal.SIGKILL,
        code=-signal.SIGKILL,
    )  # fmt: skip
    # The last one may have been on its way.
    assert list((folder / "checkpoints").glob("*/step_*/manifest.json"))
    return folder


def delete(folder):
    for path in folder.glob("ledger.db*"):
        path.unlink()


def empty(folder):
    delete(folder)
    (folder / "ledger.db").touch()


def replace(folder):
    delete(folder)
    shutil.copy(folder / "older.db", folder / "ledger.db")


@pytest.mark.slow
@pytest.mark.parametrize("change", [replace, delete, empty])
def test_it_is_said_and_nothing_is_trained(killed, tmp_path, change):
    folder = tmp_path / "folder"
    shutil.copytree(killed, folder)
    ledger = {path.name: path.read_bytes() for path in folder.glob("ledger.db*")}
    saved = sorted(path for path in (folder / "checkpoints").rglob("*"))
    began = len(sweeping.events(folder, "run_begin"))
    change(folder)
    process = sweeping.start(folder, AXES, BASE, workers=1)
    assert process.wait() == 1
    said = process.said().strip().splitlines()[-1]
    assert re.search("lacks epoch [123] of the run", said) and "put the newer one back" in said
    assert len(sweeping.events(folder, "run_begin")) == began
    assert sorted(path for path in (folder / "checkpoints").rglob("*")) == saved

    # With the newer one the sweep goes on, with every row.
    delete(folder)
    for name, data in ledger.items():
        (folder / name).write_bytes(data)
    sweeping.run(folder, AXES, BASE, workers=1)
    sweeping.assert_twins(folder, sweeping.twin(AXES, BASE, workers=1))

    # Or from the start, when the checkpoints are out of the way.
    change(folder)
    os.rename(folder / "checkpoints", folder / "away")
    sweeping.run(folder, AXES, BASE, workers=1)
    assert sweeping.outcome(folder) == sweeping.outcome(sweeping.twin(AXES, BASE, workers=1))


def test_epochs_that_were_saved_must_be_in_the_ledger(tmp_path):
    runs = image_task.make_sweep(settings.parse(AXES), {**TINY, **BASE}).runs
    saved = tmp_path / "checkpoints" / runs[0].key[:20] / f"step_{2 * runs[0].steps_per_epoch}"
    saved.mkdir(parents=True)
    with open_ledger(tmp_path / "ledger.db") as book:
        worker.enter(runs, book)
        # Without its manifest a stray folder is no epoch.
        worker.refuse_older_ledger(runs, book, tmp_path / "checkpoints")
        (saved / "manifest.json").touch()
        with pytest.raises(LedgerError, match=f"lacks epoch 2 of the run {runs[0].key}, saved"):
            worker.refuse_older_ledger(runs, book, tmp_path / "checkpoints")
        me = this_worker("cpu", {})
        (claim,) = book.claim(me, keys=[runs[0].key])
        book.record(claim, me, [{"epoch": 1}])
        with pytest.raises(LedgerError, match="put the newer one back"):
            worker.refuse_older_ledger(runs, book, tmp_path / "checkpoints")
        book.record(claim, me, [{"epoch": 2}])
        worker.refuse_older_ledger(runs, book, tmp_path / "checkpoints")


def test_results_of_the_table_are_not_forgotten(tmp_path):
    """All runs are over, so that no checkpoint is left: the table of the folder knows."""
    with open(tmp_path / "rows.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerows([("key", "state"), ("a" * 64, "finished"), ("b" * 64, "failed")])
    with open_ledger(tmp_path / "ledger.db") as book:
        with pytest.raises(LedgerError, match="lacks the results of 1 runs .* such as aaaa"):
            command._refuse_to_forget(tmp_path / "rows.csv", book, set())
        (tmp_path / "rows.csv").write_bytes(b"\x00\xff")
        command._refuse_to_forget(tmp_path / "rows.csv", book, set())
