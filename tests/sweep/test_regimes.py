"""The fit of the linear and the saturated part, against curves whose parts are known."""

import math

import numpy as np
import pytest
from scipy import optimize

from nf_resnets.sweep.regimes import Point, Regimes, regimes, regimes_of
from nf_resnets.sweep.select import optima

SIZES = [4, 16, 64, 256, 1024, 4096]


def points_of(rates, sizes=SIZES, width=1.0):
    """Points whose range of rates as good is a factor ``width`` to either side."""
    return [
        (size, rate, rate / width, rate * width) for size, rate in zip(sizes, rates, strict=True)
    ]


def test_planted_slope_plateau_and_break_are_found():
    slope, largest = 2**-7, 2.0
    fit = regimes(points_of([min(slope * size, largest) for size in SIZES]))
    assert fit.shows == "both"
    # Powers of two, so that logarithms are exact.
    assert (fit.slope, fit.largest, fit.batch_size) == (slope, largest, 256.0)
    assert fit.chi2 == 0 and fit.freedom == 4 and fit.left_out == ()
    assert [one.log2 for one in fit.residuals] == [0] * 6


def test_a_break_between_two_batch_sizes():
    slope, largest = 0.003, 0.7
    fit = regimes(points_of([min(slope * size, largest) for size in SIZES]))
    assert (fit.shows, fit.slope, fit.largest, fit.batch_size) == (
        "both", pytest.approx(slope), pytest.approx(largest), pytest.approx(largest / slope)
    )  # fmt: skip
    # Half a step of a grid of factors of 2 is 0.5; three points are on either side.
    assert fit.slope_error == pytest.approx(0.5 / math.sqrt(3))
    assert fit.largest_error == pytest.approx(0.5 / math.sqrt(3))
    assert fit.batch_size_error == pytest.approx(0.5 * math.sqrt(2 / 3))


def test_a_purely_linear_and_a_purely_flat_curve():
    fit = regimes(points_of([0.01 * size for size in SIZES]))
    assert (fit.shows, fit.largest, fit.largest_error, fit.batch_size) == ("linear", *[None] * 3)
    assert fit.slope == pytest.approx(0.01)
    assert fit.slope_error == pytest.approx(0.5 / math.sqrt(6)) and fit.freedom == 5
    fit = regimes(points_of([0.3] * 6))
    assert (fit.shows, fit.slope, fit.slope_error, fit.batch_size) == ("saturated", *[None] * 3)
    assert fit.largest == pytest.approx(0.3)
    assert fit.largest_error == pytest.approx(0.5 / math.sqrt(6))


def test_no_curve_is_nearer_than_the_fit():
    # Against every curve of a fine lattice; the fit lies between the lattice's points, so it is
    # at least as near, up to the rounding of sums.
    generator = np.random.default_rng(1)
    a, c = np.meshgrid(np.linspace(-12, 4, 321), np.linspace(-8, 8, 321))
    both = 0
    for _ in range(60):
        count = int(generator.integers(2, 8))
        x = np.sort(generator.choice(12, count)).astype(float)
        y = np.minimum(x - 6, 0) + generator.normal(0, 2, count)
        error = generator.uniform(0.5, 2, count)
        fit = regimes([
            (2.0**x, 2.0**y, 2.0 ** (y - e), 2.0 ** (y + e))
            for x, y, e in zip(x, y, error, strict=True)
        ])  # fmt: skip
        curves = np.minimum(a[..., None] + x, c[..., None])
        least = (((y - curves) / error) ** 2).sum(-1).min()
        if fit.shows == "both":
            both += 1
            assert fit.chi2 <= least + 1e-9
        elif fit.chi2 is not None:
            # One part alone, kept because both are nearer by no more than 3.84.
            assert fit.chi2 <= least + 3.84 + 1e-9
    assert both > 10


def test_a_planted_curve_without_a_corner_is_found_and_chosen():
    largest, noise = 2.0, 100.0
    fit = regimes(points_of([largest / (1 + noise / size) for size in SIZES]))
    # The search ends with steps of 26 / 64 / 32^4 octaves; the distance is quadratic around them.
    assert (fit.smooth.largest, fit.smooth.batch_size) == pytest.approx((largest, noise), rel=1e-5)
    assert fit.smooth.chi2 == pytest.approx(0, abs=1e-9) and fit.chi2 > 1
    assert fit.form == "smooth" and fit.smooth.held_out < 1e-9 < fit.held_out
    # And a corner is chosen where there is one.
    bent = regimes(points_of([min(largest / noise * size, largest) for size in SIZES]))
    assert bent.form == "bent" and bent.held_out < 1e-9 < bent.smooth.held_out


def test_held_out_errors_are_those_of_fits_to_the_other_batch_sizes():
    points = points_of([0.01, 0.05, 0.2, 0.7, 0.9, 0.8])
    fit, errors = regimes(points), {"bent": [], "smooth": []}
    for out in points:
        rest = regimes([point for point in points if point != out])
        size, rate = out[:2]
        for form, predicted in (
            ("bent", min(rest.slope * size, rest.largest)),
            ("smooth", rest.smooth.largest / (1 + rest.smooth.batch_size / size)),
        ):
            # Half a step of a grid of factors of 2 is an error bar of half an octave.
            errors[form].append((math.log2(rate / predicted) / 0.5) ** 2)
    assert fit.held_out == pytest.approx(np.mean(errors["bent"]))
    assert fit.smooth.held_out == pytest.approx(np.mean(errors["smooth"]))
    assert fit.form == min(errors, key=lambda form: np.mean(errors[form]))


def test_no_smooth_curve_is_nearer_and_its_errors_are_those_of_least_squares():
    generator = np.random.default_rng(4)
    x, error = np.log2(SIZES), np.array([0.15, 0.3, 0.2, 0.25, 0.15, 0.3])

    def curve(x, largest, noise):
        return largest - np.logaddexp2(0, noise - x)

    draws, within = 200, []
    for draw in range(draws):
        y = curve(x, 0.0, 7.0) + error * generator.standard_normal(len(x))
        fit = regimes([
            (2.0**x, 2.0**y, 2.0 ** (y - e), 2.0 ** (y + e))
            for x, y, e in zip(x, y, error, strict=True)
        ], factor=2**0.25).smooth  # fmt: skip
        within.append([
            abs(math.log2(fit.largest)) < fit.largest_error,
            abs(math.log2(fit.batch_size) - 7) < fit.batch_size_error,
        ])  # fmt: skip
        if draw < 5:
            (largest, noise), covariance = optimize.curve_fit(
                curve, x, y, p0=(0.0, 7.0), sigma=error, absolute_sigma=True
            )
            assert (math.log2(fit.largest), math.log2(fit.batch_size)) == pytest.approx(
                (largest, noise), abs=1e-4
            )
            # Its derivatives are differences.
            assert (fit.largest_error, fit.batch_size_error) == pytest.approx(
                np.sqrt(np.diag(covariance)), rel=1e-4
            )
    # 68.27%, with four standard errors; the curve is nearly linear in its parameters.
    tolerance = 4 * math.sqrt(0.6827 * 0.3173 / draws)
    assert np.mean(within, axis=0) == pytest.approx(0.6827, abs=tolerance)


def test_batch_sizes_without_a_best_rate_are_left_out_and_named():
    points = points_of([0.01, 0.04, 0.16, 0.64], SIZES[:4])
    fit = regimes([*points, Point(1024, None, None, None), Point(8, 0.5, 0.5, 0.5, "only")])
    assert fit.shows == "linear" and len(fit.residuals) == 4
    assert [(out.batch_size, out.reason) for out in fit.left_out] == [
        (8, "only one rate, 0.5, was tried"), (1024, "no run finished")
    ]  # fmt: skip
    dead = regimes([(size, None, None, None) for size in SIZES])
    assert dead.shows == "neither" and len(dead.left_out) == 6


def test_a_best_rate_at_the_edge_is_a_bound_and_not_a_value():
    linear = points_of([0.0625, 0.25, 1.0, 4.0], SIZES[:4])
    # The grid ends at 4: taken as values these would be a plateau that is not there.
    censored = [Point(1024, 4.0, 4.0, 4.0, "highest"), Point(4096, 4.0, 4.0, 4.0, "highest")]
    assert regimes([*linear, *(point[:4] for point in censored)]).shows == "both"
    fit = regimes([*linear, *censored])
    assert (fit.shows, fit.slope) == ("linear", pytest.approx(1 / 64))
    assert [(out.batch_size, out.contradicts) for out in fit.left_out] == [
        (1024, False), (4096, False)
    ]  # fmt: skip
    assert "highest tried: only a lower bound" in fit.left_out[0].reason
    # The curve says 64 at 4096; that at least 4 is best agrees, and that at most 4 is does not.
    (out,) = regimes([*linear, Point(4096, 4.0, 4.0, 4.0, "lowest")]).left_out
    assert out.contradicts and "lowest tried: only an upper bound" in out.reason
    (out,) = regimes([*linear, Point(4, 4.0, 4.0, 4.0, "highest")]).left_out
    assert out.contradicts


def rows_of(scheme, metric, best, factor=2.0):
    """Runs of which ``best`` says the best rate of each batch size, on a grid of one factor."""
    return [
        {
            "scheme": scheme, "batch_size": size, "seed": seed, "state": "finished",
            "peak_lr": factor**k,
            metric: 0.9 - 0.01 * (k - rate) ** 2 + 1e-4 * seed,
        }
        for size, rate in best.items() for k in range(-12, 8) for seed in range(2)
    ]  # fmt: skip


def test_from_rows_to_fits():
    rows = rows_of("skipinit", "test_accuracy", {8: -6, 32: -4, 128: -2, 512: -2, 2048: -2})
    rows += rows_of("batchnorm", "test_accuracy", {8: -6, 32: -4, 128: -2, 512: 0, 2048: 2})
    skipinit, batchnorm = regimes_of(optima(rows))
    assert isinstance(skipinit, Regimes)
    assert (skipinit.group, skipinit.metric) == ({"scheme": "skipinit"}, "test_accuracy")
    assert (skipinit.shows, skipinit.slope, skipinit.largest) == ("both", 2**-9, 0.25)
    assert (batchnorm.shows, batchnorm.slope) == ("linear", 2**-9)
    # A grid of factors of 4 has error bars of one octave.
    (coarse,) = regimes_of(optima(rows_of("fixup", "test_accuracy", {8: -3, 512: 0}, factor=4)))
    assert [one.error for one in coarse.residuals] == [1.0, 1.0]
    with pytest.raises(ValueError, match="'batch_size' found; expected a field by which"):
        regimes_of(optima(rows[:1], by=("scheme",)))
