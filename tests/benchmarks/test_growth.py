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
    # The images' own part, and groups of a whole number of blocks, hide a tenth of the exponent.
    assert kept == pytest.approx(1, abs=0.1) and recomputed == pytest.approx(0.5, abs=0.1)
