"""Parameters without a draw, for the tests of the analyses."""

import jax
import numpy as np

from tests.models.trees import shapes


def undrawn(model):
    """Parameters for images of 8x8 digits: multipliers 1, all else 0."""
    params = dict(shapes(model, image_shape=(8, 8, 1), batch=1)["params"])

    def constant(path, leaf):
        return np.full(leaf.shape, float(path[-1].key == "multiplier"), leaf.dtype)

    return jax.tree_util.tree_map_with_path(constant, params)
