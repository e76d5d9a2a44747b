"""Schedules. Each step has the rate of the closed form, also after a resume.

The schedules by themselves are tested in tests/optim/test_schedules.py; here it is the rate with
which a run moved. Without momentum and decay, of a network whose leaves all take the same rate,
it is the norm of the update over that of the gradient.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.sweep import small
from tests.training.small import Log

STEPS, WARMUP, PEAK, CUT = 44, 11, 0.1, 4
BASE = {
    "scheme": "skipinit", "momentum": 0.0, "weight_decay": 0.0, "warmup_epochs": 0.5,
    "padding": 1, "flip": True,
}  # fmt: skip


def closed_form(step):
    """Constant for the first half, then halved at the start of each tenth of the second."""
    halvings = 0 if step < STEPS / 2 else 1 + np.floor((step - STEPS / 2) / (STEPS / 20) + 1e-9)
    return PEAK * 0.5 ** min(halvings, 10) * min(1, (step + 1) / WARMUP)


@pytest.mark.slow
def test_every_step_has_its_rate_also_after_a_resume(tmp_path):
    sweep = small.make({"seed": (0,)}, **BASE)
    small.run(tmp_path, sweep.plans, sweep.task, Log(stop_at=CUT))
    rows, _, log = small.run(tmp_path, sweep.plans, sweep.task)
    (row,) = rows.values()
    resumed = row["measures"]["resumed_at"]
    assert resumed == log.of("on_run_begin")[0][3] and CUT <= resumed < STEPS
    curve = row["measures"]["curve"]
    rates = np.divide(curve["update_norm"], curve["grad_norm"])
    expected = [closed_form(step) for step in range(STEPS)]
    # Two norms in float32.
    np.testing.assert_allclose(rates, expected, rtol=1e-5)
    # Negative control: a schedule that begins anew has other rates from there on.
    anew = [closed_form(step - resumed if step >= resumed else step) for step in range(STEPS)]
    assert not np.allclose(rates, anew, rtol=1e-5)


def test_a_warm_up_longer_than_the_run_is_refused():
    small.make({"warmup_epochs": (2.0,)})
    with pytest.raises(ValueError, match="warmup_epochs=2.1 found, 46.2 steps; expected no more"):
        small.make({"warmup_epochs": (2.0, 2.1)})
    with pytest.raises(ValueError, match="warmup_epochs=1 found, 22 steps; .* the run's 10"):
        small.make({"warmup_epochs": (0.0, 1.0)}, epochs=0.0, steps=10)
