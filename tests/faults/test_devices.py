"""One, two and eight devices; going on with another number of them.

That a step has the same indices and numbers on each is tested in tests/training/test_devices.py,
waves over several devices in tests/training/test_wave.py; here it is a network of images.
"""

from __future__ import annotations

import pytest

from tests.sweep import small
from tests.training.small import Log

# Sums in float32, in another order or fused otherwise: 1e-7 a step, which grows over 44 of them.
# 360 test images: an accuracy may differ by one of them.
TOLERANCE = 2e-3
ONE_IMAGE = 1.01 / 360


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return made(tmp_path_factory.mktemp("one"))


def made(folder, log=None, **options):
    sweep = small.make({"seed": (0, 1)})
    return small.run(folder, sweep.plans, sweep.task, log, **options)[0]


def assert_close(rows, others):
    assert rows.keys() == others.keys()
    for key, row in rows.items():
        assert (row["state"], row["steps_done"]) == ("finished", 44)
        assert row["test_loss"] == pytest.approx(others[key]["test_loss"], rel=TOLERANCE)
        assert abs(row["test_accuracy"] - others[key]["test_accuracy"]) <= ONE_IMAGE
        for epoch, other in zip(row["history"], others[key]["history"], strict=True):
            assert epoch["train_loss"] == pytest.approx(other["train_loss"], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "per_run"), [(2, 1), (2, 2), (8, 1), (8, 8)])
def test_the_numbers_of_one(tmp_path, one, devices, per_run):
    assert_close(made(tmp_path, devices=devices, devices_per_run=per_run), one)
    # Negative control: other seeds are further apart than the tolerance.
    a, b = one.values()
    assert a["test_loss"] != pytest.approx(b["test_loss"], rel=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [(1, 2, 1), (2, 2, 2), (2, 1, 1), (1, 8, 1)])
def test_going_on_with_others(tmp_path, one, devices):
    before, after, per_run = devices
    assert len(made(tmp_path, Log(stop_at=22), devices=before)) < 2
    log = Log()
    assert_close(made(tmp_path, log, devices=after, devices_per_run=per_run), one)
    assert max(event[3] for event in log.of("on_run_begin")) >= 22
