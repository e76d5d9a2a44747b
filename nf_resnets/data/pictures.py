"""Image files as pictures of RGB, and pictures brought to a size."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "PPM", "GIF")
"""What files may hold, whatever their names say. Pillow knows others that start programs: EPS."""

LARGEST = 4096
"""Pixels of a side. Images of more are refused, whatever asks for them, before they take memory."""


def check_sides(what: str, *sides: Any) -> None:
    """Refuses numbers of pixels that an image's sides may not have.

    Raises:
      ValueError: that begins with ``what``, which names their origin.
    """
    for side in sides:
        if not isinstance(side, int | np.integer) or not 1 <= side <= LARGEST:
            raise ValueError(f"{what} found; expected 1 to {LARGEST:,} pixels a side.")


def decode(path: Path, encoded: bytes) -> Image.Image:
    """Decodes the bytes of an image file to a Pillow image of mode RGB; the path is for messages.

    The picture is turned as its camera says, and laid on white where it is transparent. Of 16 bits
    a channel the upper eight are kept.

    Raises:
      ValueError: if it is no image, is damaged, or its range of values is unknown.
    """
    try:
        return _decoded(encoded)
    except Exception as error:  # whatever decoders stumble over in damaged files
        text = " ".join(str(error).split()) or type(error).__name__
        # Pillow names the object in memory where it knows no format.
        reason = f"expected one of {', '.join(FORMATS)}" if "BytesIO" in text else text
        raise ValueError(f"{path} cannot be read as an image: {reason}.") from None


def _decoded(encoded: bytes) -> Image.Image:
    with warnings.catch_warnings():
        # Of damage that it can read around; and of many pixels: twice as many it refuses.
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as opened:
            picture: Image.Image = ImageOps.exif_transpose(opened)
            # Whether it can be decoded is known once it has been.
            picture.load()
    # Of a PGM with more than 8 bits Pillow makes the mode I, with 65,535 for white.
    if picture.mode.startswith("I;16") or (picture.mode == "I" and opened.format == "PPM"):
        picture = Image.fromarray((np.asarray(picture).astype(np.int32) >> 8).astype(np.uint8))
    if picture.mode in ("I", "F"):
        raise ValueError(
            f"pixels of 32 bits (mode {picture.mode}) found, of which white is not known; "
            "expected 8 or 16 bits a channel"
        )
    if "A" in picture.getbands() or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def fitted(picture: Image.Image, height: int, width: int, *, crop: float = 1.0) -> Image.Image:
    """Crops the middle of a picture to the proportions of a size, and resizes it (bicubic).

    ``crop`` is the fraction of that middle that is used.
    """
    return ImageOps.fit(
        picture, (width, height), method=Image.Resampling.BICUBIC, bleed=(1 - crop) / 2
    )
