"""Image files as pictures of RGB, and pictures brought to a size."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np


def decode(path: Path, encoded: bytes) -> Any:
    """Decodes an image file to a Pillow image of mode RGB.

    The picture is turned as its camera says, and laid on white where it is transparent. Of 16 bits
    a channel the upper eight are kept.

    Args:
      path: of the file, for messages.
      encoded: its bytes.

    Raises:
      ValueError: if it is no image, is damaged, or its range of values is unknown.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            # What Pillow warns of from so many pixels on, it refuses from twice as many.
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(encoded)) as opened:
                picture = ImageOps.exif_transpose(opened)
                # Whether it can be decoded is known once it has been.
                picture.load()
    except UnidentifiedImageError:
        raise ValueError(
            f"{path} is no image that can be read; expected a PNG, a JPEG or the like."
        ) from None
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}.") from None
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.mode == "I" and opened.format == "PPM":
        # Of a PGM with more than 8 bits Pillow makes this mode, with 65,535 for white.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise ValueError(
            f"{path} has pixels of 32 bits (mode {picture.mode}), of which white is not known; "
            "expected 8 or 16 bits a channel."
        )
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def fitted(picture: Any, height: int, width: int, *, crop: float = 1.0) -> Any:
    """Crops the middle of a Pillow image, and resizes it with a bicubic filter.

    Args:
      picture: the image.
      height: in pixels, of the result.
      width: in pixels, of the result; the middle has its proportions to the height.
      crop: the fraction of that middle that is used.
    """
    from PIL import Image, ImageOps

    return ImageOps.fit(
        picture, (width, height), method=Image.Resampling.BICUBIC, bleed=(1 - crop) / 2
    )


__all__ = ["decode", "fitted"]
