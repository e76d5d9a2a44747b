"""What RescaleNet's multipliers and weights are read from."""

import numpy as np
import pytest

from experiments.rescale_multipliers import blocks_of

TREE = {
    "stem": {"kernel": np.full((3, 3, 1, 4), 9.0)},
    "stage_1": {
        "first": {
            "conv_1": {"kernel": np.full((1, 1, 2, 2), 3.0)},
            "conv_2": {"kernel": np.full((1, 1, 2, 2), 4.0)},
            "multiplier": np.float32(2.0),
        },
        "rest": {
            "conv_1": {"kernel": np.full((1, 1, 1, 2, 2), 1.0)},
            "conv_2": {"kernel": np.full((1, 1, 1, 2, 2), 0.5)},
            "multiplier": np.array([5.0], np.float32),
        },
    },
    "head": {"kernel": np.ones((4, 10)), "bias": np.zeros(10)},
}


def test_multiplier_norm_and_gain_of_every_block():
    first, second = blocks_of(TREE)
    # Kernels of four equal entries have norms of twice the entry: 6 and 8, then 2 and 1.
    assert first == pytest.approx({"block": 1, "multiplier": 2, "weight_norm": 10, "gain": 96})
    assert second == pytest.approx({"block": 2, "multiplier": 5, "weight_norm": 5**0.5, "gain": 10})
