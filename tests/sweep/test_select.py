"""The best rate and the range of rates as good, against what is known by hand or in closed form."""

import math

import numpy as np
import pytest

from nf_resnets.sweep.select import optima, optimum


def runs(results, metric="test_accuracy", **settings):
    """Rows of ``{rate: [value or state of each seed]}``."""
    return [
        {
            **settings,
            "peak_lr": rate,
            "seed": seed,
            "state": value if isinstance(value, str) else "finished",
            metric: None if isinstance(value, str) else value,
        }
        for rate, values in results.items()
        for seed, value in enumerate(values)
    ]


def test_the_best_rate_and_its_range_by_accuracy():
    # The best rate's deviation is sqrt((0.02^2 + 0 + 0.02^2) / 2) = 0.02.
    found = optimum(runs({
        0.125: [0.70, 0.70, 0.70],  # 0.10 behind
        0.25: [0.79, 0.78, 0.80],  # 0.01 behind
        0.5: [0.78, 0.80, 0.82],
        1.0: [0.75, 0.75, 0.7801],  # 0.04 behind, though its own deviation is large
        2.0: [0.10, 0.10, 0.10],
    }))  # fmt: skip
    assert (found.best, found.low, found.high, found.as_good) == (0.5, 0.25, 0.5, (0.25, 0.5))
    assert found.mean == pytest.approx(0.80, rel=1e-12)
    assert found.std == pytest.approx(0.02, rel=1e-12)
    assert found.at_edge is None and (found.rates[2].rate, found.rates[2].n) == (0.5, 3)


def test_a_rate_at_which_more_seeds_diverged_stands_behind():
    found = optimum(runs({
        0.5: [0.70, 0.72, 0.71],
        1.0: [0.95, "diverged", 0.95],
        2.0: ["diverged", 0.99, "diverged"],
        4.0: ["diverged"] * 3,
    }))  # fmt: skip
    assert (found.best, found.as_good) == (0.5, (0.5,))
    assert [one.diverged for one in found.rates] == [0, 1, 2, 3]
    assert found.rates[3].mean is None
    # What counts is the share, also while some seeds are still to come.
    found = optimum(runs({1.0: [0.8, 0.8, "diverged"], 2.0: [0.9, "diverged", "waiting"]}))
    assert (found.best, found.at_edge) == (1.0, "lowest")
    # If every rate lost as many, the survivors decide.
    assert optimum(runs({1.0: [0.8, "diverged"], 2.0: [0.9, "diverged"]})).best == 2.0


def test_a_better_mean_of_a_rate_with_more_diverged_is_passed_over():
    results = {
        0.5: [0.70, 0.72, 0.71, 0.71, 0.71],
        1.0: [0.90, "diverged", 0.92, 0.91, 0.91],
        2.0: ["diverged", "diverged", 0.90, 0.908, 0.904],
    }
    best = optimum(runs(results))
    assert (best.best, best.as_good, best.passed_over) == (0.5, (0.5,), (1.0, 2.0))
    rows = runs({0.5: [0.32, 0.31], 1.0: [0.3, 0.32], 2.0: [0.1, "diverged"]}, "train_loss")
    by_loss = optimum(rows, metric="train_loss")
    # A deviation of 0.014: 0.315 is as good as 0.31.
    assert (by_loss.best, by_loss.as_good, by_loss.passed_over) == (1.0, (0.5, 1.0), (2.0,))


def test_runs_without_a_number_do_not_count():
    found = optimum(runs({1.0: ["diverged"] * 2, 2.0: ["diverged"] * 2}))
    assert (found.best, found.mean, found.low, found.high, found.at_edge) == (None,) * 5
    assert found.as_good == () and optimum([]).best is None
    rows = runs({0.5: [0.7, "waiting", "failed"], 1.0: [0.8, "running", "waiting"], 2.0: ["oom"]})
    rows.append({"peak_lr": 0.5, "seed": 9, "state": "finished", "test_accuracy": None})
    found = optimum(rows)
    assert [one.n for one in found.rates] == [1, 1, 0]
    # The rate at which nothing has come out yet was not tried: 1.0 is the edge.
    assert (found.best, found.at_edge) == (1.0, "highest")


@pytest.mark.parametrize(
    ("results", "edge"),
    [
        ({1.0: [0.9], 2.0: [0.8], 4.0: [0.7]}, "lowest"),
        ({1.0: [0.7], 2.0: [0.8], 4.0: ["diverged"]}, None),
        ({1.0: [0.7], 2.0: [0.8], 4.0: ["waiting"]}, "highest"),
        ({2.0: [0.8], 4.0: ["failed"]}, "only"),
    ],
)
def test_a_best_rate_at_the_edge_of_its_grid_is_flagged(results, edge):
    assert optimum(runs(results)).at_edge == edge


def test_groups_are_kept_apart_and_come_in_order():
    groups = [("skipinit", 32, 1.0), ("skipinit", 8, 0.5), ("fixup", 128, 2.0), ("fixup", 8, 1.0)]
    rows = []
    for scheme, size, best in groups:
        results = {rate: [0.9 if rate == best else 0.5] for rate in (0.25, 0.5, 1.0, 2.0, 4.0)}
        rows += runs(results, scheme=scheme, batch_size=size)
    found = [(one.group["scheme"], one.group["batch_size"], one.best) for one in optima(rows)]
    assert found == [groups[1], groups[0], groups[3], groups[2]]
    by_size = optima([row for row in rows if row["scheme"] == "fixup"], by=("batch_size",))
    assert [one.group for one in by_size] == [{"batch_size": 8}, {"batch_size": 128}]


def test_a_group_that_mixes_settings_is_refused_and_the_setting_named():
    rows = runs({1.0: [0.5]}, scheme="fixup", batch_size=8, dropout=0.0, test_loss=1.0)
    rows += runs({1.0: [0.6]}, scheme="fixup", batch_size=8, dropout=0.6, test_loss=2.0)
    with pytest.raises(ValueError, match=r"peak_lr=1\.0 and seed=0 .* that differ in dropout;"):
        optima(rows)
    assert len(optima(rows, by=("scheme", "batch_size", "dropout"))) == 2
    with pytest.raises(ValueError, match="differ in no setting"):
        optimum([*rows[:1], *rows[:1]])


@pytest.mark.parametrize(
    ("seeds", "noise", "stated", "width"),
    [(5, 0.003, 0.98, 2), (5, 0.1, 0.92, 6), (3, 0.1, 0.80, 6), (2, 0.1, 0.70, 6)],
)
def test_the_range_covers_the_optimum_of_a_known_curve(seeds, noise, stated, width):
    # Accuracy is quadratic in log2 of the rate, with its top anywhere between two rates of the
    # grid; a range goes half a step of the grid further than its outermost rates.
    generator = np.random.default_rng(0)
    draws = 200
    covered = widths = 0.0
    for top in generator.uniform(-4.5, -1.5, draws):
        curve = {k: 0.9 - 0.01 * (k - top) ** 2 for k in range(-8, 3)}
        found = optimum(runs({
            2.0**k: (mean + noise * generator.standard_normal(seeds)).tolist()
            for k, mean in curve.items()
        }))  # fmt: skip
        low, high = math.log2(found.low) - 0.5, math.log2(found.high) + 0.5
        covered += low <= top <= high
        widths += (high - low) / draws
    assert covered / draws > stated - 4 * math.sqrt(stated * (1 - stated) / draws)
    # A range that covers by being the whole grid, 11 octaves, says nothing.
    assert widths < width
