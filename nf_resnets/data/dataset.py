"""Image sets as NumPy arrays, checked on construction.

The whole set is held in memory as raw pixels; the training step puts it on the device and gathers,
crops, flips and normalises there.
"""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from nf_resnets.data.pictures import check_sides


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
        names: Any = self.class_names  # of whatever type it is
        if isinstance(names, str) or not all(isinstance(name, str) for name in names):
            raise ValueError(f"{self.name}: class_names={names!r} found; expected texts.")
        if len(set(names)) < len(names):
            raise ValueError(f"{self.name}: class_names={names!r} found; expected no name twice.")
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
    for field, split in (("train", train), ("test", test)):
        if not isinstance(split, Split):
            raise ValueError(
                f"{name}: {field} is a {type(split).__name__}; expected data.Split(images, labels)."
            )
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
    class_names: Sequence[str] | None = None,
    max_value: float | None = None,
    name: str = "arrays",
) -> Dataset:
    """Makes a data set of images and labels, with a test split of its own or one taken from them.

    The training images are put into the order of ``np.random.default_rng(0).permutation``, as
    schemes that look at data look at the first of them. Without ``test``, the first fifth of each
    class in that order, rounded, and at least one image, is the test split.

    Args:
      images: raw pixels, uint8 or finite floats [N, H, W, C], or [N, H, W] of one channel.
      labels: class of each image, integers [N] from 0; or texts [N]; or one-hot [N, classes].
      test: images and labels of the test split.
      class_names: one name per class; by default the numbers, or the texts in their order.
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
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise ValueError(f"test is a {type(test).__name__}; expected (images, labels).")
    names: Any = () if class_names is None else class_names
    names = names if isinstance(names, str) else tuple(names)
    pairs = [(images, labels)] + ([] if test is None else [tuple(test)])
    if np.asarray(labels).dtype.kind in "US" and not names:
        names = tuple(np.unique(np.asarray(labels).astype(str)).tolist())
    given = [_split_of(pixels, classes, names, name) for pixels, classes in pairs]
    most = 0
    for split in given:
        _check_shapes(name, split)
        _check_labels(name, split.labels, len(names) if names else sys.maxsize)
        most = max(most, int(split.labels.max()))
    labels = given[0].labels
    if not names:
        missing = np.setdiff1d(np.arange(min(most, len(labels)) + 1), labels)
        if missing.size:
            raise ValueError(
                f"{name}: no training image has label {missing[0]}, and the largest label is "
                f"{most}; expected labels from 0 without a gap, as np.unique(labels, "
                "return_inverse=True)[1] numbers them, or class_names."
            )
        names = tuple(map(str, range(most + 1)))
    order = np.random.default_rng(0).permutation(len(labels))
    if test is None:
        is_test = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            rows = order[labels[order] == label]
            if len(rows) == 1:
                raise ValueError(
                    f"{name}: class {names[label]!r} has one image; expected two or more, "
                    "some to train on and some to test on."
                )
            is_test[rows[: max(1, round(len(rows) / 5))]] = True
        given.append(_rows_of(given[0], order[is_test[order]]))
        order = order[~is_test[order]]
    if max_value is None:
        max_value = 255.0 if given[0].images.dtype == np.uint8 else 1.0
    return from_splits(name, _rows_of(given[0], order), given[1], names, max_value)


def _split_of(images: Any, labels: Any, names: Sequence[str], where: str) -> Split:
    images, labels = np.asarray(images), np.asarray(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras has them
        labels = labels[:, 0]
    if labels.dtype.kind in "US":
        texts = labels.astype(str)
        unknown = np.setdiff1d(texts, names)
        if unknown.size:
            raise ValueError(
                f"{where}: label {str(unknown[0])!r} found; expected one of {', '.join(names)}."
            )
        labels = np.argsort(names)[np.searchsorted(np.sort(names), texts)]
    elif labels.ndim == 2:
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all()):
            raise ValueError(
                f"{where}: labels of shape {labels.shape} are not one-hot; expected integers [N], "
                "texts [N], or a single 1 among zeros in each row."
            )
        labels = labels.argmax(1)
    if labels.dtype.kind in "iu" and np.all(labels == labels.astype(np.int32)):
        labels = labels.astype(np.int32)
    return Split(images[..., None] if images.ndim == 3 else images, labels)


def _rows_of(split: Split, rows: np.ndarray) -> Split:
    return Split(split.images[rows], split.labels[rows])


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
    if images.shape[1] in (1, 3) and min(images.shape[2:]) > 4:
        raise ValueError(
            f"{where}: images of shape {images.shape} look like [N, C, H, W]; expected "
            "[N, H, W, C], as np.moveaxis(images, 1, -1) makes them."
        )
    if labels.ndim != 1:
        raise ValueError(f"{where}: labels must have shape [N], got {labels.shape}.")
    if len(images) != len(labels):
        raise ValueError(f"{where}: {len(images)} images but {len(labels)} labels.")
    if images.size == 0:
        raise ValueError(f"{where}: there is no pixel in images of shape {images.shape}.")
    check_sides(f"{where}: images of shape {images.shape}", *images.shape[1:3])


def _check_pixels(where: str, images: np.ndarray, max_value: float) -> None:
    floating = images.dtype in (np.float16, np.float32, np.float64)
    if not floating and images.dtype != np.uint8:
        raise ValueError(
            f"{where}: images must be uint8, float16, float32 or float64, got {images.dtype}."
        )
    fits: list[tuple[str, np.ndarray]] = [(f"at most max_value={max_value}", images <= max_value)]
    if floating:
        fits = [("a finite value", np.isfinite(images)), ("0 or more", images >= 0), *fits]
    for expected, good in fits:
        if not good.all():
            index = _first(~good)
            raise ValueError(f"{where}: pixel {index} is {images[index]}, expected {expected}.")
    if floating and max_value >= 8 and 0 < images.max() <= 1:
        raise ValueError(
            f"{where}: the largest pixel is {images.max()}, as of images scaled to 0 to 1; "
            f"expected raw ones, from 0 to max_value={max_value}."
        )


def _check_labels(where: str, labels: np.ndarray, num_classes: int) -> None:
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where}: labels must be integers, got {labels.dtype}.")
    bad = (labels < 0) | (labels >= num_classes)
    if bad.any():
        index = _first(bad)
        raise ValueError(
            f"{where}: label {index[0]} is {labels[index]}, expected "
            + ("0 or more." if num_classes == sys.maxsize else f"a class in [0, {num_classes}).")
        )


def _first(bad: np.ndarray) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(np.argmax(bad), bad.shape))


__all__ = ["Dataset", "Split", "from_arrays", "from_splits"]
