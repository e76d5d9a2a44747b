"""The data set on the device, and the batch of one step as a pure function of (seed, step)."""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from nf_resnets.data.augment import example_keys, normalize, random_crop, random_flip
from nf_resnets.data.order import batch_indices, local_positions
from nf_resnets.data.sources import Dataset, Split


@flax.struct.dataclass
class DeviceData:
    """One split as arrays that lie on the device.

    Attributes:
      images: raw pixels, uint8 [N, H, W, C].
      labels: int32 [N].
      mean: float32 [C], of the training pixels.
      std: float32 [C], of the training pixels.
    """

    images: jax.Array | np.ndarray
    labels: jax.Array | np.ndarray
    mean: jax.Array | np.ndarray
    std: jax.Array | np.ndarray

    @classmethod
    def of(cls, dataset: Dataset, split: Split) -> DeviceData:
        """Takes one split of a data set, with the statistics of its training split."""
        return cls(
            images=split.images,
            labels=split.labels,
            mean=np.asarray(dataset.mean, np.float32),
            std=np.asarray(dataset.std, np.float32),
        )


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """What is done to the training images.

    Attributes:
      padding: pixels of zeros on each side before the random crop; 0 for no crop.
      flip: whether half of the images are mirrored left to right.
    """

    padding: int = 0
    flip: bool = False


# Crop and flip fold smaller numbers into an image's key.
_DROPOUT = 1_000

CIFAR_AUGMENTATION = Augmentation(padding=4, flip=True)
"""The recipe of He et al. 2016, section 4.2."""


def training_batch(
    data: DeviceData,
    order: jax.Array,
    seed: ArrayLike,
    step: ArrayLike,
    *,
    batch_size: int,
    augmentation: Augmentation = Augmentation(),
    axis_name: str | None = None,
) -> dict[str, jax.Array]:
    """Returns this replica's part of the batch of a step: gathered, augmented, normalised.

    Args:
      data: the training split, the same on every replica.
      order: the epoch's order, int32 [N] (see ``epoch_order``).
      seed: the run's seed; it may be traced.
      step: the global step, counted from 0; it may be traced.
      batch_size: examples in a step over all replicas.
      augmentation: what is done to the images.
      axis_name: the mapped axis over which the batch is split; None if it is not.

    Returns:
      ``image`` float32 [b, H, W, C], ``label`` int32 [b], and ``keys`` [b], a PRNG key for each
      image's dropout; ``b = batch_size / D``.

    Raises:
      ValueError: if the batch does not fit the split or does not divide over the replicas.
    """
    index = batch_indices(order, step, batch_size, axis_name)
    images = jnp.asarray(data.images)[index]
    keys = example_keys(seed, step, local_positions(batch_size, axis_name))
    if augmentation.padding or augmentation.flip:
        if augmentation.padding:
            images = random_crop(images, keys, augmentation.padding)
        if augmentation.flip:
            images = random_flip(images, keys)
    return {
        "image": normalize(images, jnp.asarray(data.mean), jnp.asarray(data.std)),
        "label": jnp.asarray(data.labels)[index],
        "keys": jax.vmap(jax.random.fold_in, (0, None))(keys, _DROPOUT),
    }


__all__ = ["CIFAR_AUGMENTATION", "Augmentation", "DeviceData", "training_batch"]
