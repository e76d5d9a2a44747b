"""A batch of the digits for the tests of the analyses."""

import jax.numpy as jnp
import numpy as np

from nf_resnets import data


def digits(size):
    """Normalised images ``[size, 8, 8, 1]`` and labels ``[size]`` of the training split."""
    loaded = data.load("digits")
    pixels = loaded.train.images[:size].astype(np.float32)
    images = (pixels - np.float32(loaded.mean)) / np.float32(loaded.std)
    return jnp.asarray(images), jnp.asarray(loaded.train.labels[:size])
