"""A batch of the digits, and parameters without a draw, for the tests of the analyses."""

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data
from tests.models.trees import shapes


def digits(size):
    """Normalized images ``[size, 8, 8, 1]`` and labels ``[size]`` of the training split."""
    loaded = data.load("digits")
    pixels = loaded.train.images[:size].astype(np.float32)
    images = (pixels - np.float32(loaded.mean)) / np.float32(loaded.std)
    return jnp.asarray(images), jnp.asarray(loaded.train.labels[:size])


def undrawn(model):
    """Parameters for images as :func:`digits`: multipliers 1, all else 0."""
    params = dict(shapes(model, image_shape=(8, 8, 1), batch=1)["params"])

    def constant(path, leaf):
        return np.full(leaf.shape, float(path[-1].key == "multiplier"), leaf.dtype)

    return jax.tree_util.tree_map_with_path(constant, params)
