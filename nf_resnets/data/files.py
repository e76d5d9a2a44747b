"""Data sets from files of arrays: those of CIFAR's authors, and NumPy's ``.npz``."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path

import numpy as np

from nf_resnets import places
from nf_resnets.data.dataset import Dataset, Split, from_arrays, from_splits

# By the first file of the training split: its files, the test split's, bytes of labels, names.
_CIFAR = {
    "data_batch_1.bin": (
        [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin", 1, "batches.meta.txt"
    ),
    "train.bin": (["train.bin"], "test.bin", 2, "fine_label_names.txt"),
}  # fmt: skip
_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE

# What NumPy raises for files that are none of its own, among others for a single array.
_UNREADABLE = (
    ValueError, OSError, KeyError, EOFError, MemoryError, AttributeError, TypeError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip

_ARRAYS = (
    ("images", "labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)


def is_cifar(folder: str | os.PathLike[str]) -> bool:
    """Tells whether a folder holds the binary files of CIFAR-10 or CIFAR-100."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in _CIFAR)


def from_cifar(folder: str | os.PathLike[str]) -> Dataset:
    """Reads CIFAR-10 or CIFAR-100 from the binary files of its authors, in their order.

    Args:
      folder: ``cifar-10-batches-bin`` or ``cifar-100-binary``, as the authors' archives hold them;
        CIFAR-100 has its fine labels.

    Returns:
      The data set, uint8 images [N, 32, 32, 3] and int32 labels [N].

    Raises:
      ValueError: if a file is missing or has another length than whole images; it is named.
    """
    path = places.expanded(folder)
    first = next((name for name in _CIFAR if (path / name).is_file()), None)
    if first is None:
        raise ValueError(f"{path} has no {' or '.join(_CIFAR)}; expected CIFAR's binary files.")
    train, test, label_bytes, meta = _CIFAR[first]
    names = tuple(_read(path / meta).decode("ascii", "replace").split())
    training = _joined([_records(path / name, label_bytes) for name in train])
    tested = _joined([_records(path / test, label_bytes)])
    return from_splits(str(path), training, tested, class_names=names)


def from_npz(path: str | os.PathLike[str]) -> Dataset:
    """Reads a data set from the arrays of a ``.npz`` file, without pickle.

    Args:
      path: of a file with ``images`` and ``labels``, and maybe ``test_images`` and
        ``test_labels``; or with ``x_train``, ``y_train``, ``x_test``, ``y_test``, as Keras names
        them. They are taken as :func:`from_arrays` does.

    Returns:
      The data set.

    Raises:
      ValueError: if the file cannot be read, an array is missing, or they cannot be trained on.

    Example:
      >>> import tempfile
      >>> file = os.path.join(tempfile.mkdtemp(), "mine.npz")
      >>> images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1)
      >>> np.savez(file, images=images, labels=np.array(["cat", "dog"] * 5))
      >>> from_npz(file).class_names
      ('cat', 'dog')
    """
    path = places.expanded(path)
    try:
        with places.open_file(path) as stream, np.load(stream, allow_pickle=False) as arrays:
            names = next((each for each in _ARRAYS if each[0] in arrays), None)
            if names is None:
                raise ValueError(f"it has {', '.join(arrays)}")
            images, labels = (arrays[name] for name in names[:2])
            has_test = any(name in arrays for name in names[2:])
            test = tuple(arrays[name] for name in names[2:]) if has_test else None
    except _UNREADABLE as error:
        reason = " ".join(str(error).split()).removesuffix(".") or type(error).__name__
        expected = " or ".join(f"{each[0]} and {each[1]}" for each in _ARRAYS)
        raise ValueError(
            f"{path} cannot be read: {reason}; expected an .npz file with {expected}."
        ) from None
    return from_arrays(images, labels, test=test, name=str(path))


def _records(path: Path, label_bytes: int) -> Split:
    records = np.frombuffer(_read(path), np.uint8)
    size = label_bytes + _PIXELS
    if not records.size or records.size % size:
        raise ValueError(f"{path} has {records.size:,} bytes; expected a multiple of {size:,}.")
    records = records.reshape(-1, size)
    images = records[:, label_bytes:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return Split(images, records[:, label_bytes - 1].astype(np.int32))


def _joined(splits: list[Split]) -> Split:
    images, labels = zip(*((each.images, each.labels) for each in splits), strict=True)
    return Split(np.ascontiguousarray(np.concatenate(images)), np.concatenate(labels))


def _read(path: Path) -> bytes:
    try:
        return places.read_file(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from None


__all__ = ["from_cifar", "from_npz", "is_cifar"]
