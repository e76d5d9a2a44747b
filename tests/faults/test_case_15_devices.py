"""Case 15: one, two and eight devices.

That a step has the same indices and numbers on each is tested in tests/training/test_devices.py and
tests/data/test_order.py; here it is whole sweeps, and one that goes on with other devices.
"""

from __future__ import annotations

import pytest

from tests.faults import sweeping
from tests.faults.sweeping import TWO
from tests.sweep import small

CASE = "15 one, two and eight devices; going on with another number of them"
# Sums in float32, in another order or fused otherwise: 1e-7 a step, which grows over 66 of them.
# 360 test images: an accuracy may differ by one of them.
TOLERANCE = 2e-3
ONE_IMAGE = 1.01 / 360


def assert_close(folder, twin):
    rows, epochs = sweeping.outcome(folder)
    twins, twin_epochs = sweeping.outcome(twin)
    assert rows.keys() == twins.keys() and epochs.keys() == twin_epochs.keys()
    for key, row in rows.items():
        assert (row["state"], row["steps_done"]) == ("finished", 66)
        assert row["test_loss"] == pytest.approx(twins[key]["test_loss"], rel=TOLERANCE)
        assert abs(row["test_accuracy"] - twins[key]["test_accuracy"]) <= ONE_IMAGE
    for place, row in epochs.items():
        assert row["train_loss"] == pytest.approx(twin_epochs[place]["train_loss"], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "per_run"), [(2, 1), (2, 2), (8, 1), (8, 8)])
def test_the_numbers_of_one(tmp_path, devices, per_run):
    whole = sweeping.twin(TWO)
    sweeping.run(tmp_path, TWO, devices=devices, devices_per_run=per_run)
    assert_close(tmp_path, whole)
    # Negative control: other seeds are further apart than the tolerance.
    a, b = sweeping.rows_by(whole).values()
    assert a["test_loss"] != pytest.approx(b["test_loss"], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(1, 2, 1), (2, 2, 2), (2, 1, 1), (1, 8, 1)])
def test_going_on_with_others(tmp_path, devices):
    before, after, per_run = devices
    whole = sweeping.twin(TWO)
    process = sweeping.start(tmp_path, TWO, devices=before, workers=1)
    process.until("saved")
    process.kill()
    second = sweeping.run(tmp_path, TWO, devices=after, devices_per_run=per_run)
    assert 22 in [event["step"] for event in second.events("run_begin")]
    assert_close(tmp_path, whole)
    assert sweeping.assert_nothing_twice(tmp_path) <= before


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"batch_size": 33}, "batch_size=33 does not divide evenly"),
        ({"scheme": "batchnorm", "batch_size": 32}, "ghost_batch=64 found, 1 in a batch of 32"),
    ],
)
def test_an_indivisible_batch_is_refused_before_anything_starts(tmp_path, settings, sentence):
    """On one device it is not: see the other tests."""
    sweep = small.make({"seed": (0, 1)}, **settings)
    with pytest.raises(ValueError) as caught:
        small.run(tmp_path, sweep, devices=2, devices_per_run=2)
    assert sentence in str(caught.value)
