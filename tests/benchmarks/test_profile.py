"""The profile of a step."""

from __future__ import annotations

import pytest

from benchmarks.profile import largest, profile
from nf_resnets.models import onednn


@pytest.mark.skipif(not onednn.available(), reason="no call of oneDNN in this jaxlib")
def test_a_profile_tells_the_passes_of_convolutions_apart():
    of_a_step = profile("wrn-10-1", 2, 8, False)
    took = of_a_step["operations_ms"]
    assert {name for name in took if name.startswith("convolution")} == {
        "convolution", "convolution, gradient of the images", "convolution, gradient of the kernel"
    }  # fmt: skip
    assert took["convolution"] > 0


def test_small_operations_are_added_up():
    took = {"add": 1.0, "conv": 198.0, "copy": 1.0, "sum": 10.0}
    assert list(largest(took).items()) == [("conv", 198.0), ("sum", 10.0), ("others", 2.0)]
