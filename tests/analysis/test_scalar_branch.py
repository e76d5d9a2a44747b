"""Theorem 4 on every branch of a grid of exponents, and its exact update against fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from nf_resnets.analysis import scalar_branch

STEP = Fraction(1, 12)
# A step of the grid changes Delta F's exponent by 2/12, so half of that tells two exponents apart.
# The slope between the last two depths is nearer: a term of lower order is at most
# (m - 1) L**(-1/6) of the leading one, at L = 10**5.5 three times 0.12, and bends it by 0.044.
APART = 1 / 12
VALUES = [0, STEP, 2 * STEP, 3 * STEP, 4 * STEP, 6 * STEP, 8 * STEP, 1, math.inf]


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_update_is_of_order_eta_over_L_if_and_only_if_equation_15_holds(m):
    found = scalar_branch.theorem_4(scalar_branch.grid(VALUES, m))
    theta_eta_over_L = np.abs(found.update - 1) < APART
    equation_15 = np.abs(found.left_out - 0.5) < APART / 2
    np.testing.assert_array_equal(theta_eta_over_L, equation_15)
    # Both kinds of branches are there, so that the equivalence says something.
    assert 5 < theta_eta_over_L.sum() < len(theta_eta_over_L) - 5


@pytest.mark.parametrize("m", [2, 3, 4])
def test_leaving_out_another_layer_than_the_smallest_breaks_the_equivalence(m):
    # The negative control: the theorem with "the first layer" instead of "the smallest".
    exponents = scalar_branch.grid(VALUES, m)
    found = scalar_branch.theorem_4(exponents)
    theta_eta_over_L = np.abs(found.update - 1) < APART
    wrong = np.abs(exponents[:, 1:].sum(axis=1) - 0.5) < APART / 2
    assert (theta_eta_over_L != wrong).any()


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_exponents_are_those_of_the_closed_form(m):
    values = [p for p in VALUES if p != math.inf]
    exponents = scalar_branch.grid(values, m)
    found = scalar_branch.theorem_4(exponents)
    left_out = exponents.sum(axis=1) - exponents.max(axis=1)
    # A single power of L: only float64's rounding.
    np.testing.assert_allclose(found.left_out, left_out, atol=1e-9)
    np.testing.assert_allclose(found.update, 2 * left_out, atol=0.05)


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("zero_last", [True, False])
def test_fixups_choice_satisfies_it_and_others_do_not(m, zero_last):
    p = scalar_branch.fixup_exponents(m, zero_last=zero_last)
    wrong = [[0.0] * m, [2 * q for q in p], [q / 2 for q in p], [1.0] * m]
    found = scalar_branch.theorem_4([p, *wrong])
    # All terms of the sum are equal: only eta's second order and rounding.
    assert found.update[0] == pytest.approx(1, abs=1e-6)
    assert found.left_out[0] == pytest.approx(0.5, abs=1e-9)
    assert (np.abs(found.update[1:] - 1) > APART).all()


def test_a_layer_that_grows_with_L_is_allowed():
    # a_1 = L**0.25 is made up for by a_2 = L**-0.75; the smallest is a_3.
    found = scalar_branch.theorem_4([(-0.25, 0.75, 2.0), (-0.25, 0.5, 2.0)], learning_rate=1e-12)
    np.testing.assert_allclose(found.update, [1.0, 0.5], atol=1e-3)


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_update_is_exact(m):
    rng = np.random.default_rng(m)
    for _ in range(20):
        a = [Fraction(int(n), 64) for n in rng.integers(0, 65, m)]
        x, gradient, eta = (Fraction(int(n), 32) for n in rng.integers(1, 65, 3))
        after = math.prod(
            a[i] - eta * gradient * math.prod(a[:i] + a[i + 1 :]) * x for i in range(m)
        )
        exact = (after - math.prod(a)) * x
        found = scalar_branch.scalar_update(
            [float(q) for q in a], float(eta), x=float(x), gradient=float(gradient)
        )
        # Up to 15 terms of either sign, none larger than 4**4, each rounded to 1e-16.
        assert float(found) == pytest.approx(float(exact), rel=1e-12, abs=1e-12)


def test_the_first_order_is_equation_17():
    a, eta, x, gradient = np.array([0.3, 0.7, 1.1]), 1e-8, 1.3, -0.4
    expected = -eta * gradient * (a.prod() * x) ** 2 * (1 / a**2).sum()
    found = scalar_branch.scalar_update(a, eta, x=x, gradient=gradient)
    # The second order is eta times numbers of order 1.
    assert float(found) == pytest.approx(expected, rel=1e-7)


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="m=1 found"):
        scalar_branch.fixup_exponents(1)
    with pytest.raises(ValueError, match=r"shape \[3\] found"):
        scalar_branch.theorem_4([0.0, 0.5, 1.0])
