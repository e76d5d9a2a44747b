"""Data sets from files of arrays: those of CIFAR's authors, and NumPy's ``.npz``."""

from __future__ import annotations

import io
import os
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
      ValueError: if a file has another length than whole images; it is named.
      OSError: if a file is missing.
    """
    path = Path(folder).expanduser()
    first = next((name for name in _CIFAR if (path / name).is_file()), "data_batch_1.bin")
    train, test, label_bytes, meta = _CIFAR[first]
    names = places.read_file(path / meta).decode("ascii", "replace").split()
    training = _records([path / name for name in train], label_bytes)
    return from_splits(str(path), training, _records([path / test], label_bytes), names)


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
    """
    data = places.read_file(path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            names = next(each for each in _ARRAYS if each[0] in arrays)
            images, labels = (arrays[name] for name in names[:2])
            has_test = any(name in arrays for name in names[2:])
            test = tuple(arrays[name] for name in names[2:]) if has_test else None
    except Exception as error:  # NumPy, zipfile and zlib each raise their own
        expected = " or ".join(f"{each[0]} and {each[1]}" for each in _ARRAYS)
        raise ValueError(
            f"{path} cannot be read ({error!r}); expected an .npz file with {expected}."
        ) from None
    return from_arrays(images, labels, test=test, name=str(path))


def _records(paths: list[Path], label_bytes: int) -> Split:
    size, splits = label_bytes + 3 * _SIDE * _SIDE, []
    for path in paths:
        data = np.frombuffer(places.read_file(path), np.uint8)
        if not data.size or data.size % size:
            raise ValueError(f"{path} has {data.size:,} bytes; expected a multiple of {size:,}.")
        splits.append(data.reshape(-1, size))
    records = np.concatenate(splits)
    images = records[:, label_bytes:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return Split(np.ascontiguousarray(images), records[:, label_bytes - 1].astype(np.int32))


__all__ = ["from_cifar", "from_npz", "is_cifar"]
