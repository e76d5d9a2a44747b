"""Cutout: a square of every image is taken away."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from nf_resnets.data.augment import check_batch

# Crop and flip fold 0 and 1 into an image's key.
_CUTOUT = 2


def cutout(images: jax.Array, keys: jax.Array, size: int) -> jax.Array:
    """Sets one square of every image to zero.

    The square's centre is uniform over the pixels of the image, its rows are those from
    ``row - size // 2`` to ``row - size // 2 + size - 1``, its columns likewise, and what lies
    outside the image is clipped: squares near the border are smaller. On normalised images zero is
    the mean of the training pixels.

    Args:
      images: ``[b, H, W, C]``, normalised.
      keys: :func:`nf_resnets.data.example_keys`, typed PRNG keys ``[b]``; crop and flip may be
        given the same keys, since they draw from other folds of them.
      size: pixels on each side of the square; 0 takes nothing away.

    Returns:
      ``[b, H, W, C]`` of the dtype of ``images``.

    Raises:
      ValueError: if the size is negative or the shapes do not fit.

    Source: DeVries, Taylor, *Improved Regularization of Convolutional Neural Networks with Cutout*,
    2017, section 3, and its published code (the clipping at the border); 16 pixels on CIFAR-10.

    Example:
      >>> found = cutout(jnp.ones((1, 5, 5, 1)), jax.random.split(jax.random.key(2), 1), size=3)
      >>> int((found == 0).sum()) in (9, 6, 4)  # in the middle, at a side, in a corner
      True
    """
    if size < 0:
        raise ValueError(f"size must be at least 0 pixels, got {size}.")
    check_batch(images, keys)
    rows, columns = images.shape[1:3]

    def inside(key: jax.Array) -> jax.Array:
        centre = jax.random.randint(
            jax.random.fold_in(key, _CUTOUT), (2,), 0, jnp.array([rows, columns])
        )
        start = centre - size // 2
        row = jnp.arange(rows) - start[0]
        column = jnp.arange(columns) - start[1]
        return ((row >= 0) & (row < size))[:, None] & ((column >= 0) & (column < size))[None, :]

    return jnp.where(jax.vmap(inside)(keys)[..., None], jnp.zeros((), images.dtype), images)


__all__ = ["cutout"]
