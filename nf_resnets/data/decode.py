"""From the bytes of an image file to the pixels of a square."""

import io

import numpy as np
from PIL import Image

from nf_resnets.data.crop import Box

# Those of ImageNet are JPEGs but for one, a PNG. Others are not tried: what looks like one of a
# hundred rare formats is more likely damage.
FORMATS = ("JPEG", "PNG")

# How much more resolution than is needed is decoded: without a spare, the result would be sharper
# than that of the filter on the whole image.
SPARE = 2


class ImageFile:
    """The file of one image, of which nothing but the header has been read.

    Args:
      encoded: the bytes of the file.

    Attributes:
      height: in pixels.
      width: in pixels.

    Raises:
      ValueError: if it is no JPEG or PNG image.
    """

    def __init__(self, encoded: bytes) -> None:
        try:
            self._image = Image.open(io.BytesIO(encoded), formats=FORMATS)
        except Exception as error:  # whatever decoders stumble over
            raise ValueError(
                f"{len(encoded)} bytes that begin with {encoded[:12]!r} found; expected a JPEG or "
                "PNG image."
            ) from error
        self.width, self.height = self._image.size

    def pixels(self, box: Box, size: int, *, flip: bool = False) -> np.ndarray:
        """Returns what is in a box, resized to a square.

        The filter is the bilinear one whose support grows with the reduction (Pillow's), as in the
        published pipelines. A large image, to be reduced to a quarter or less, is decoded at half
        the resolution or less, which JPEG's transform does for nothing.

        Args:
          box: ``(left, top, right, bottom)`` in pixels of the whole image.
          size: pixels on a side of the square.
          flip: whether to mirror it left to right.

        Returns:
          uint8 [size, size, 3], RGB whatever the file holds.

        Raises:
          ValueError: if the file ends before the image does, or is damaged.
        """
        left, top, right, bottom = box
        try:
            across, down = size / (right - left), size / (bottom - top)
            if max(across, down) <= 1 / (2 * SPARE):
                # The smallest of JPEG's four resolutions that is not less than the one asked for.
                asked = (int(SPARE * self.width * across), int(SPARE * self.height * down))
                self._image.draft(None, asked)
            image = self._image.convert("RGB")
        except Exception as error:  # whatever decoders stumble over
            raise ValueError(
                f"a damaged image of {self.width} x {self.height} pixels found ({error})."
            ) from error
        x, y = image.width / self.width, image.height / self.height
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        square = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        if flip:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(square)


__all__ = ["FORMATS", "SPARE", "ImageFile"]
