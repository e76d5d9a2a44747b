"""Theorem 4 of the Fixup paper on every branch of a grid of exponents.

A branch of ``m`` layers is ``F(x) = a_1 ... a_m x`` with ``a_i = L**-p_i``: every Theta is an
exponent, read off as the slope between two large ``L``.
"""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from experiments import theory_updates

DEPTHS = np.array([1e5, 1e6])
STEP = Fraction(1, 12)
# A step of the grid changes Delta F's exponent by 2/12, so half of that tells two exponents apart.
# The slope between the last two depths is nearer: a term of lower order is at most
# (m - 1) L**(-1/6) of the leading one, at L = 10**5.5 three times 0.12, and bends it by 0.044.
APART = 1 / 12
VALUES = [0, STEP, 2 * STEP, 3 * STEP, 4 * STEP, 6 * STEP, 8 * STEP, 1, math.inf]


def grid(m, values=VALUES):
    return np.array([[float(p) for p in row] for row in itertools.product(values, repeat=m)])


def scalar_update(layers, rate, x=1.0, gradient=1.0):
    """``Delta F`` by a step with equation 16's ``g_i = (dl / dF) (prod_{k != i} a_k) x``.

    It is summed over the sets of layers that move, so that nothing cancels.
    """
    a = np.asarray(layers, np.float64)
    m = a.shape[-1]
    moves = [-rate * gradient * x * np.delete(a, i, axis=-1).prod(axis=-1) for i in range(m)]
    return sum(
        x * np.prod([moves[i] if i in moved else a[..., i] for i in range(m)], axis=0)
        for size in range(1, m + 1)
        for moved in itertools.combinations(range(m), size)
    )


def slope(values):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values[1] == 0, np.inf, -np.diff(np.log10(np.abs(values)), axis=0)[0])


def theorem_4(exponents, rate=1e-9):
    """The exponents of ``|Delta F| / eta`` and of the product of all layers but the smallest."""
    p = np.asarray(exponents, np.float64)
    a = DEPTHS.reshape(2, 1, 1) ** -p
    return slope(scalar_update(a, rate)), slope(np.sort(a, axis=-1)[..., 1:].prod(axis=-1))


def fixups(m, zero_last):
    return (*(1 / (2 * m - 2),) * (m - 1), math.inf if zero_last else 1 / (2 * m - 2))


@pytest.mark.parametrize("m", [2, 3, 4])
def test_the_update_is_of_order_eta_over_L_if_and_only_if_equation_15_holds(m):
    update, left_out = theorem_4(grid(m))
    theta_eta_over_L = np.abs(update - 1) < APART
    equation_15 = np.abs(left_out - 0.5) < APART / 2
    np.testing.assert_array_equal(theta_eta_over_L, equation_15)
    # Both kinds of branches are there, so that the equivalence says something.
    assert 5 < theta_eta_over_L.sum() < len(theta_eta_over_L) - 5


def test_the_experiments_map_is_the_closed_form():
    for row in theory_updates.exponents(8):
        # Delta F = -eta (a_1^2 + a_2^2) to first order: the larger layer's.
        assert float(row["value"]) == pytest.approx(
            2 * min(float(row["x"]), float(row["y"])), abs=0.05
        )


@pytest.mark.parametrize("m", [2, 3, 4])
@pytest.mark.parametrize("zero_last", [True, False])
def test_fixups_choice_satisfies_it_and_others_do_not(m, zero_last):
    p = fixups(m, zero_last)
    wrong = [[0.0] * m, [2 * q for q in p], [q / 2 for q in p], [1.0] * m]
    update, left_out = theorem_4([p, *wrong])
    # All terms of the sum are equal: only eta's second order and rounding.
    assert update[0] == pytest.approx(1, abs=1e-6)
    assert left_out[0] == pytest.approx(0.5, abs=1e-9)
    assert (np.abs(update[1:] - 1) > APART).all()


def test_the_first_order_is_equation_17():
    a, eta, x, gradient = np.array([0.3, 0.7, 1.1]), 1e-8, 1.3, -0.4
    expected = -eta * gradient * (a.prod() * x) ** 2 * (1 / a**2).sum()
    found = scalar_update(a, eta, x=x, gradient=gradient)
    # The second order is eta times numbers of order 1.
    assert float(found) == pytest.approx(expected, rel=1e-7)
