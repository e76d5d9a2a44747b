"""Image sets as NumPy arrays of raw pixels, held in memory and checked on construction."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images and labels of one split.

    Attributes:
      images: raw pixels, uint8 (or finite floats) [N, H, W, C].
      labels: class of each image, int32 [N].
    """

    images: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split that have been checked; ``from_splits`` fills in the statistics.

    Attributes:
      name: its name in messages.
      train: training split.
      test: test split.
      num_classes: labels are in [0, num_classes).
      class_names: one name per class.
      mean: mean of the raw training pixels, per channel.
      std: their standard deviation, per channel.
      max_value: the largest value that a pixel can take: 16 for digits, 255 for the others.

    Raises:
      ValueError: if the arrays cannot be trained on; the message has the index of a bad value.
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
        if not len(set(self.class_names)) == len(self.class_names) == self.num_classes:
            raise ValueError(
                f"{self.name}: class_names={self.class_names!r} found; expected "
                f"{self.num_classes}, no name twice."
            )
        for kind, split in (("train", self.train), ("test", self.test)):
            _check(f"{self.name}, {kind} split", split, self.num_classes, self.max_value)
        shapes = self.train.images.shape[1:], self.test.images.shape[1:]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{self.name}: images of {shapes[0]} and test images of {shapes[1]} found."
            )
        labels = self.train.labels
        if np.all(labels == labels[0]):
            raise ValueError(
                f"{self.name}, train split: all {len(labels)} labels are {labels[0]}; at least two "
                "classes must be present."
            )
        if not min(self.std) > 0:
            raise ValueError(
                f"{self.name}: std={self.std} found; a constant channel cannot be normalized."
            )


def from_splits(
    name: str, train: Split, test: Split, class_names: Sequence[str], max_value: float = 255.0
) -> Dataset:
    """Returns a checked :class:`Dataset` whose mean and std are those of the training split.

    Example:
      >>> images = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
      >>> split = Split(images, np.array([0, 1, 0, 1], np.int32))
      >>> from_splits("mine", train=split, test=split, class_names=("cat", "dog")).mean
      (7.5,)
    """
    class_names = tuple(class_names)
    # Before the statistics, which mean nothing for pixels that are NaN or of a wrong shape.
    _check(f"{name}, train split", train, len(class_names), max_value)
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
      name: its name in messages.

    Raises:
      ValueError: if the arrays cannot be trained on.

    Example:
      >>> images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1)
      >>> dataset = from_arrays(images, np.arange(10) % 2, class_names=("cat", "dog"))
      >>> dataset.train.images.shape, dataset.test.images.shape
      ((8, 1, 1, 1), (2, 1, 1, 1))
    """
    names = None if class_names is None else tuple(class_names)
    if names is None and _labels(labels).dtype.kind in "US":
        names = tuple(np.unique(_labels(labels).astype(str)).tolist())
    train = _split_of(images, labels, names, name)
    tested = None if test is None else _split_of(*test, names, name)
    labels = train.labels
    if names is None:
        classes = np.unique(labels)
        if len(classes) != classes[-1] + 1 or classes[0] < 0:
            raise ValueError(
                f"{name}: labels {classes[0]} to {classes[-1]} of {len(classes)} classes found; "
                "expected labels from 0 without a gap, as np.unique(labels, "
                "return_inverse=True)[1] numbers them, or class_names."
            )
        names = tuple(map(str, range(len(classes))))
    order = np.random.default_rng(0).permutation(len(labels))
    if tested is None:
        is_test = np.zeros(len(labels), bool)
        for label in np.unique(labels):
            rows = order[labels[order] == label]
            if len(rows) == 1:
                raise ValueError(
                    f"{name}: class {label} has one image; expected two or more, some to train on "
                    "and some to test on."
                )
            is_test[rows[: max(1, round(len(rows) / 5))]] = True
        chosen = order[is_test[order]]
        tested = Split(train.images[chosen], labels[chosen])
        order = order[~is_test[order]]
    if max_value is None:
        max_value = 255.0 if train.images.dtype == np.uint8 else 1.0
    return from_splits(name, Split(train.images[order], labels[order]), tested, names, max_value)


def _labels(labels: Any) -> np.ndarray:
    """An array of labels; pandas has texts as objects."""
    array = np.asarray(labels)
    is_text = array.dtype.kind == "O" and all(isinstance(each, str) for each in array.flat)
    return array.astype(str) if is_text else array


def _split_of(images: Any, labels: Any, names: Sequence[str] | None, where: str) -> Split:
    images, labels = np.asarray(images), _labels(labels)
    if labels.ndim == 2 and labels.shape[1] == 1:  # as Keras has them
        labels = labels[:, 0]
    if labels.dtype.kind in "US":
        texts, names = labels.astype(str), list(names or ())
        unknown = np.setdiff1d(texts, names)
        if unknown.size:
            raise ValueError(f"{where}: label {str(unknown[0])!r} found; expected one of {names}.")
        labels = np.argsort(names)[np.searchsorted(np.sort(names), texts)]
    elif labels.ndim == 2:
        if not (np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all()):
            raise ValueError(
                f"{where}: labels of shape {labels.shape} are not one-hot; expected integers [N], "
                "texts [N], or a single 1 among zeros in each row."
            )
        labels = labels.argmax(1)
    whole = labels.dtype.kind in "iu" and np.array_equal(labels, labels.astype(np.int32))
    if not whole or labels.shape != images.shape[:1] or not len(labels):
        raise ValueError(
            f"{where}: {len(images)} images and {len(labels)} labels of {labels.dtype} found, of "
            f"shape {labels.shape}; expected as many of both, and whole numbers [N]."
        )
    return Split(images[..., None] if images.ndim == 3 else images, labels.astype(np.int32))


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


def _check(where: str, split: Split, num_classes: int, max_value: float) -> None:
    images, labels = split.images, split.labels
    if images.ndim != 4 or not images.size or labels.shape != images.shape[:1]:
        raise ValueError(
            f"{where}: images {images.shape} and labels {labels.shape} found; expected "
            "[N, H, W, C] and [N]."
        )
    if images.shape[1] in (1, 3) and min(images.shape[2:]) > 4:
        raise ValueError(
            f"{where}: images of shape {images.shape} look like [N, C, H, W]; expected "
            "[N, H, W, C], as np.moveaxis(images, 1, -1) makes them."
        )
    if images.dtype != np.uint8 and images.dtype.kind != "f":
        raise ValueError(f"{where}: images of {images.dtype} found; expected uint8 or floats.")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{where}: labels of {labels.dtype} found; expected integers.")
    bad = ~((images >= 0) & (images <= max_value))  # NaN is bad, too
    if bad.any():
        index = tuple(map(int, np.unravel_index(bad.argmax(), bad.shape)))
        raise ValueError(f"{where}: pixel {index} is {images[index]}; expected 0 to {max_value}.")
    if images.dtype.kind == "f" and max_value >= 8 and 0 < images.max() <= 1:
        raise ValueError(
            f"{where}: the largest pixel is {images.max()}, as of images scaled to 0 to 1; "
            f"expected raw ones, from 0 to max_value={max_value}."
        )
    bad = (labels < 0) | (labels >= num_classes)
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(
            f"{where}: label {at} is {labels[at]}; expected a class in [0, {num_classes})."
        )


def fingerprint(value: Any) -> str:
    """The SHA-256 of data: of arrays, texts and numbers, in dataclasses, mappings and sequences.

    Names of data sets are left out: a run's settings have them. A set that stays on disk is known
    by its ``identity``, its name and version.

    Raises:
      TypeError: if there is something else in it.

    Example:
      >>> fingerprint(np.zeros(2))[:8], fingerprint({"a": np.zeros(2), "b": "x"})[:8]
      ('57b9c6ee', '94a95e3e')
    """
    digest = hashlib.sha256()
    for part in _parts(value):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if hasattr(value, "identity"):
        value = value.identity
    if hasattr(value, "__array__"):
        value = np.asarray(value)
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value) if field.name != "name"]
        yield from _parts({name: getattr(value, name) for name in names})
    elif isinstance(value, Mapping):
        yield f"{{{len(value)}".encode()
        for name, each in value.items():
            yield f"{name}=".encode()
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        yield f"[{len(value)}".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, str | bytes | int | float | None):
        yield f"{value!r};".encode()
    else:
        raise TypeError(f"a {type(value).__name__} found in data; expected arrays and texts.")
