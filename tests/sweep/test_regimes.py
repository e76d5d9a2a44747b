"""The fit of the linear and the saturated part, against curves whose parts are known."""

import math

import numpy as np
import pytest

from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.select import Optimum, optima

SIZES = [4, 16, 64, 256, 1024, 4096]


def regimes(points):
    """The fit of ``(batch_size, best, low, high, edge)``, of which no edge may be left out."""
    (fit,) = regimes_of([
        Optimum({"batch_size": x}, "loss", (), best, low=low, high=high, at_edge=(*edge, None)[0])
        for x, best, low, high, *edge in points
    ])  # fmt: skip
    return fit


def points_of(rates, sizes=SIZES):
    return [(size, rate, rate, rate) for size, rate in zip(sizes, rates, strict=True)]


def test_planted_slope_plateau_and_break_are_found():
    fit = regimes(points_of([min(2**-7 * size, 2.0) for size in SIZES]))
    # Powers of two, so that logarithms are exact.
    assert fit.shows == "both"
    assert (fit.slope, fit.largest, fit.batch_size) == (2**-7, 2.0, 256.0)
    fit = regimes(points_of([min(0.003 * size, 0.7) for size in SIZES]))
    assert (fit.slope, fit.largest, fit.batch_size) == pytest.approx((0.003, 0.7, 0.7 / 0.003))
    # Half a step of a grid of factors of 2 is 0.5; three points are on either side.
    assert fit.slope_error == pytest.approx(0.5 / math.sqrt(3))
    assert fit.largest_error == pytest.approx(0.5 / math.sqrt(3))
    assert fit.batch_size_error == pytest.approx(0.5 * math.sqrt(2 / 3))


def test_a_purely_linear_and_a_purely_flat_curve():
    fit = regimes(points_of([0.01 * size for size in SIZES]))
    assert (fit.shows, fit.largest, fit.largest_error, fit.batch_size) == ("linear", *[None] * 3)
    assert (fit.slope, fit.slope_error) == pytest.approx((0.01, 0.5 / math.sqrt(6)))
    fit = regimes(points_of([0.3] * 6))
    assert (fit.shows, fit.slope, fit.slope_error, fit.batch_size) == ("saturated", *[None] * 3)
    assert (fit.largest, fit.largest_error) == pytest.approx((0.3, 0.5 / math.sqrt(6)))


def test_no_curve_is_nearer_than_the_fit():
    # Against every curve of a fine lattice; the fit lies between the lattice's points, so it is
    # at least as near, up to the rounding of sums.
    generator = np.random.default_rng(1)
    a, c = np.meshgrid(np.linspace(-12, 4, 161), np.linspace(-8, 8, 161))
    both = 0
    for _ in range(60):
        count = int(generator.integers(2, 8))
        x = np.sort(generator.choice(12, count)).astype(float)
        y = np.minimum(x - 6, 0) + generator.normal(0, 2, count)
        error = generator.uniform(0.5, 2, count)
        points = zip(2.0**x, 2.0**y, 2.0 ** (y - error), 2.0 ** (y + error), strict=True)
        fit = regimes(list(points))
        if fit.shows == "both":
            both += 1
            curves = np.minimum(a[..., None] + x, c[..., None])
            least = (((y - curves) / error) ** 2).sum(-1).min()
            curve = np.minimum(math.log2(fit.slope) + x, math.log2(fit.largest))
            assert (((y - curve) / error) ** 2).sum() <= least + 1e-9
    assert both > 5


def test_a_best_rate_at_the_edge_is_a_bound_and_not_a_value():
    linear = points_of([0.0625, 0.25, 1.0, 4.0], SIZES[:4])
    # The grid ends at 4: taken as values these would be a plateau that is not there.
    censored = [(1024, 4.0, 4.0, 4.0, "highest"), (4096, 4.0, 4.0, 4.0, "highest")]
    assert regimes([*linear, *(point[:4] for point in censored)]).shows == "both"
    others = [(8, 0.5, 0.5, 0.5, "only"), (8192, None, None, None)]
    fit = regimes([*linear, *censored, *others])
    assert (fit.shows, fit.slope) == ("linear", pytest.approx(1 / 64))
    reasons = fit.left_out
    assert list(reasons) == [8, 1024, 4096, 8192]
    assert reasons[8] == "only one rate, 0.5, was tried" and reasons[8192] == "no run finished"
    assert "highest tried: only a lower bound" in reasons[1024]
    dead = regimes([(size, None, None, None) for size in SIZES])
    assert dead.shows == "neither" and len(dead.left_out) == 6


@pytest.mark.parametrize(
    ("factor", "best", "shows", "largest", "error"),
    [
        (2, {8: -6, 32: -4, 128: -2, 512: -2, 2048: -2}, "both", 0.25, 0.5 / 2**0.5),
        # A grid of factors of 4 has error bars of one octave.
        (4, {8: -3, 32: -2, 128: -1, 512: 0}, "linear", None, 0.5),
    ],
)
def test_from_rows_to_fits(factor, best, shows, largest, error):
    rows = [
        {
            "scheme": "fixup", "batch_size": size, "seed": seed, "state": "finished",
            "peak_lr": float(factor) ** k,
            "test_accuracy": 0.9 - 0.01 * (k - rate) ** 2 + 1e-4 * seed,
        }
        for size, rate in best.items() for k in range(-12, 8) for seed in range(2)
    ]  # fmt: skip
    (fit,) = regimes_of(optima(rows))
    assert (fit.group, fit.metric) == ({"scheme": "fixup"}, "test_accuracy")
    assert (fit.shows, fit.slope, fit.largest) == (shows, 2**-9, largest)
    assert fit.slope_error == pytest.approx(error)
