"""Steps to a target: read off curves, over rates and seeds; the knee of the batch size."""

import math

import numpy as np
import pytest

from nf_resnets.sweep import common_target, knees, steps_to_target
from nf_resnets.sweep.targets import StepsToTarget

SIZES = (8, 16, 32, 64, 128, 256, 512)


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
    (found,) = steps_to_target([run(8, 0.1, [10, 20, 30, 40], [3, 1.5, 0.9, 1.2])], 1.0)
    assert (found.steps, found.low, found.high, found.rate) == (30, 20, 30, 0.1)
    assert (found.reached, found.runs, found.at_edge, found.metric) == (1, 1, "only", "train_loss")
    # More is better where the metric says so, and the target itself is reached.
    tests = {"step": [5, 10], "accuracy": [0.4, 0.7], "loss": [1.0, 0.5]}
    row = {**run(8, 0.1, [1], [1]), "tests": tests}
    cases = [("test_accuracy", 0.7, 10), ("test_loss", 0.5, 10), ("test_accuracy", 0.3, 5)]
    for metric, target, steps in (*cases, ("test_accuracy", 0.8, None)):
        (found,) = steps_to_target([row], target, metric=metric)
        assert found.steps == steps


def test_the_best_rate_has_the_lowest_median_over_its_seeds():
    rows = [falling(8, 0.1, needed, seed=seed) for seed, needed in enumerate((9, 10, 12))]
    # Quicker with one seed, and never with the two others; those count, though.
    rows += [falling(8, 0.2, needed, seed=seed) for seed, needed in enumerate((3, 99, 99))]
    rows += [falling(8, 0.05, 20, seed=seed) for seed in range(3)]
    (found,) = steps_to_target(rows, 1.0)
    assert (found.rate, found.steps, found.low, found.high) == (0.1, 10, 8, 12)
    assert (found.reached, found.runs, found.at_edge) == (3, 3, None)
    # Of two seeds both must reach it.
    (pair,) = steps_to_target([falling(8, 0.1, 9), falling(8, 0.1, 99, seed=1)], 1.0)
    assert pair.steps is None
    # A run that diverged has not reached it, wherever its curve was before.
    rows[0]["state"] = rows[1]["state"] = "diverged"
    (found,) = steps_to_target(rows, 1.0)
    assert (found.rate, found.steps, found.at_edge) == (0.05, 20, "lowest")


def sweep_of(steps_of, rates=(0.1, 0.2, 0.4)):
    """Runs whose middle rate needs ``steps_of(size)`` steps; points of the curve are 1% apart."""
    rows = []
    for size in SIZES:
        for rate in rates:
            slower = 2 ** abs(math.log2(rate / 0.2))
            at = np.unique(np.round(100 * 1.01 ** np.arange(900)).astype(int))
            values = steps_of(size) * slower / at
            rows.append(run(size, rate, at, values, gradient_signal=[2.0] * len(at),
                            gradient_noise=[64.0] * len(at)))  # fmt: skip
    return rows


@pytest.mark.parametrize("form", ["bent", "smooth"])
def test_a_planted_knee_is_found(form):
    least, knee = 1000, 64

    def steps(size):
        return least * (1 + knee / size if form == "smooth" else max(1, knee / size))

    found = steps_to_target(sweep_of(steps), 1.0)
    assert [one.group["batch_size"] for one in found] == list(SIZES)
    (fit,) = knees(found)
    assert fit.group == {"scheme": "fixup"} and fit.form == form and fit.left_out == ()
    # The curve has points 1% apart, of which the first beyond the target counts, and its last 22
    # points are averaged, which the others are not far from.
    assert fit.batch_size == pytest.approx(knee, rel=0.05)
    assert 1 / fit.largest == pytest.approx(1.12 * least, rel=0.03)
    # Of the noise, signal and noise are averaged by themselves.
    assert {one.noise_scale for one in found} == {32.0}


def test_what_is_at_the_edge_or_not_reached_is_left_out_of_the_fit_and_named():
    rows = sweep_of(lambda size: 64000 / size)
    rows = [row for row in rows if row["batch_size"] != 64 or row["peak_lr"] <= 0.2]
    for row in rows:
        if row["batch_size"] == 512:
            row["state"] = "diverged"
    found = steps_to_target(rows, 1.0)
    (fit,) = knees(found)
    assert fit.shows == "linear" and found[-1].rate is found[-1].steps is None
    assert [(out.batch_size, out.reason) for out in fit.left_out] == [
        (64, "the best rate lies at the edge of its grid: fewer steps may do"),
        (512, "no rate reaches the target"),
    ]


def test_the_common_target_is_one_that_every_batch_size_reaches():
    rows = [
        *(run(8, rate, [1, 2], [3, last]) for rate, last in ((0.1, 0.2), (0.2, 0.1))),
        *(run(16, rate, [1, 2], [3, last]) for rate, last in ((0.1, 0.9), (0.2, 0.637))),
        run(32, 0.1, [1, 2], [3, 0.001], state="diverged"),
    ]
    target = common_target(rows)
    assert target == 0.64  # to the side that is reached
    assert [one.steps for one in steps_to_target(rows, target)] == [2, 2, None]
    accuracies = [{**row, "tests": {"step": [2], "accuracy": [0.873], "loss": [1]}} for row in rows]
    assert common_target(accuracies, metric="test_accuracy") == 0.87
    assert common_target(rows[-1:]) is None
    # Half of the runs of a rate are not enough.
    pair = [run(8, 0.1, [1], [0.5]), run(8, 0.1, [1], [0.1], seed=1, state="diverged")]
    assert common_target(pair) is None


@pytest.mark.parametrize("state", ["waiting", "running", "failed", "oom"])
def test_runs_that_are_not_over_count_for_nothing(state):
    over = [falling(8, rate, needed) for rate, needed in ((0.1, 12), (0.2, 10), (0.4, 14))]
    other = [falling(8, 0.2, 10, seed=seed, state=state) for seed in (1, 2)]
    other += [falling(8, rate, 1, state=state) for rate in (0.05, 0.8)]
    assert steps_to_target(over + other, 1.0) == steps_to_target(over, 1.0)
    assert common_target(over + other) == common_target(over)
    # With the highest rate to come the best one is at the edge.
    (found,) = steps_to_target([*over[:2], {**over[2], "state": state}], 1.0)
    assert (found.rate, found.at_edge) == (0.2, "highest")
    (found,) = steps_to_target(other, 1.0)
    assert found.steps is None and common_target(other) is None


@pytest.mark.parametrize("hundredths", (7, 29, 57, 58, 99))
def test_a_target_of_two_digits_stays_as_it_is(hundredths):
    value = hundredths / 100
    tests = {"step": [1], "accuracy": [value], "loss": [value]}
    row = {**run(8, 0.1, [1], [value]), "tests": tests}
    for metric in ("train_loss", "test_loss", "test_accuracy"):
        assert common_target([row], metric=metric) == value


# Language models trained on C4 with Adam, of each size (in millions) the fewest steps to one
# validation loss with batches of 64, 128, ..., 16,384, as plots/chinchilla.ipynb of
# github.com/hlzhang109/critical-batch-size prints them (Zhang et al., "How Does Critical Batch Size
# Scale in Pre-training?", arXiv 2410.21676).
PUBLISHED = {
    85: (46_000, 23_000, 13_282, 7_000, 3_840, 2_500, 1_800, 1_600, 1_600),
    151: (96_000, 49_000, 24_000, 11_951, 7_128, 4_200, 2_760, 2_400, 2_300),
    302: (196_000, 90_000, 46_000, 23_400, 13_300, 7_224, 4_980, 3_400, 2_879),
    604: (311_000, 166_000, 81_000, 37_440, 21_320, 11_400, 7_199, 4_700, 3_800),
    1_200: (643_000, 331_000, 176_000, 94_000, 46_500, 25_000, 15_360, 8_900, 6_500),
}


def test_steps_that_others_measured():
    """The batch that needs twice the examples, read off their table, is the fit's ``B_crit``."""
    sizes = [2**power for power in range(6, 15)]
    given = [
        StepsToTarget({"model": model, "batch_size": size}, "test_loss", 3.0, 3e-3, steps, steps,
                      steps, 1, 1)
        for model, row in PUBLISHED.items()
        for size, steps in zip(sizes, row, strict=True)
    ]  # fmt: skip
    found = knees(given)
    assert {(fit.shows, fit.form, len(fit.left_out)) for fit in found} == {("both", "smooth", 0)}
    doubled = []
    for row in PUBLISHED.values():
        examples = np.multiply(sizes, row)
        excess = np.log2(examples / np.median(examples[:3]))  # perfect scaling: 0
        doubled.append(2 ** np.interp(1.0, excess[3:], np.log2(sizes[3:])))
    # Their batches are a factor of two apart.
    critical = [fit.batch_size for fit in found]
    np.testing.assert_allclose(np.log2(critical), np.log2(doubled), atol=0.5)
    # Larger models, trained on more examples, bear larger batches, as the authors find.
    assert sorted(critical) == critical and critical[-1] > 3 * critical[0]
