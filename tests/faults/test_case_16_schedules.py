"""Case 16: schedules. Each step has the rate of the closed form, also after a resume.

The schedules by themselves are tested in tests/optim/test_schedules.py; here it is the rate with
which a run moved. Without momentum and decay, of a network whose leaves all take the same rate,
it is the norm of the update over that of the gradient.
"""

from __future__ import annotations

import numpy as np
import pytest

from nf_resnets.sweep import image_task
from tests.faults import sweeping
from tests.faults.sweeping import TINY
from tests.faults.test_case_14_order_after_resume import BASE, CUT, cut_once

CASE = "16 schedules: closed form at every step after a resume; warm-up longer than the run"
STEPS, WARMUP, PEAK = 44, 11, 0.1


def closed_form(step):
    """Constant for the first half, then halved at the start of each tenth of the second."""
    halvings = 0 if step < STEPS / 2 else 1 + np.floor((step - STEPS / 2) / (STEPS / 20) + 1e-9)
    return PEAK * 0.5 ** min(halvings, 10) * min(1, (step + 1) / WARMUP)


def rates(folder):
    (key,) = sweeping.outcome(folder)[0]
    update, gradient = (
        np.ravel(sweeping.curve(folder, key, name)) for name in ("update_norm", "grad_norm")
    )
    return update / gradient


@pytest.mark.slow
def test_every_step_has_its_rate_also_after_a_resume():
    assert BASE["momentum"] == BASE["weight_decay"] == 0 and BASE["scheme"] == "skipinit"
    folder, _ = cut_once()
    expected = [closed_form(step) for step in range(STEPS)]
    # Two norms in float32.
    np.testing.assert_allclose(rates(folder), expected, rtol=1e-5)
    # Negative control: a schedule that begins anew has other rates from there on.
    anew = [closed_form(step - CUT if step >= CUT else step) for step in range(STEPS)]
    assert not np.allclose(rates(folder), anew, rtol=1e-5)

    (row,) = sweeping.outcome(folder)[0].values()
    resolved = row["resolved"]
    assert (resolved["num_steps"], resolved["warmup_steps"]) == (STEPS, WARMUP)
    first, rate = np.transpose(resolved["rates"])
    of_step = rate[np.searchsorted(first, np.arange(STEPS), side="right") - 1]
    np.testing.assert_allclose(of_step, expected, rtol=1e-6)


def test_a_warm_up_longer_than_the_run_is_refused():
    (run,) = image_task.make_sweep({"warmup_epochs": (3.0,)}, TINY).runs
    assert run.facts["warmup_steps"] == run.num_steps == 66
    with pytest.raises(ValueError, match="warmup_epochs=3.1 found, 68.2 steps; expected no more"):
        image_task.make_sweep({"warmup_epochs": (3.0, 3.1)}, TINY)
    steps = {**TINY, "epochs": 0.0, "steps": 10}
    with pytest.raises(ValueError, match="warmup_epochs=1 found, 22 steps; .* the run's 10"):
        image_task.make_sweep({"warmup_epochs": (0.0, 1.0)}, steps)
