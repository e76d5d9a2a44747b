"""Batches of a data set on disk, in an order that is a pure function of the seed and the step.

    batches = training_stream(split, seed=0, batch_size=256, num_steps=500_000, first_step=t)
    for batch in batches: ...                                        # those of steps t, t + 1, ...

Nothing is carried from step to step but the step: a run that resumes at step ``t`` sees the images
that the uninterrupted run would have seen, cropped in the same way, whatever was prefetched, by how
many threads or processes, and over however many hosts the batch is spread. Grain reads ahead.
"""

import dataclasses
import functools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from nf_resnets.data.crop import DRAWS, RandomCrop, central_box, random_box
from nf_resnets.data.imagenet import EncodedSplit, Example
from nf_resnets.data.order import check_seed, steps_per_epoch

Batch = dict[str, np.ndarray]
_Element = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Reading:
    """How a host reads ahead; what is read does not depend on it.

    Attributes:
      threads: images decoded at a time by threads of this process; Pillow decodes without
        Python's lock, so that they run on as many cores.
      workers: processes that make whole batches, instead of the threads; 0 for threads. They
        start anew with each stream and import the library, which takes seconds.
      ahead: batches that are made ready before they are asked for.

    Raises:
      ValueError: if one of them is out of its range.
    """

    threads: int = 16
    workers: int = 0
    ahead: int = 2

    def __post_init__(self) -> None:
        for name, least in (("threads", 1), ("workers", 0), ("ahead", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} found; expected at least {least}.")


def stream_order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """Returns the order in which an epoch visits the examples of a split.

    It is a permutation of ``range(num_examples)``, int64: the order of 64-bit words of the Philox
    generator, whose stream NumPy guarantees, as it does not for its permutations.

    Example:
      >>> sorted(stream_order(seed=0, epoch=3, num_examples=4).tolist())
      [0, 1, 2, 3]
    """
    return np.argsort(_words(seed, _ORDER, epoch, 0, num_examples), kind="stable")


def crop_draws(seed: int, epoch: int, index: int) -> list[float]:
    """Returns the uniform numbers that decide how an image is cropped and flipped in an epoch.

    They are ``DRAWS`` multiples of 2**-53 in [0, 1), keyed by the example's index in the split, not
    by its position in a batch.
    """
    words = _words(seed, _CROP, epoch, index, DRAWS)
    return ((words >> np.uint64(11)) * 2.0**-53).tolist()


_ORDER, _CROP = 0, 1


def _words(seed: int, use: int, epoch: int, index: int, count: int) -> np.ndarray:
    # The generator counts up from here in the lowest word: streams of other epochs or indices are
    # 2**128 numbers away, those of other seeds and uses have another key.
    key, counter = np.array([seed, use], np.uint64), np.array([0, 0, index, epoch], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


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
      ValueError: if the batch does not fit the split, a step, row or the seed is out of range.
      TypeError: if the seed is no whole number.
      ModuleNotFoundError: if Grain is not installed.

    Example:
      >>> from nf_resnets import data
      >>> split = data.open_encoded("/data").split("train")  # doctest: +SKIP
      >>> batches = training_stream(split, seed=0, batch_size=256, num_steps=9)  # doctest: +SKIP
      >>> next(batches)["image"].shape  # doctest: +SKIP
      (256, 224, 224, 3)
    """
    check_seed(seed)
    if not 0 <= first_step <= num_steps:
        raise ValueError(
            f"first_step={first_step} of num_steps={num_steps} found; expected 0 <= first_step <= "
            "num_steps."
        )
    steps_per_epoch(split.num_examples, batch_size)
    rows = _checked_rows(rows, batch_size)
    examples = _TrainingExamples(split, seed, batch_size, rows, first_step, num_steps, crop)
    return _read(examples, len(rows), reading)


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

    As :func:`training_stream`, but that a batch may be larger than the split; the shorter side is
    resized to ``short_side`` pixels, of which the network sees a square of ``size``.

    Returns:
      An iterator over batches: ``image``, ``label`` and ``index`` as in training, and ``counts``
      float32 [b], 1 or 0.

    Raises:
      ValueError: if a number is out of range.
      ModuleNotFoundError: if Grain is not installed.

    Example:
      >>> from nf_resnets import data
      >>> split = data.open_encoded("/data").split("validation")  # doctest: +SKIP
      >>> batches = evaluation_stream(split, batch_size=256)  # doctest: +SKIP
      >>> sum(batch["counts"].sum() for batch in batches)  # doctest: +SKIP
      50000.0
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} found; expected at least 1.")
    central_box(size, size, size, short_side)
    rows = _checked_rows(rows, batch_size)
    examples = _EvaluationExamples(split, batch_size, rows, size, short_side)
    return _read(examples, len(rows), reading)


def _checked_rows(rows: np.ndarray | None, batch_size: int) -> np.ndarray:
    if rows is None:
        return np.arange(batch_size)
    rows = np.asarray(rows)
    if rows.ndim != 1 or not len(rows) or rows.min() < 0 or rows.max() >= batch_size:
        raise ValueError(
            f"rows={rows} found; expected positions in the batch, 0 <= row < {batch_size}."
        )
    return rows


@dataclasses.dataclass(frozen=True, eq=False)
class _TrainingExamples:
    """What Grain reads: the images of all steps that are still to come, one after another."""

    split: EncodedSplit
    seed: int
    batch_size: int
    rows: np.ndarray
    first_step: int
    num_steps: int
    crop: RandomCrop

    def __len__(self) -> int:
        return (self.num_steps - self.first_step) * len(self.rows)

    def __getitem__(self, position: int) -> _Element:
        done, row = divmod(int(position), len(self.rows))
        per_epoch = self.split.num_examples // self.batch_size
        epoch, step = divmod(self.first_step + done, per_epoch)
        order = _order(self.seed, epoch, self.split.num_examples)
        index = int(order[step * self.batch_size + self.rows[row]])
        example = self.split[index]
        uniform = crop_draws(self.seed, epoch, index)
        height, width = example.image.height, example.image.width
        box = random_box(height, width, self.crop, uniform)
        flip = self.crop.flip and uniform[-1] < 0.5
        return _pixels(example, index, box, self.crop.size, flip=flip)


@dataclasses.dataclass(frozen=True, eq=False)
class _EvaluationExamples:
    """What Grain reads: all images of a split, and black ones until the last batch is full."""

    split: EncodedSplit
    batch_size: int
    rows: np.ndarray
    size: int
    short_side: int

    def __len__(self) -> int:
        return -(-self.split.num_examples // self.batch_size) * len(self.rows)

    def __getitem__(self, position: int) -> _Element:
        step, row = divmod(int(position), len(self.rows))
        index = int(step * self.batch_size + self.rows[row])
        if index >= self.split.num_examples:
            nothing = np.zeros((self.size, self.size, 3), np.uint8)
            nobody = {"label": np.int32(0), "index": np.int32(index), "counts": np.float32(0)}
            return {"image": nothing, **nobody}
        example = self.split[index]
        box = central_box(example.image.height, example.image.width, self.size, self.short_side)
        return {**_pixels(example, index, box, self.size), "counts": np.float32(1)}


def _pixels(example: Example, index: int, box: Any, size: int, *, flip: bool = False) -> _Element:
    try:
        image = example.image.pixels(box, size, flip=flip)
    except ValueError as error:
        raise ValueError(f"{example.where}: {error}") from error
    return {"image": image, "label": np.int32(example.label), "index": np.int32(index)}


_ORDERING = threading.Lock()


def _order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    # The lock keeps all threads from sorting at once where an epoch begins.
    with _ORDERING:
        return _kept_order(seed, epoch, num_examples)


# Two: around the end of an epoch the threads read from both.
_kept_order = functools.lru_cache(maxsize=2)(stream_order)


def _read(examples: Any, batch_size: int, reading: Reading) -> Iterator[Batch]:
    try:
        import grain
    except ImportError as error:
        raise ModuleNotFoundError(
            "Grain is not installed, which streams data sets from disk: pip install"
            " 'nf_resnets[imagenet]'."
        ) from error

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
        options = grain.MultiprocessingOptions(
            reading.workers, per_worker_buffer_size=reading.ahead
        )
        return iter(batches.mp_prefetch(options))
    buffered = max(reading.ahead * batch_size, reading.threads)
    options = grain.ReadOptions(num_threads=reading.threads, prefetch_buffer_size=buffered)
    return iter(source.to_iter_dataset(options).batch(batch_size))


__all__ = [
    "Batch",
    "Reading",
    "crop_draws",
    "evaluation_stream",
    "stream_order",
    "training_stream",
]
