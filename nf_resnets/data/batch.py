"""The data set on the device, and the batch of one step as a pure function of (seed, step)."""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from nf_resnets.data.augment import (
    cutout,
    example_keys,
    mixture,
    normalize,
    random_crop,
    random_flip,
)
from nf_resnets.data.dataset import Dataset, Split
from nf_resnets.data.order import batch_indices, local_positions


@flax.struct.dataclass
class DeviceData:
    """One split as arrays that lie on the device.

    Attributes:
      images: raw pixels, uint8 [N, H, W, C], or [N, H W C]. An image in a row of its own is read as
        it lies: a TPU would fill three channels, or a side, up to 128 places, and copy the whole
        split to do so.
      labels: int32 [N].
      mean: float32 [C], of the training pixels.
      std: float32 [C], of the training pixels.
      shape: ``(H, W, C)`` of images that lie in rows.
    """

    images: jax.Array | np.ndarray
    labels: jax.Array | np.ndarray
    mean: jax.Array | np.ndarray
    std: jax.Array | np.ndarray
    shape: tuple[int, ...] = flax.struct.field(pytree_node=False, default=())

    @classmethod
    def of(cls, dataset: Dataset, split: Split) -> DeviceData:
        """Takes one split of a data set, with the statistics of its training split."""
        return cls(
            images=split.images.reshape(len(split.images), -1),
            labels=split.labels,
            mean=np.asarray(dataset.mean, np.float32),
            std=np.asarray(dataset.std, np.float32),
            shape=split.images.shape[1:],
        )

    def take(self, index: jax.Array) -> jax.Array:
        """The images [b, H, W, C] at some places, int32 [b]."""
        images = jnp.asarray(self.images)[index]
        return images.reshape(*index.shape, *self.shape) if self.shape else images


@dataclasses.dataclass(frozen=True)
class Augmentation:
    """How the training images are augmented.

    Attributes:
      padding: pixels of zeros on each side before the random crop; 0 for no crop.
      flip: whether half of the images are mirrored left to right.
      mixup: ``alpha`` of the Beta distribution of the fractions by which images are mixed with each
        other; 0 for no mixing.
      cutout: pixels on each side of the square that is taken away from every image; 0 for none.
    """

    padding: int = 0
    flip: bool = False
    mixup: float = 0.0
    cutout: int = 0


# Crop, flip and cutout fold smaller numbers into an image's key.
_DROPOUT = 1_000


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
    """Returns this replica's part of the batch of a step: gathered, augmented, normalized, mixed.

    The images are cropped and flipped as raw pixels, then normalized; squares are taken away after
    that, as zeros, and mixed are the images that all this has been done to.

    Args:
      data: the training split, the same on every replica.
      order: the epoch's order, int32 [N] (see ``epoch_order``).
      seed: the run's seed; it may be traced.
      step: the global step, counted from 0; it may be traced.
      batch_size: examples in a step over all replicas.
      augmentation: of the images.
      axis_name: as of :func:`local_positions`.

    Returns:
      ``image`` float32 [b, H, W, C], ``label`` int32 [b], and ``keys`` [b], a PRNG key for each
      image's dropout; ``b = batch_size / D``. With mixup also ``other_label`` int32 [b], that of
      the image that each was mixed with, and ``fraction`` float32 [b], how much of it is its own.

    Raises:
      ValueError: if the batch does not fit the split or does not divide over the replicas.
    """
    index = batch_indices(jnp.asarray(order), step, batch_size, axis_name)
    images = data.take(index)
    keys = example_keys(seed, step, local_positions(batch_size, axis_name))
    if augmentation.padding:
        images = random_crop(images, keys, augmentation.padding)
    if augmentation.flip:
        images = random_flip(images, keys)
    images = normalize(images, data.mean, data.std)
    if augmentation.cutout:
        images = cutout(images, keys, augmentation.cutout)
    batch = {
        "image": images,
        "label": jnp.asarray(data.labels)[index],
        "keys": jax.vmap(jax.random.fold_in, (0, None))(keys, _DROPOUT),
    }
    if not augmentation.mixup:
        return batch
    return mix(batch, augmentation.mixup, seed, step, batch_size=batch_size, axis_name=axis_name)


def mix(
    batch: dict[str, jax.Array], alpha: float, seed: ArrayLike, step: ArrayLike, *,
    batch_size: int, axis_name: str | None,
) -> dict[str, jax.Array]:  # fmt: skip
    """Mixes every image of this replica's part with another one of the whole batch."""
    fraction, partners = mixture(alpha, seed, step, batch_size)
    partners = partners[local_positions(batch_size, axis_name)]
    images, labels = others = batch["image"], batch["label"]
    if partners.shape[0] != batch_size:
        # The partners may be other replicas' images, and the numbers are those of one device.
        others = jax.lax.all_gather(others, axis_name, tiled=True)
    other_images, other_labels = (each[partners] for each in others)
    return {
        **batch,
        "image": fraction * images + (1 - fraction) * other_images,
        "other_label": other_labels,
        "fraction": jnp.full(labels.shape, fraction),
    }
