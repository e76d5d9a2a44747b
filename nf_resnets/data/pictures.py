"""Image files as pictures of RGB, and pictures brought to a size."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF")
"""What files may hold, whatever their names say. Pillow knows others that start programs: EPS."""

LARGEST = 4096
"""Pixels of a side. Images of more are refused, whatever asks for them, before they take memory."""


def check_sides(what: str, *sides: Any) -> None:
    """Refuses what are no numbers of pixels, or larger ones than an image's sides may be.

    Raises:
      ValueError: that begins with ``what``, which says what stated them.
    """
    for side in sides:
        if not isinstance(side, int | np.integer) or not 1 <= side <= LARGEST:
            raise ValueError(f"{what} found; expected 1 to {LARGEST:,} pixels a side.")


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
    from PIL import UnidentifiedImageError

    try:
        return _decoded(encoded)
    except UnidentifiedImageError:
        what = f"is no image that can be read; expected one of {', '.join(FORMATS)}"
    except Exception as error:  # whatever decoders stumble over in damaged files
        reason = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
        what = f"cannot be read as an image: {reason}"
    raise ValueError(f"{path} {what}.")


def _decoded(encoded: bytes) -> Any:
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        # Of damage that it can read around; and of many pixels: twice as many it refuses.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as opened:
            picture = ImageOps.exif_transpose(opened)
            # Whether it can be decoded is known once it has been.
            picture.load()
    if picture.mode.startswith("I;16"):
        picture = Image.fromarray((np.asarray(picture).astype(np.uint16) >> 8).astype(np.uint8))
    if picture.mode == "I" and opened.format == "PPM":
        # Of a PGM with more than 8 bits Pillow makes this mode, with 65,535 for white.
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise ValueError(
            f"pixels of 32 bits (mode {picture.mode}) found, of which white is not known; "
            "expected 8 or 16 bits a channel"
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


__all__ = ["FORMATS", "LARGEST", "check_sides", "decode", "fitted"]
