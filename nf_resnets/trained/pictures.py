"""Image files as the raw pixels that a network was trained on."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image

from nf_resnets import places
from nf_resnets.data.pictures import decode, fitted
from nf_resnets.trained.inputs import Images


def read_picture(
    path: str | os.PathLike[str], inputs: Images, *, invert: bool = False
) -> np.ndarray:
    """Reads an image file, and brings it to the shape and the scale that a network takes.

    The picture is turned as its camera says, laid on white where it is transparent, cropped in the
    middle to the network's proportions and ``inputs.crop``, and resized with a bicubic filter.

    Args:
      path: of a file in one of :data:`nf_resnets.data.pictures.FORMATS`.
      inputs: those of the network.
      invert: whether dark and light change places: the handwritten digits are light on black.

    Returns:
      Raw pixels, float32 ``[H, W, C]``.
    """
    height, width, channels = inputs.shape
    picture = decode(Path(path), places.read_file(path)).convert("L" if channels == 1 else "RGB")
    picture = fitted(picture, height, width, crop=inputs.crop)
    pixels = np.asarray(picture, np.float32).reshape(inputs.shape) / 255
    return np.float32(inputs.max_value) * (1 - pixels if invert else pixels)


def write_picture(path: str | os.PathLike[str], pixels: np.ndarray, inputs: Images) -> None:
    """Writes raw pixels ``[H, W, C]`` as a PNG, which comes back to half a grey level."""
    levels = np.rint(np.asarray(pixels, np.float64) * (255 / inputs.max_value)).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels).save(encoded, format="PNG")
    places.write_whole(Path(path), encoded.getvalue(), overwrite=True)
