"""Predictions from image files in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import jax
import numpy as np

from nf_resnets.trained import predict as prediction
from nf_resnets.trained.file import Trained, TrainedError, load
from nf_resnets.trained.pictures import read_picture


def predict(
    network: Trained | str | os.PathLike[str],
    images: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | np.ndarray,
) -> list[tuple[str, float]]:
    """The likeliest class of each image, with its probability.

    :func:`nf_resnets.trained.predict.predict` gives the probabilities of all classes.

    Args:
      network: as :func:`nf_resnets.fit` returns it, or its file.
      images: image files, or raw pixels ``[B, H, W, C]``. Files are cropped in the middle, resized,
        and made grey or coloured as the network needs them.

    Raises:
      TrainedError: if the network does not take images, an image cannot be read, which is named, or
        pixels are scaled to 0 to 1 or to mean 0 where the network takes raw ones.
    """
    if not isinstance(network, Trained):
        network = load(network)
    inputs = prediction.images_of(network)
    if isinstance(images, str | os.PathLike):
        images = [images]
    if isinstance(images, np.ndarray | jax.Array):
        images = np.asarray(images)
        _refuse_scaled(images, inputs.max_value)
    else:
        files = list(images) if isinstance(images, Iterable) else [images]
        for file in files:
            if not isinstance(file, str | os.PathLike):
                raise TrainedError(
                    f"images has a {type(file).__name__}; expected image files, or raw pixels "
                    f"[B, {', '.join(map(str, inputs.shape))}] in one array."
                )
        images = np.array([read_picture(file, inputs) for file in files], np.float32)
        images = images.reshape(-1, *inputs.shape)
    found = prediction.predict(network, images)
    return [prediction.ranked(each, inputs.class_names, 1)[0] for each in found]


def _refuse_scaled(pixels: np.ndarray, max_value: float) -> None:
    """Refuses pixels of 0 to 1, or about 0, where the network takes raw ones, as of 0 to 255."""
    if max_value < 8 or pixels.dtype.kind != "f" or not pixels.size:
        return
    low, high = float(pixels.min()), float(pixels.max())
    if low < 0 or 0 < high <= 1:
        raise TrainedError(
            f"images with pixels from {low:.3g} to {high:.3g} found, which look scaled; expected "
            f"raw ones, from 0 to {max_value:g}, as the network was trained on."
        )


__all__ = ["predict"]
