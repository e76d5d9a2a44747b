"""Batches of a data set on disk, in an order that is a pure function of the seed and the step.

    batches = training_stream(split, seed=0, batch_size=256, num_steps=500_000, first_step=t)
    for batch in batches: ...                                        # those of steps t, t + 1, ...

Order and crops are Grain's, functions of the seed and the position in the run: a run that resumes
at step ``t`` sees the images that the uninterrupted run would have seen, cropped in the same way,
by however many threads or processes, and over however many hosts the batch is spread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from nf_resnets.data.crop import DRAWS, RandomCrop, central_box, random_box
from nf_resnets.data.imagenet import EncodedSplit, Example
from nf_resnets.data.order import check_seed, steps_per_epoch

Batch = dict[str, np.ndarray]

_AHEAD = 2  # batches that are made ready before they are asked for


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a host reads ahead; the batches do not depend on it.

    Attributes:
      threads: images decoded at a time by threads of this process; Pillow decodes without
        Python's lock, so that they run on as many cores.
      workers: processes that make whole batches, instead of the threads; 0 for threads. They
        start anew with each stream and import the library, which takes seconds.
    """

    threads: int = 16
    workers: int = 0


def training_stream(
    split: EncodedSplit,
    *,
    seed: int,
    batch_size: int,
    num_steps: int,
    first_step: int = 0,
    rows: np.ndarray | None = None,
    crop: RandomCrop = RandomCrop(),  # noqa: B008 (a frozen value)
    reading: Reading = Reading(),
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
      reading: how the host reads ahead.

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
    examples = _grain().MapDataset.source(split).shuffle(seed)[:per_epoch].repeat()
    cropped = examples.random_map(_Cropped(crop), seed=seed)
    rows = np.arange(batch_size) if rows is None else rows
    return _read(_Steps(cropped, rows, batch_size, first_step, num_steps), len(rows), reading)


def evaluation_stream(
    split: EncodedSplit,
    *,
    batch_size: int,
    size: int = 224,
    short_side: int = 256,
    rows: np.ndarray | None = None,
    reading: Reading = Reading(),
) -> Iterator[Batch]:
    """Returns the batches of a whole split in the order of the files, its images' middles.

    Every example counts once: the last batch is filled up with black images that do not.

    A batch may be larger than the split. The shorter side of an image is resized to ``short_side``
    pixels, of which the network sees a square of ``size``.

    Returns:
      An iterator over batches: ``image``, ``label`` and ``index`` as in training, and ``counts``
      float32 [b], 1 or 0.

    Raises:
      ValueError: if the size is larger than the short side.
    """
    central_box(size, size, size, short_side)
    rows = np.arange(batch_size) if rows is None else rows
    steps = -(-split.num_examples // batch_size)
    examples = _Middles(split, size, short_side)
    return _read(_Steps(examples, rows, batch_size, 0, steps), len(rows), reading)


@dataclasses.dataclass(frozen=True)
class _Cropped:
    """A random crop of an example; the generator is Grain's, of the seed and the position."""

    crop: RandomCrop

    def __call__(self, example: Example, generator: np.random.Generator) -> dict[str, Any]:
        uniform = generator.random(DRAWS).tolist()
        box = random_box(example.height, example.width, self.crop, uniform)
        return _row(example, box, self.crop.size, flip=self.crop.flip and uniform[-1] < 0.5)


@dataclasses.dataclass(frozen=True, eq=False)
class _Middles:
    """The middles of a split's images, and black images behind them."""

    split: EncodedSplit
    size: int
    short_side: int

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index >= self.split.num_examples:
            black = np.zeros((self.size, self.size, 3), np.uint8)
            none = {"label": np.int32(0), "index": np.int32(index), "counts": np.float32(0)}
            return {"image": black, **none}
        example = self.split[index]
        box = central_box(example.height, example.width, self.size, self.short_side)
        return {**_row(example, box, self.size), "counts": np.float32(1)}


@dataclasses.dataclass(frozen=True, eq=False)
class _Steps:
    """The rows of this host in the batches of the steps to come, one after another."""

    examples: Any
    rows: np.ndarray
    batch_size: int
    first_step: int
    num_steps: int

    def __len__(self) -> int:
        return (self.num_steps - self.first_step) * len(self.rows)

    def __getitem__(self, position: int) -> dict[str, Any]:
        done, row = divmod(int(position), len(self.rows))
        index = (self.first_step + done) * self.batch_size + int(self.rows[row])
        example: dict[str, Any] = self.examples[index]
        return example


def _row(example: Example, box: Any, size: int, *, flip: bool = False) -> dict[str, Any]:
    image = example.pixels(box, size, flip=flip)
    return {"image": image, "label": np.int32(example.label), "index": np.int32(example.index)}


def _grain() -> Any:
    try:
        import grain
    except ImportError as error:
        raise ModuleNotFoundError(
            "Grain is not installed, which streams data sets from disk: pip install"
            " 'nf_resnets[imagenet]'."
        ) from error
    return grain


def _read(examples: _Steps, batch_size: int, reading: Reading) -> Iterator[Batch]:
    grain = _grain()
    source = grain.MapDataset.source(examples)
    if reading.workers:
        from absl import flags

        if not flags.FLAGS.is_parsed():
            # Grain asks for flags of its own when it starts a process; with absl's `app.run` they
            # would have been read by now.
            flags.FLAGS.mark_as_parsed()
        # A worker makes whole batches, so that how many there are does not change what is in them.
        one_ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
        batches = source.batch(batch_size).to_iter_dataset(one_ahead)
        options = grain.MultiprocessingOptions(reading.workers, per_worker_buffer_size=_AHEAD)
        return iter(batches.mp_prefetch(options))
    buffered = max(_AHEAD * batch_size, reading.threads)
    options = grain.ReadOptions(num_threads=reading.threads, prefetch_buffer_size=buffered)
    return iter(source.to_iter_dataset(options).batch(batch_size))


__all__ = ["Batch", "Reading", "evaluation_stream", "training_stream"]
