"""Image sets as NumPy arrays: checked on construction, loaded by name.

The whole set is held in memory as raw pixels; the training step puts it on the device and gathers,
crops, flips and normalises there. scikit-learn and TensorFlow Datasets are imported by the call
that needs them, so that importing the library costs neither.
"""

import dataclasses
import difflib
import importlib.util
import os
import sys
from typing import Any

import numpy as np

from nf_resnets.data.prepared import (
    has_random_access,
    open_builder,
    prepare_command,
    quiet,
    readable,
)

DATASETS = ("digits", "cifar10", "cifar100", "svhn_cropped", "svhn_extra", "fashion_mnist")

# Names of ours for what TensorFlow Datasets has under another one, and the splits trained on.
_TRAINED_ON = {"svhn_extra": ("svhn_cropped", "train+extra")}


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images and labels of one split.

    Args:
      images: raw pixels, uint8 (or finite floats) [N, H, W, C].
      labels: class of each image, int32 [N].
    """

    images: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split that have been checked; ``from_splits`` fills in the statistics.

    Args:
      name: what messages call the data set.
      train: training split.
      test: test split.
      num_classes: labels are in [0, num_classes).
      class_names: one name per class.
      mean: mean of the training pixels, per channel, in raw pixel units.
      std: standard deviation of the training pixels, per channel, in raw pixel units.
      max_value: the largest value that a pixel can take, in raw pixel units: 16 for digits, 255
        for the others.

    Raises:
      ValueError: if the arrays cannot be trained on; the message names the split, what was found,
        and for a bad value the index of the first one.
    """

    name: str
    train: Split
    test: Split
    num_classes: int
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_value: float

    def __post_init__(self) -> None:
        if len(self.class_names) != self.num_classes:
            raise ValueError(
                f"{self.name}: num_classes={self.num_classes} but class_names has"
                f" {len(self.class_names)} names."
            )
        for split_name, split in (("train", self.train), ("test", self.test)):
            where = f"{self.name}, {split_name} split"
            _check_shapes(where, split)
            _check_pixels(where, split.images, self.max_value)
            _check_labels(where, split.labels, self.num_classes)
        shape = self.train.images.shape[1:]
        if self.test.images.shape[1:] != shape:
            raise ValueError(
                f"{self.name}: training images have shape {shape} but test images"
                f" {self.test.images.shape[1:]}."
            )
        if np.all(self.train.labels == self.train.labels[0]):
            raise ValueError(
                f"{self.name}, train split: all {len(self.train.labels)} labels are"
                f" {self.train.labels[0]}; at least two classes must be present."
            )
        for field, value in (("mean", self.mean), ("std", self.std)):
            if len(value) != shape[-1]:
                raise ValueError(
                    f"{self.name}: {field} has {len(value)} values but the images have"
                    f" {shape[-1]} channels."
                )
            if not np.all(np.isfinite(value)):
                raise ValueError(f"{self.name}: {field} must be finite, got {value}.")
        if not min(self.std) > 0:
            channel = int(np.argmin(self.std))
            raise ValueError(
                f"{self.name}: std of channel {channel} is {self.std[channel]}; it must be"
                " positive, a constant channel cannot be normalised."
            )


def from_splits(
    name: str,
    train: Split,
    test: Split,
    class_names: tuple[str, ...],
    max_value: float = 255.0,
) -> Dataset:
    """Returns a checked ``Dataset`` whose mean and std are those of the training split.

    Args:
      name: what messages call the data set.
      train: training split.
      test: test split.
      class_names: one name per class, in the order of the labels.
      max_value: the largest value that a pixel can take.

    Raises:
      ValueError: if the arrays cannot be trained on.

    Example:
      >>> images = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
      >>> split = Split(images, np.array([0, 1, 0, 1], np.int32))
      >>> from_splits("mine", train=split, test=split, class_names=("cat", "dog")).mean
      (7.5,)
    """
    # Before the statistics, which mean nothing for pixels that are NaN or of a wrong shape.
    _check_shapes(f"{name}, train split", train)
    _check_pixels(f"{name}, train split", train.images, max_value)
    mean, std = _channel_statistics(train.images)
    return Dataset(name, train, test, len(class_names), class_names, mean, std, max_value)


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray,
    *,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    class_names: tuple[str, ...] | None = None,
    max_value: float | None = None,
    name: str = "arrays",
) -> Dataset:
    """Makes a data set of images and labels, with a test split of its own or one taken from them.

    The training images are put into the order of ``np.random.default_rng(0).permutation``, as
    schemes that look at data look at the first of them. Without ``test``, the first fifth of each
    class in that order, rounded, and at least one image, is the test split.

    Args:
      images: raw pixels, uint8 or finite floats [N, H, W, C], or [N, H, W] of one channel.
      labels: class of each image, integers [N] from 0.
      test: images and labels of the test split.
      class_names: one name per class; by default the numbers.
      max_value: the value of a white pixel; by default 255 for uint8 and 1 for floats.
      name: what messages call the data set.

    Raises:
      ValueError: if the arrays cannot be trained on.

    Example:
      >>> images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1)
      >>> dataset = from_arrays(images, np.arange(10) % 2, class_names=("cat", "dog"))
      >>> dataset.train.images.shape, dataset.test.images.shape
      ((8, 1, 1, 1), (2, 1, 1, 1))
    """
    given = [_split_of(images, labels)] + ([] if test is None else [_split_of(*test)])
    most = 0
    for split in given:
        _check_shapes(name, split)
        _check_labels(name, split.labels, len(class_names) if class_names else sys.maxsize)
        most = max(most, int(split.labels.max()))
    class_names = class_names or tuple(map(str, range(most + 1)))
    labels = given[0].labels
    order = np.random.default_rng(0).permutation(len(labels))
    if test is None:
        is_test = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            rows = order[labels[order] == label]
            if len(rows) == 1:
                raise ValueError(
                    f"{name}: class {class_names[label]!r} has one image; expected two or more, "
                    "some to train on and some to test on."
                )
            is_test[rows[: max(1, round(len(rows) / 5))]] = True
        given.append(_rows_of(given[0], order[is_test[order]]))
        order = order[~is_test[order]]
    if max_value is None:
        max_value = 255.0 if given[0].images.dtype == np.uint8 else 1.0
    return from_splits(name, _rows_of(given[0], order), given[1], tuple(class_names), max_value)


def _split_of(images: np.ndarray, labels: np.ndarray) -> Split:
    images, labels = np.asarray(images), np.asarray(labels)
    labels = labels.astype(np.int32) if labels.dtype.kind in "iu" else labels
    return Split(images[..., None] if images.ndim == 3 else images, labels)


def _rows_of(split: Split, rows: np.ndarray) -> Split:
    return Split(split.images[rows], split.labels[rows])


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a data set by name, or from a folder of images by its path.

    ``digits`` (1,797 handwritten digits, 8 x 8, pixels 0 to 16) lies inside scikit-learn; its split
    is ``np.random.default_rng(0).permutation(1797)``, of which the first 1,437 are for training and
    the last 360 for testing. The others are read with TensorFlow Datasets, in the order of the
    files, from what has been prepared on disk: nothing is ever downloaded here. TensorFlow is
    needed for a copy in tfrecord format only. ``svhn_extra`` is ``svhn_cropped`` with its 531,131
    easier images, the split ``extra``, after the 73,257 of the training split, as published results
    on SVHN have it.

    Args:
      name: one of ``DATASETS``; or the path of a folder for :func:`from_folder`, as ``"photos"``,
        ``"photos@32"`` for ``size=32`` or ``"photos@32x48"`` for ``size=(32, 48)``.
      data_dir: the folder that TensorFlow Datasets was given, which holds ``<name>/<version>``;
        None is its default. Not used for ``digits``.

    Returns:
      The data set, uint8 images [N, H, W, C] and int32 labels [N].

    Raises:
      ValueError: if the name is unknown or the data cannot be trained on.
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ModuleNotFoundError: if a package that reads it is not installed.
      OSError: if its files are damaged.

    Example:
      >>> load("digits").train.images.shape
      (1437, 8, 8, 1)
    """
    if name not in DATASETS:
        from nf_resnets.data.folder import from_folder, parse

        path, size = parse(str(name))
        if os.sep in path or os.path.isdir(path):
            return from_folder(path, size=size)
        close = difflib.get_close_matches(str(name), DATASETS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"unknown data set {name!r}{hint}; known are {', '.join(DATASETS)}, and paths of "
            "folders of images."
        )
    return _digits() if name == "digits" else _from_tfds(name, data_dir)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = (Split(images[rows], labels[rows]) for rows in (order[:1437], order[1437:]))
    names = tuple(str(digit) for digit in bunch.target_names)
    return from_splits("digits", train, test, names, max_value=16.0)


def _from_tfds(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    stored, training = _TRAINED_ON.get(name, (name, "train"))
    builder = open_builder(stored, data_dir)
    folder = builder.data_path
    if has_random_access(builder):
        read = _read_random_access
    elif importlib.util.find_spec("tensorflow"):
        read = _read_with_tensorflow
    else:
        # Another folder, because TensorFlow Datasets keeps what it finds in this one.
        raise ModuleNotFoundError(
            f"{stored} in {folder} is in {builder.info.file_format.value} format, which only"
            " TensorFlow reads: pip install 'nf_resnets[tensorflow]', or prepare a copy in"
            " array_record format in another folder with"
            f" {prepare_command(stored, folder.parent.parent / 'array_record')}."
        )
    with quiet(), readable(stored, folder):
        train, test = read(builder, training), read(builder, "test")
        class_names = tuple(builder.info.features["label"].names)
    try:
        return from_splits(name, train, test, class_names)
    except ValueError as error:
        raise ValueError(f"{error} It was read from {folder}.") from error


def _read_random_access(builder: Any, split: str) -> Split:
    source = builder.as_data_source(split)
    images = np.empty((len(source), *builder.info.features["image"].shape), np.uint8)
    labels = np.empty(len(source), np.int32)
    # In chunks, because one record at a time takes twice as long and all at once twice the memory.
    # Threads do not help: decoding images this small holds the interpreter lock.
    for start in range(0, len(source), 1000):
        rows = range(start, min(start + 1000, len(source)))
        for row, example in zip(rows, source.__getitems__(list(rows)), strict=True):
            images[row] = example["image"]
            labels[row] = example["label"]
    return Split(images, labels)


def _read_with_tensorflow(builder: Any, split: str) -> Split:
    import tensorflow_datasets as tfds

    if "tensorflow" not in sys.modules:
        import tensorflow as tf

        # TensorFlow would reserve all accelerator memory, which JAX needs. A program that already
        # uses TensorFlow has made this choice for itself.
        tf.config.set_visible_devices([], "GPU")
    # A cycle length of one reads the files one after another, as ArrayRecord does.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split, batch_size=-1, shuffle_files=False, read_config=config)
    arrays = tfds.as_numpy(dataset)
    return Split(arrays["image"], arrays["label"].astype(np.int32))


def _channel_statistics(images: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    # In chunks and two passes: float64 CIFAR would take 1.2 GB, and a difference of squares loses
    # the digits of a small spread around a large mean.
    chunks = [images[start : start + 1000] for start in range(0, len(images), 1000)]
    count = images[..., 0].size
    sums = [chunk.sum((0, 1, 2), dtype=np.float64) for chunk in chunks]
    mean = np.sum(sums, axis=0) / count
    centre = mean.reshape(1, 1, 1, -1)
    squares = [((chunk - centre) ** 2).sum((0, 1, 2)) for chunk in chunks]
    std = np.sqrt(np.sum(squares, axis=0) / count)
    return tuple(mean.tolist()), tuple(std.tolist())


def _check_shapes(where: str, split: Split) -> None:
    for field, value in (("images", split.images), ("labels", split.labels)):
        if not isinstance(value, np.ndarray):
            raise ValueError(f"{where}: {field} must be a NumPy array, got {type(value).__name__}.")
    images, labels = split.images, split.labels
    if images.ndim != 4:
        raise ValueError(f"{where}: images must have shape [N, H, W, C], got {images.shape}.")
    if labels.ndim != 1:
        raise ValueError(f"{where}: labels must have shape [N], got {labels.shape}.")
    if len(images) != len(labels):
        raise ValueError(f"{where}: {len(images)} images but {len(labels)} labels.")
    if images.size == 0:
        raise ValueError(f"{where}: there is no pixel in images of shape {images.shape}.")


def _check_pixels(where: str, images: np.ndarray, max_value: float) -> None:
    if np.issubdtype(images.dtype, np.floating):
        bad = ~np.isfinite(images)
        expected = "a finite value"
        if not bad.any():
            bad = images > max_value
            expected = f"at most max_value={max_value}"
    elif images.dtype == np.uint8:
        bad = images > max_value
        expected = f"at most max_value={max_value}"
    else:
        raise ValueError(f"{where}: images must be uint8 or floating point, got {images.dtype}.")
    if bad.any():
        index = _first(bad)
        raise ValueError(f"{where}: pixel {index} is {images[index]}, expected {expected}.")


def _check_labels(where: str, labels: np.ndarray, num_classes: int) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where}: labels must be integers, got {labels.dtype}.")
    bad = (labels < 0) | (labels >= num_classes)
    if bad.any():
        index = _first(bad)
        raise ValueError(
            f"{where}: label {index[0]} is {labels[index]}, expected a class in [0, {num_classes})."
        )


def _first(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))


__all__ = ["DATASETS", "Dataset", "Split", "from_arrays", "from_splits", "load"]
