"""What Fixup's multipliers are measured by."""

import jax
import numpy as np
import pytest

from experiments.fixup_multipliers import LOOKED_AT, looked_at
from tests.experiments.test_rescale_multipliers import TREE


def test_means_over_layers_and_branches():
    # A gradient of half the weight has a cosine of 1; the mean includes the layer at a right angle.
    gradient = jax.tree.map(lambda leaf: np.asarray(leaf) / 2, TREE)
    across = np.array([1.0, -1.0, 1.0, -1.0]).reshape(1, 1, 2, 2)
    gradient["stage_1"]["first"]["conv_1"]["kernel"] = 30 * across
    # Norms of 6, 8, 2 and 1, of the gradient 60, 4, 1 and 1/2; float64, to rounding.
    expected = (17 / 4, 7 / 2, 3 / 4, (10 + 3 * 0.5) / 4)
    found = looked_at(TREE, gradient)
    assert found == pytest.approx(dict(zip(LOOKED_AT, expected, strict=True)))
