"""Case 13: settings changed on resume are refused; a grid that grew runs only what is new."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from nf_resnets.sweep import image_task, settings, worker
from nf_resnets.sweep.ledger import open_ledger
from tests.faults import sweeping
from tests.faults.sweeping import TINY, TWO
from tests.sweep import small

CASE = "13 settings changed on resume; a grid that grew; 0.1, 1e-1 and a NumPy float"


def enter(folder, axes, **base):
    with open_ledger(folder / "ledger.db") as book:
        sweep = image_task.make_sweep(axes, {**TINY, **base})
        image_task.refuse_other_settings(sweep, book)
        return worker.enter(sweep.runs, book)


@pytest.mark.parametrize(
    ("base", "sentence"),
    [
        ({"momentum": 0.8}, "momentum: 0.9 there, 0.8 now"),
        ({"model": "wrn-16-1"}, "model: 'wrn-10-1' there, 'wrn-16-1' now"),
        ({"epochs": 0.0, "steps": 66}, "epochs: 3.0 there, 0.0 now; steps: 0 there, 66 now"),
        ({"branch_scale": 0.5}, "branch_scale: 1.0 there, 0.5 now"),
        # What was an axis, and is not one any more.
        ({"seed": 7}, "seed: 0, 1 there, 7 now"),
    ],
)
def test_changed_settings_are_refused_with_a_diff(tmp_path, base, sentence):
    assert enter(tmp_path, {"peak_lr": (0.1, 0.2), "seed": (0, 1)}) == 4
    axes = {"peak_lr": (0.1, 0.2), **({} if "seed" in base else {"seed": (0, 1)})}
    with pytest.raises(ValueError, match="holds runs of other settings") as refused:
        enter(tmp_path, axes, **base)
    assert f"({sentence})" in str(refused.value)
    with open_ledger(tmp_path / "ledger.db") as book:
        assert len(book.rows()) == 4
    # Negative controls: as an axis it is welcome, and in another folder.
    (tmp_path / "other").mkdir()
    assert enter(tmp_path / "other", axes, **base) > 0
    if "momentum" in base:
        assert enter(tmp_path, {**axes, "momentum": (0.9, 0.8)}) == 4


def test_one_number_is_one_point_however_it_is_written(tmp_path):
    numbers = [0.1, 1e-1, np.float64(0.1), np.float32(0.1), np.float16(0.1)]
    assert len({small.key({**TINY, "peak_lr": number}) for number in numbers}) == 1
    assert enter(tmp_path, {"peak_lr": tuple(numbers[:2]), "seed": (0,)}) == 1
    for number in numbers:
        assert enter(tmp_path, {"peak_lr": (number,), "seed": (np.int64(0), 0.0)}) == 0
    assert enter(tmp_path, settings.parse(["peak_lr=0.1,1e-1,.1", "seed=0"])) == 0
    # Negative control: the next float is another point.
    assert enter(tmp_path, {"peak_lr": (np.nextafter(0.1, 1),), "seed": (0,)}) == 1


@pytest.mark.slow  # a quick one: tests/sweep/test_command.py
def test_a_grid_that_grew_runs_only_what_is_new(tmp_path):
    twin = sweeping.twin(TWO)
    shutil.copytree(twin, tmp_path / "grown")
    before, epochs_before = sweeping.outcome(tmp_path / "grown")
    grown = sweeping.run(tmp_path / "grown", ["seed=0:3"])
    rows, epochs = sweeping.outcome(tmp_path / "grown")
    assert [rows[event["key"]]["seed"] for event in grown.events("run_begin")] == [2]
    assert {key: rows[key] for key in before} == before
    assert {place: epochs[place] for place in epochs_before} == epochs_before
    assert len(rows) == 3 and {row["state"] for row in rows.values()} == {"finished"}
    assert len(epochs) == 9
    assert sweeping.assert_nothing_twice(tmp_path / "grown") == 0
