"""Exponents of costs: what they are of, and that each cost is one of the work it names."""

import pytest

from benchmarks import growth


def test_the_exponent_is_that_of_the_largest_sizes():
    found = growth.exponent({1: 5.0, 10: 5.0, 100: 50.0, 1000: 5000.0})
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 0.0, 2.0))


@pytest.mark.slow
def test_activations_grow_as_the_depth_and_recomputed_as_its_root():
    costs = {layers: growth.activations(layers) for layers in (100, 1000)}
    kept, recomputed = (
        growth.exponent({n: one[f"activations{form}, MiB"] for n, one in costs.items()}).value
        for form in growth.FORMS
    )
    # What does not grow, such as the images' own part, lowers both; 0.99 and 0.39 were seen.
    assert 0.9 < kept <= 1.01 and 0.3 < recomputed <= 0.51
