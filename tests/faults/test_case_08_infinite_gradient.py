"""Case 8: an infinite gradient with a finite loss; NaN only in the update."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.faults import sweeping
from tests.faults.sweeping import TWO

CASE = "8 infinite gradient with finite loss; NaN only in the update"
HERE = "tests.faults.test_case_08_infinite_gradient"
AXES = ["seed=0:3"]
STEP = 12


def poison():
    """An infinite gradient in a step of seed 1, an update of NaN in that of seed 2."""

    def wrap(step):
        def poisoned(state, batch, *, apply_fn, optimizer, **kwargs):
            now = state.step == STEP
            infinite, nan = now & (state.seed == 1), now & (state.seed == 2)

            def apply(params, *args):
                logits, batch_stats = apply_fn(params, *args)
                one = jax.tree.leaves(params)[0].ravel()[0]
                # The root of 0 is 0, and its slope infinite; elsewhere that of 1.
                root = jnp.sqrt(one - jax.lax.stop_gradient(one) + jnp.where(infinite, 0.0, 1.0))
                # Not the same for all classes: softmax would not see it.
                shift = jnp.where(infinite, root, 0.0) * jnp.arange(logits.shape[-1])
                return logits + shift.reshape(1, -1), batch_stats

            def broken(hyper):
                whole = optimizer(hyper)

                def update(*args):
                    updates, opt_state = whole.update(*args)
                    factor = jnp.where(nan, jnp.nan, 1.0)
                    return jax.tree.map(lambda u: u * factor, updates), opt_state

                return optax.GradientTransformation(whole.init, update)

            return step(state, batch, apply_fn=apply, optimizer=broken, **kwargs)

        return poisoned

    sweeping.change_steps(wrap)


def poison_unseen():
    """Control: and a loss that alone is looked at."""
    poison()

    def wrap(step):
        def only_loss(*args, **kwargs):
            state, metrics = step(*args, **kwargs)
            return state, {**metrics, "grad_norm": jnp.zeros_like(metrics["loss"]),
                           "update_norm": jnp.zeros_like(metrics["loss"])}  # fmt: skip

        return only_loss

    sweeping.change_steps(wrap)


def assert_diverged(folder):
    rows = sweeping.rows_by(folder)
    assert rows[0]["state"] == "finished"
    for seed in (1, 2):
        row = rows[seed]
        assert (row["state"], row["steps_done"]) == ("diverged", STEP + 1), row
        assert [e for e in sweeping.events(folder, "saved") if e["key"] == row["key"]] == []
    assert sweeping.left_behind(folder) == []
    return rows


@pytest.mark.slow  # the same without a sweep is in tests/training/test_step.py
@pytest.mark.parametrize("runs", [1, 3])
def test_they_diverge_at_that_step(tmp_path, runs):
    short = {"model": "cifar-resnet-8", "epochs": 1.0}
    sweeping.run(tmp_path, AXES, short, prepare=f"{HERE}:poison", workers=1, runs_per_device=runs)
    rows = assert_diverged(tmp_path)
    last = {
        seed: {
            name: sweeping.curve(tmp_path, rows[seed]["key"], name)[-1][0]
            for name in ("loss", "grad_norm", "update_norm")
        }
        for seed in (1, 2)
    }
    assert math.isfinite(last[1]["loss"]) and not math.isfinite(last[1]["grad_norm"])
    assert math.isfinite(last[2]["loss"]) and math.isfinite(last[2]["grad_norm"])
    assert math.isnan(last[2]["update_norm"])
    assert rows[1]["message"].startswith("grad_norm")
    assert rows[2]["message"] == "update_norm nan at step 13"


@pytest.mark.slow
def test_the_others_are_as_without_them(tmp_path):
    sweeping.run(tmp_path, AXES, prepare=f"{HERE}:poison", workers=1)
    rows = assert_diverged(tmp_path)
    # The program is another one, with the poison in it: numbers to tolerance of its rounding.
    twin = sweeping.rows_by(sweeping.twin(TWO))
    assert rows[0]["test_loss"] == pytest.approx(twin[0]["test_loss"], rel=1e-3)
    assert twin[1]["state"] == "finished"


@pytest.mark.slow
def test_looking_at_the_loss_alone_is_noticed(tmp_path):
    sweeping.run(tmp_path, AXES, prepare=f"{HERE}:poison_unseen", workers=1)
    assert sweeping.rows_by(tmp_path)[1]["steps_done"] == STEP + 2
    with pytest.raises(AssertionError):
        assert_diverged(tmp_path)
