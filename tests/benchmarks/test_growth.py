"""Exponents of costs: what they are of, and that each cost is one of the work it names."""

import pytest

from benchmarks import growth


def test_the_exponent_is_that_of_the_largest_sizes():
    found = growth.exponent({1: 5.0, 10: 5.0, 100: 50.0, 1000: 5000.0})
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 0.0, 2.0))


@pytest.mark.slow
def test_depth_costs_memory_and_less_of_it_recomputed():
    costs = {layers: growth.depth(layers) for layers in (10, 100)}
    kept, recomputed = (
        growth.exponent({n: one[f"memory{form}, MiB"] for n, one in costs.items()}).value
        for form in ("", " with remat")
    )
    # 3 blocks and 48 of them; at this depth the images' own part of the memory is not small yet.
    assert 0.5 < kept < 1.05 and recomputed < kept
