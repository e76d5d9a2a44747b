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


def made(folder, log=None, **options):
    sweep = small.make({"seed": (0, 1)})
    return small.run(folder, sweep.plans, sweep.task, log, **options)[0]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return made(tmp_path_factory.mktemp("one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "per_run"), [(1, 2, 1), (2, 2, 2), (2, 1, 1), (1, 8, 1), (8, 8, 8)]
)
def test_begun_and_going_on_with_others(tmp_path, one, before, after, per_run):
    options = {"devices": before, "devices_per_run": per_run if before > 1 else 1}
    assert len(made(tmp_path, Log(stop_at=22), **options)) < 2
    log = Log()
    rows = made(tmp_path, log, devices=after, devices_per_run=per_run)
    assert max(event[3] for event in log.of("on_run_begin")) >= 22 and rows.keys() == one.keys()
    for key, row in rows.items():
        assert (row["state"], row["steps_done"]) == ("finished", 44)
        assert row["test_loss"] == pytest.approx(one[key]["test_loss"], rel=TOLERANCE)
        assert abs(row["test_accuracy"] - one[key]["test_accuracy"]) <= ONE_IMAGE
        for epoch, other in zip(row["history"], one[key]["history"], strict=True):
            assert epoch["train_loss"] == pytest.approx(other["train_loss"], rel=TOLERANCE)
    # Negative control: other seeds are further apart than the tolerance.
    a, b = one.values()
    assert a["test_loss"] != pytest.approx(b["test_loss"], rel=TOLERANCE)
