"""Steps to a target: read off curves, over rates and seeds."""

import pytest

from nf_resnets.sweep import steps_to_target


def run(size, rate, steps, values, *, seed=0, state="finished", **columns):
    curve = {"step": list(steps), "loss": list(values), **columns}
    return {
        "scheme": "fixup", "batch_size": size, "peak_lr": rate, "seed": seed, "state": state,
        "measures": {"curve": curve},
    }  # fmt: skip


def falling(size, rate, needed, **more):
    """A loss of ``needed / step``, which is 1 at that step."""
    return run(size, rate, range(1, 31), [needed / step for step in range(1, 31)], **more)


def test_the_first_step_at_which_the_target_is_reached_counts():
    (one,) = steps_to_target([run(8, 0.1, [10, 20, 30, 40], [3, 1.5, 0.9, 1.2])], 1.0)
    assert (one.steps, one.low, one.high, one.rate) == (30, 20, 30, 0.1)
    assert (one.reached, one.runs, one.metric) == (1, 1, "train_loss")
    # More is better where the metric says so, and the target itself is reached.
    history = [{"step": 5, "test_accuracy": 0.4, "test_loss": 1.0}, {"step": 7, "test_loss": None},
               {"step": 10, "test_accuracy": 0.7, "test_loss": 0.5}]  # fmt: skip
    row = {**run(8, 0.1, [1], [1]), "history": history}
    cases = [("test_accuracy", 0.7, 10), ("test_loss", 0.5, 10), ("test_accuracy", 0.3, 5)]
    for metric, target, steps in (*cases, ("test_accuracy", 0.8, None)):
        (one,) = steps_to_target([row], target, metric=metric)
        assert one.steps == steps


def test_the_best_rate_has_the_lowest_median_over_its_seeds():
    rows = [falling(8, 0.1, needed, seed=seed) for seed, needed in enumerate((9, 10, 12))]
    # Quicker with one seed, and never with the two others; those count, though.
    rows += [falling(8, 0.2, needed, seed=seed) for seed, needed in enumerate((3, 99, 99))]
    rows += [falling(8, 0.05, 20, seed=seed) for seed in range(3)]
    # Runs that are not over count for nothing.
    rows += [falling(8, rate, 1, state=state) for rate, state in ((0.05, "oom"), (0.8, "failed"))]
    (one,) = steps_to_target(rows, 1.0)
    assert (one.rate, one.steps, one.low, one.high) == (0.1, 10, 8, 12)
    assert (one.reached, one.runs) == (3, 3)
    # Of two seeds both must reach it.
    (pair,) = steps_to_target([falling(8, 0.1, 9), falling(8, 0.1, 99, seed=1)], 1.0)
    assert pair.steps is None
    # A run that diverged has not reached it, wherever its curve was before.
    rows[0]["state"] = rows[1]["state"] = "diverged"
    (one,) = steps_to_target(rows, 1.0)
    assert (one.rate, one.steps) == (0.05, 20)


def test_runs_of_other_settings_are_no_seeds():
    rows = [falling(8, 0.1, needed, seed=0) for needed in (9, 12)]
    for row, decay in zip(rows, (0.0, 0.1), strict=True):
        row["weight_decay"] = decay
    with pytest.raises(ValueError, match="that differ in weight_decay; expected one"):
        steps_to_target(rows, 1.0)
    assert [each.steps for each in steps_to_target(rows, 1.0, by=["weight_decay"])] == [9, 12]


def test_the_noise_scale_is_that_of_the_steps_up_to_the_target():
    columns = {"gradient_signal": [1.0, 3.0, 100.0], "gradient_noise": [32.0, 96.0, 100.0]}
    (one,) = steps_to_target([run(8, 0.1, [1, 2, 3], [3, 0.9, 0.5], **columns)], 1.0)
    # Signal and noise are averaged by themselves: exact in float32.
    assert one.steps == 2 and one.noise_scale == pytest.approx(64 / 2, rel=0)
