"""Image files as the raw pixels that a network was trained on."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nf_resnets import places
from nf_resnets.data.pictures import decode, fitted
from nf_resnets.trained.file import TrainedError, read
from nf_resnets.trained.inputs import Images


def read_picture(
    path: str | os.PathLike[str], inputs: Images, *, invert: bool = False
) -> np.ndarray:
    """Reads an image file, and brings it to the shape and the scale that a network takes.

    The picture is turned as its camera says, laid on white where it is transparent, made grey or
    coloured as the network needs it, cropped in the middle to the network's proportions and
    ``inputs.crop``, and resized with a bicubic filter, which averages where pixels get fewer. White
    is ``inputs.max_value``.

    Args:
      path: of a file in one of :data:`nf_resnets.data.pictures.FORMATS`.
      inputs: what the network takes.
      invert: whether dark and light change places: the handwritten digits are light on black.

    Returns:
      Raw pixels, float32 ``[H, W, C]``.

    Raises:
      TrainedError: if there is no such file, it is no image, or its range of values is unknown.
    """
    path, encoded = read(path, "an image file")
    try:
        picture = decode(path, encoded)
    except ValueError as error:
        raise TrainedError(str(error)) from None
    height, width, channels = inputs.shape
    picture = picture.convert("L" if channels == 1 else "RGB")
    picture = fitted(picture, height, width, crop=inputs.crop)
    pixels = np.asarray(picture, np.float32).reshape(inputs.shape) / 255
    return np.float32(inputs.max_value) * (1 - pixels if invert else pixels)


def read_pictures(
    paths: Sequence[str | os.PathLike[str]], inputs: Images, *, invert: bool = False
) -> tuple[np.ndarray, list[int], list[TrainedError]]:
    """Reads several; what cannot be read does not keep the others from it.

    Returns raw pixels ``[n, H, W, C]``, their indices in ``paths``, and the other files' faults.
    """
    found, indices, faults = [], [], []
    for index, path in enumerate(paths):
        try:
            found.append(read_picture(path, inputs, invert=invert))
            indices.append(index)
        except TrainedError as fault:
            faults.append(fault)
    return np.array(found, np.float32).reshape(-1, *inputs.shape), indices, faults


def write_picture(path: str | os.PathLike[str], pixels: np.ndarray, inputs: Images) -> None:
    """Writes raw pixels ``[H, W, C]`` as a PNG, which comes back to half a grey level.

    Example:
      >>> import tempfile
      >>> from pathlib import Path
      >>> from nf_resnets.trained.inputs import Images
      >>> inputs = Images((8, 8, 1), (4.9,), (6.0,), 16.0, class_names=("cat", "dog"))
      >>> path = Path(tempfile.mkdtemp(), "picture.png")
      >>> write_picture(path, np.full((8, 8, 1), 16.0), inputs)
      >>> float(read_picture(path, inputs).min())
      16.0
    """
    from PIL import Image

    levels = np.rint(np.asarray(pixels, np.float64) * (255 / inputs.max_value)).astype(np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(levels[..., 0] if levels.shape[-1] == 1 else levels).save(encoded, format="PNG")
    places.write_whole(Path(path), encoded.getvalue(), overwrite=True)


__all__ = ["read_picture", "read_pictures", "write_picture"]
