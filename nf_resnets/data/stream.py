"""Batches of a data set on disk, in an order that is a pure function of the seed and the step.

    batches = training_stream(split, seed=0, batch_size=256, num_steps=500_000, first_step=t)
    for batch in batches: ...                                        # those of steps t, t + 1, ...

Order and crops are Grain's, functions of the seed and the position in the run: a run that resumes
at step ``t`` sees the images that the uninterrupted run would have seen, cropped in the same way,
by however many threads, and over however many hosts the batch is spread.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nf_resnets.data.imagenet import Box, EncodedSplit, Example
from nf_resnets.data.order import check_seed, steps_per_epoch
from nf_resnets.machine import needed

Batch = dict[str, np.ndarray]

_AHEAD = 2  # batches that are made ready before they are asked for

THREADS = 16
"""Images decoded at a time: Pillow does it without Python's lock, on as many cores."""

TRIES = 10
"""How often a random box is drawn until one fits into the image."""

DRAWS = 4 * TRIES + 1
"""How many uniform numbers an image needs: four a try, and one for the flip."""


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


def random_box(height: int, width: int, crop: RandomCrop, uniform: Sequence[float]) -> Box:
    """Returns the box of a random resized crop, in whole pixels.

    Of each four of the ``uniform`` numbers in ``[0, 1)``, at least ``4 * TRIES``, the first is for
    the area, the second for the ratio, the others for the place.
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

    The image is resized until its shorter side has ``short_side`` pixels, at least ``size``, and
    the ``size`` x ``size`` pixels in its middle are taken: this is the box of these pixels in the
    image as it was, so that only what is needed is resized.

    Source: Krizhevsky, Sutskever, Hinton, NeurIPS 2012, section 2 (256 and the middle 224).
    """
    shorter = min(height, width)
    # The other side in whole pixels, as it is when the whole image is resized.
    new_height = short_side * height // shorter
    new_width = short_side * width // shorter
    top, left = round((new_height - size) / 2), round((new_width - size) / 2)
    down, across = height / new_height, width / new_width
    return left * across, top * down, (left + size) * across, (top + size) * down


def training_stream(
    split: EncodedSplit,
    *,
    seed: int,
    batch_size: int,
    num_steps: int,
    first_step: int = 0,
    rows: np.ndarray | None = None,
    crop: RandomCrop = RandomCrop(),
    threads: int = THREADS,
) -> Iterator[Batch]:
    """Returns the batches of a run's steps: shuffled anew every epoch, cropped at random.

    Every epoch drops the examples at the end of its order that do not fill a batch.

    Args:
      split: the training split.
      seed: integer in [0, 2**32), from which order and crops follow.
      batch_size: examples in a step over all hosts.
      num_steps: steps of the whole run.
      first_step: the step of the first batch, counted from 0 over the whole run.
      rows: the positions in the global batch that this host holds, int [b]; None for all.
      crop: how images are cropped.
      threads: images decoded at a time; the batches do not depend on it.

    Returns:
      An iterator over batches, ``image`` uint8 [b, S, S, 3], ``label`` int32 [b], and ``index``
      int32 [b], which examples these are. It raises ValueError or OSError at an example that cannot
      be decoded, naming it.

    Raises:
      ValueError: if the batch does not fit the split, or the seed is out of range.
      ModuleNotFoundError: if Grain is not installed.
    """
    check_seed(seed)
    per_epoch = steps_per_epoch(split.num_examples, batch_size) * batch_size
    grain = needed("grain", "imagenet")
    examples = grain.MapDataset.source(split).shuffle(seed)[:per_epoch].repeat()

    def cropped(example: Example, generator: np.random.Generator) -> dict[str, Any]:
        uniform = generator.random(DRAWS).tolist()
        box = random_box(example.height, example.width, crop, uniform)
        return _row(example, box, crop.size, flip=crop.flip and uniform[-1] < 0.5)

    rows = np.arange(batch_size) if rows is None else rows
    made = examples.random_map(cropped, seed=seed)
    return _read(made.__getitem__, rows, batch_size, range(first_step, num_steps), threads)


def evaluation_stream(
    split: EncodedSplit,
    *,
    batch_size: int,
    size: int = 224,
    short_side: int = 256,
    rows: np.ndarray | None = None,
    threads: int = THREADS,
) -> Iterator[Batch]:
    """Returns the batches of a whole split in the order of the files, its images' middles.

    Every example counts once: the last batch is filled up with black images that do not.

    A batch may be larger than the split. The shorter side of an image is resized to ``short_side``
    pixels, of which the network sees a square of ``size``.

    Returns:
      An iterator over batches: ``image``, ``label`` and ``index`` as in training, and ``counts``
      float32 [b], 1 or 0.
    """

    def middle(index: int) -> dict[str, Any]:
        if index >= split.num_examples:
            black = np.zeros((size, size, 3), np.uint8)
            none = {"label": np.int32(0), "index": np.int32(index), "counts": np.float32(0)}
            return {"image": black, **none}
        example = split[index]
        box = central_box(example.height, example.width, size, short_side)
        return {**_row(example, box, size), "counts": np.float32(1)}

    rows = np.arange(batch_size) if rows is None else rows
    return _read(middle, rows, batch_size, range(-(-split.num_examples // batch_size)), threads)


def _row(example: Example, box: Any, size: int, *, flip: bool = False) -> dict[str, Any]:
    image = example.pixels(box, size, flip=flip)
    return {"image": image, "label": np.int32(example.label), "index": np.int32(example.index)}


def _read(
    example: Callable[[int], dict[str, Any]],
    rows: np.ndarray,
    batch_size: int,
    steps: range,
    threads: int,
) -> Iterator[Batch]:
    """The rows of this host in the batches of some steps."""
    grain, count = needed("grain", "imagenet"), len(rows)

    def row(position: int) -> dict[str, Any]:
        done, at = divmod(int(position), count)
        return example(steps[done] * batch_size + int(rows[at]))

    source = grain.MapDataset.source(range(len(steps) * count)).map(row)
    buffered = max(_AHEAD * count, threads)
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=buffered)
    return iter(source.to_iter_dataset(options).batch(count))
