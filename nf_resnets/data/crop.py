"""Which part of an image is looked at: a random one in training, the middle one in evaluation.

A box is ``(left, top, right, bottom)`` in pixels of the whole image, as Pillow has it.
"""

import dataclasses
import math
from collections.abc import Sequence

from nf_resnets.data.pictures import LARGEST

TRIES = 10
"""How often a random box is drawn until one fits into the image."""

Box = tuple[float, float, float, float]


@dataclasses.dataclass(frozen=True)
class RandomCrop:
    r"""The random resized crop of Szegedy et al., and the flip.

    A box has the fraction ``a`` of the area, ``a`` uniform on ``area``, and the ratio ``r`` of
    width to height, ``log r`` uniform on the logarithm of ``aspect``: with the image's ``H`` and
    ``W``,

        w = round(sqrt(a H W r)),  h = round(sqrt(a H W / r)),

    at a place that is uniform over those where it fits. If it fits nowhere it is drawn again, ten
    times at most; then it is the largest box in the middle whose ratio lies within ``aspect``. What
    is in the box is resized to a square.

    Attributes:
      size: pixels on a side of the square.
      area: the smallest and the largest fraction of the area, in ``(0, 1]``.
      aspect: the smallest and the largest ratio of width to height.
      flip: whether half of the images are mirrored left to right.

    Source: Szegedy et al., *Going Deeper with Convolutions*, CVPR 2015, section 6; the ten tries
    are of the pipelines that the papers' authors published.
    """

    size: int = 224
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True


DRAWS = 4 * TRIES + 1
"""How many uniform numbers an image needs: four a try, and one for the flip."""


def random_box(height: int, width: int, crop: RandomCrop, uniform: Sequence[float]) -> Box:
    """Returns the box of a random resized crop.

    Args:
      height: of the image, in pixels.
      width: of the image, in pixels.
      crop: how it is drawn.
      uniform: numbers in ``[0, 1)``, at least ``4 * TRIES``; of each four, the first is for the
        area, the second for the ratio, the others for the place.

    Returns:
      A box of whole pixels.
    """
    low, high = (math.log(ratio) for ratio in crop.aspect)
    for start in range(0, 4 * TRIES, 4):
        fraction, ratio, across, down = uniform[start : start + 4]
        area = (crop.area[0] + fraction * (crop.area[1] - crop.area[0])) * height * width
        ratio = math.exp(low + ratio * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(across * (width - w + 1)), int(down * (height - h + 1))
            return left, top, left + w, top + h
    ratio = min(max(width / height, crop.aspect[0]), crop.aspect[1])
    w = min(width, max(round(height * ratio), 1))
    h = min(height, max(round(width / ratio), 1))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def central_box(height: int, width: int, size: int, short_side: int) -> Box:
    """Returns the box of the middle of an image whose shorter side is resized.

    The image is resized until its shorter side has ``short_side`` pixels, and the ``size`` x
    ``size`` pixels in its middle are taken: this is the box of these pixels in the image as it was,
    so that only what is needed is resized.

    Args:
      height: of the image, in pixels.
      width: of the image, in pixels.
      size: pixels on a side of the square that is taken.
      short_side: what the shorter side is resized to, at least ``size``.

    Raises:
      ValueError: if ``short_side`` is smaller than ``size``.

    Source: Krizhevsky, Sutskever, Hinton, NeurIPS 2012, section 2 (256 and the middle 224).
    """
    if not 1 <= size <= short_side <= LARGEST:
        raise ValueError(
            f"size={size} and short_side={short_side} found; expected 1 <= size <= short_side <= "
            f"{LARGEST:,}."
        )
    shorter = min(height, width)
    # The other side in whole pixels, as it is when the whole image is resized.
    new_height = short_side * height // shorter
    new_width = short_side * width // shorter
    top, left = round((new_height - size) / 2), round((new_width - size) / 2)
    down, across = height / new_height, width / new_width
    return left * across, top * down, (left + size) * across, (top + size) * down


__all__ = ["DRAWS", "TRIES", "Box", "RandomCrop", "central_box", "random_box"]
