"""Augmentation on the device, inside the jitted step.

The recipe is that of He et al., "Deep Residual Learning for Image Recognition", 2016, section 4.2,
in the order of the published PyTorch pipelines: the raw image is padded with black and normalized
afterwards, so the border is ``-mean / std`` and not the zero that padding a normalized image gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from nf_resnets.data.order import seed_key

# The order of epoch e uses fold_in(seed_key, e). No run reaches these epochs: orders, images and
# mixtures have keys of their own.
_AUGMENT, _MIXUP = 0xA06_0000, 0xA06_0001
_CROP, _FLIP, _CUTOUT = 0, 1, 2


def example_keys(seed: ArrayLike, step: ArrayLike, positions: jax.Array) -> jax.Array:
    """Returns one PRNG key per image, a function of seed, step and place in the global batch only.

    Args:
      seed: integer scalar in [0, 2**32), the one given to ``epoch_order``; may be traced.
      step: integer scalar, counted from 0 over the whole run; may be traced.
      positions: ``local_positions`` of this replica, int32 [b].

    Returns:
      Typed PRNG keys [b], independent of those that draw the order.
    """
    key = jax.random.fold_in(jax.random.fold_in(seed_key(seed), _AUGMENT), step)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, positions)


def random_crop(images: jax.Array, keys: jax.Array, padding: int = 4) -> jax.Array:
    """Pads every image with zeros on all four sides and crops it back at a random offset.

    Vertical and horizontal offsets are independent and uniform on ``0 .. 2 * padding``.

    Args:
      images: [b, H, W, C] of any dtype, raw pixels.
      keys: ``example_keys``, typed PRNG keys [b].
      padding: pixels added on each side.

    Raises:
      ValueError: if the padding is negative or no less than a side, so that a crop may hold nothing
        of the image.
    """
    if not 0 <= padding < min(images.shape[1:3]):
        raise ValueError(f"padding={padding} found; expected 0 or more, less than a side.")
    side = (padding, padding)
    padded = jnp.pad(images, ((0, 0), side, side, (0, 0)))
    offsets = jax.vmap(
        lambda key: jax.random.randint(jax.random.fold_in(key, _CROP), (2,), 0, 2 * padding + 1)
    )(keys)
    one_by_one = partial(_slices, shape=images.shape[1:])
    shifted = partial(_shifted, shape=images.shape[1:])
    return jax.lax.platform_dependent(padded, offsets, cpu=one_by_one, default=shifted)


def _slices(padded: jax.Array, offsets: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    """Cuts an image of a shape out of each, which takes a TPU a round of a loop for each."""

    def crop(image: jax.Array, offset: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice(image, (offset[0], offset[1], 0), shape)

    return jax.vmap(crop)(padded, offsets)


def _shifted(padded: jax.Array, offsets: jax.Array, *, shape: tuple[int, ...]) -> jax.Array:
    """As :func:`_slices`: of all images, shifted alike, takes those whose offset that is."""
    for axis in (1, 2):
        offset = offsets[:, axis - 1].reshape(-1, 1, 1, 1)
        count = padded.shape[axis] - shape[axis - 1] + 1
        result = jax.lax.slice_in_dim(padded, 0, shape[axis - 1], axis=axis)
        for shift in range(1, count):
            moved = jax.lax.slice_in_dim(padded, shift, shift + shape[axis - 1], axis=axis)
            result = jnp.where(offset == shift, moved, result)
        padded = result
    return padded


def random_flip(images: jax.Array, keys: jax.Array) -> jax.Array:
    """Mirrors every image [b, H, W, C] left to right with probability one half."""
    flip = jax.vmap(lambda key: jax.random.bernoulli(jax.random.fold_in(key, _FLIP)))(keys)
    return jnp.where(flip[:, None, None, None], images[:, :, ::-1, :], images)


def cutout(images: jax.Array, keys: jax.Array, size: int) -> jax.Array:
    """Sets one square of every image to zero.

    The square's centre is uniform over the pixels of the image, its rows are those from
    ``row - size // 2`` to ``row - size // 2 + size - 1``, its columns likewise, and what lies
    outside the image is clipped. On normalized images zero is the mean of the training pixels.

    Args:
      images: ``[b, H, W, C]``, normalized.
      keys: as of :func:`random_crop`.
      size: pixels on each side of the square; 0 takes nothing away.

    Raises:
      ValueError: if the size is negative or above a side.

    Source: DeVries, Taylor, *Improved Regularization of Convolutional Neural Networks with Cutout*,
    2017, section 3, and its published code (the clipping at the border); 16 pixels on CIFAR-10.
    """
    rows, columns = images.shape[1:3]
    if not 0 <= size <= min(rows, columns):
        raise ValueError(f"size={size} found; expected 0 or more, no more than a side.")

    def inside(key: jax.Array) -> jax.Array:
        centre = jax.random.randint(
            jax.random.fold_in(key, _CUTOUT), (2,), 0, jnp.array([rows, columns])
        )
        start = centre - size // 2
        row = jnp.arange(rows) - start[0]
        column = jnp.arange(columns) - start[1]
        return ((row >= 0) & (row < size))[:, None] & ((column >= 0) & (column < size))[None, :]

    return jnp.where(jax.vmap(inside)(keys)[..., None], jnp.zeros((), images.dtype), images)


def normalize(
    images: ArrayLike, mean: Sequence[float] | ArrayLike, std: Sequence[float] | ArrayLike
) -> jax.Array:
    """Returns ``(images - mean) / std`` of images [..., C], mean and std [C], in float32.

    Raises:
      ValueError: if there is not one mean and std a channel, which would broadcast.
    """
    mean, std = (jnp.asarray(value, jnp.float32) for value in (mean, std))
    images = jnp.asarray(images)
    if not mean.shape == std.shape == images.shape[-1:]:
        raise ValueError(
            f"mean {mean.shape} and std {std.shape} found; expected {images.shape[-1:]}."
        )
    per_channel = (1,) * (images.ndim - 1) + images.shape[-1:]
    return (images.astype(jnp.float32) - mean.reshape(per_channel)) / std.reshape(per_channel)


class Mixture(NamedTuple):
    """How the batch of a step is mixed, the same on every replica.

    Attributes:
      fraction: ``lambda``, the fraction of an image that stays its own, float32 [].
      partners: int32 [B], for each position in the global batch that of the other image: a
        permutation, in which some may be their own partner.
    """

    fraction: jax.Array
    partners: jax.Array


def mixture(alpha: float, seed: ArrayLike, step: ArrayLike, batch_size: int) -> Mixture:
    r"""Draws how the batch of a step is mixed: ``lambda ~ Beta(alpha, alpha)`` and the partners.

    One ``lambda`` is drawn for the whole batch and the partners are a permutation of it, as in the
    published code.

    Args:
      alpha: above 0; with 1 the fraction is uniform on [0, 1].
      seed: as of :func:`example_keys`.
      step: as of :func:`example_keys`.
      batch_size: ``B``, examples in a step over all replicas.

    Source: Zhang, Cisse, Dauphin, Lopez-Paz, *mixup: Beyond Empirical Risk Minimization*, ICLR
    2018, section 2.
    """
    key = jax.random.fold_in(jax.random.fold_in(seed_key(seed), _MIXUP), step)
    fraction_key, partner_key = jax.random.split(key)
    positions = jnp.arange(batch_size, dtype=jnp.int32)
    return Mixture(
        _symmetric_beta(fraction_key, alpha), jax.random.permutation(partner_key, positions)
    )


# Of so many pairs none is taken with a probability of 10**-42.
_PAIRS = 64


def _symmetric_beta(key: jax.Array, alpha: float) -> jax.Array:
    """Draws from Beta(alpha, alpha); ``jax.random.beta`` takes six seconds to compile on a CPU.

    Source: Devroye, *Non-Uniform Random Variate Generation*, 1986, section IX.3: Ulrich's polar
    method, which needs ``alpha >= 1/2``, and Joehnk's, which rejects few pairs below that.
    """
    if alpha >= 0.5:
        radius, angle = jax.random.uniform(key, (2,))
        power = 2 / (2 * alpha - 1) if alpha > 0.5 else float("inf")
        return 0.5 + 0.5 * jnp.sqrt(1 - radius**power) * jnp.cos(2 * jnp.pi * angle)
    # The logarithms of u**(1 / alpha), which in float32 itself may be zero.
    x, y = -jax.random.exponential(key, (2, _PAIRS)) / alpha
    total = jnp.logaddexp(x, y)
    taken = jnp.argmax(total <= 0)
    return jnp.exp(x - total)[taken]
