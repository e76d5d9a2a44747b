"""Data sets by name, or by the path of a user's files.

TensorFlow Datasets are imported by the call that needs them.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import io
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from nf_resnets import places
from nf_resnets.data.dataset import Dataset, Split, from_arrays, from_splits
from nf_resnets.data.pictures import check_sides, decode, fitted
from nf_resnets.data.prepared import open_builder, quiet, read_examples, readable

DATASETS = ("digits", "cifar10", "cifar100", "svhn_cropped", "svhn_extra", "fashion_mnist")

_BINARY = {
    "cifar10": ("cifar-10-batches-bin", "data_batch_1.bin"),
    "cifar100": ("cifar-100-binary", "train.bin"),
}
"""The folders of the authors' binary files, and the first file in them."""

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

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm")
"""Of the files that are images; others are passed over, and so are names that begin with a dot."""

_TESTS = ("test", "val", "valid", "validation")
"""The names of a folder of the test split; the first that is there is used."""


def load(name: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a data set by name, or from files by their path.

    ``digits`` (1,797 handwritten digits, 8 x 8, pixels 0 to 16) lies inside scikit-learn; its split
    is ``np.random.default_rng(0).permutation(1797)``, of which the first 1,437 are for training.
    The others are read with TensorFlow Datasets, in the order of the files, from what has been
    prepared on disk: nothing is ever downloaded here. TensorFlow is needed for a copy in tfrecord
    format only. ``svhn_extra`` is ``svhn_cropped`` with its 531,131 easier images after the 73,257
    of the training split, as published results have it. ``cifar10[:5000]`` has the first 5,000
    images of the training split, and the whole test split.

    Args:
      name: one of ``DATASETS``, or the first images of one; or the path of a folder for
        :func:`from_folder`, as ``"photos"``, ``"photos@32"`` for ``size=32`` or ``"photos@32x48"``
        for ``size=(32, 48)``; or that of an ``.npz`` file for :func:`from_npz`, or of the binary
        files for :func:`from_cifar`.
      data_dir: the folder that TensorFlow Datasets was given, which holds ``<name>/<version>``;
        None is its default. For CIFAR also the folder of the binary files, or the one in which
        ``cifar-10-batches-bin`` or ``cifar-100-binary`` lies.

    Raises:
      ValueError: if the name is unknown or the data cannot be trained on.
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ModuleNotFoundError: if a package that reads it is not installed.
      OSError: if its files are damaged.

    Example:
      >>> load("digits").train.images.shape
      (1437, 8, 8, 1)
      >>> load("digits[:100]").train.images.shape
      (100, 8, 8, 1)
    """
    name = os.fspath(name)
    if part := re.fullmatch(rf"({'|'.join(DATASETS)})\[:(\d+)\]", name):
        return _first(load(part[1], data_dir), int(part[2]))
    if name not in DATASETS:
        return _from_path(name)
    if name in _BINARY and data_dir is not None:
        root, (inner, first) = Path(data_dir).expanduser(), _BINARY[name]
        for folder in (root, root / inner):
            if (folder / first).is_file():
                return dataclasses.replace(_from_cifar(folder, first), name=name)
    return _digits() if name == "digits" else _from_tfds(name, data_dir)


def _first(whole: Dataset, count: int) -> Dataset:
    name, train = f"{whole.name}[:{count}]", whole.train
    if not 0 < count <= len(train.labels):
        raise ValueError(f"data set {name!r} found; it has {len(train.labels):,} training images.")
    part = Split(train.images[:count], train.labels[:count])
    return from_splits(name, part, whole.test, whole.class_names, whole.max_value)


def _from_path(name: str) -> Dataset:
    path, size = (name, None) if os.path.isdir(name) else _parsed(name)
    if path.endswith(".npz"):
        return from_npz(path)
    if any((Path(path).expanduser() / first).is_file() for first in _CIFAR):
        return from_cifar(path)
    if os.sep in path or os.path.isdir(path):
        return from_folder(path, size=size)
    raise ValueError(
        f"unknown data set {name!r}; known are {', '.join(DATASETS)}, and paths of "
        "folders of images, .npz files and CIFAR's binary files."
    )


def _digits() -> Dataset:
    # Read as scikit-learn does, which takes seconds and 80 MB to be imported.
    spec: Any = importlib.util.find_spec("sklearn")
    (package,) = spec.submodule_search_locations
    table = np.loadtxt(f"{package}/datasets/data/digits.csv.gz", np.uint8, delimiter=",")
    images, labels = table[:, :64].reshape(-1, 8, 8, 1), table[:, 64].astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = (Split(images[rows], labels[rows]) for rows in (order[:1437], order[1437:]))
    return from_splits("digits", train, test, tuple("0123456789"), max_value=16.0)


def _from_tfds(name: str, data_dir: str | os.PathLike[str] | None) -> Dataset:
    stored = "svhn_cropped" if name == "svhn_extra" else name
    builder = open_builder(stored, data_dir)
    with quiet(), readable(stored, builder.data_path):
        train = _read(builder, "train+extra" if name == "svhn_extra" else "train")
        test = _read(builder, "test")
        class_names = tuple(builder.info.features["label"].names)
    return from_splits(name, train, test, class_names)


def _read(builder: Any, split: str) -> Split:
    count = sum(builder.info.splits[part].num_examples for part in split.split("+"))
    images = np.empty((count, *builder.info.features["image"].shape), np.uint8)
    labels = np.empty(count, np.int32)
    for row, example in enumerate(read_examples(builder, split)):
        images[row], labels[row] = example["image"], example["label"]
    return Split(images, labels)


def from_cifar(folder: str | os.PathLike[str]) -> Dataset:
    """Reads CIFAR-10 or CIFAR-100, with its fine labels, from the binary files of its authors.

    Args:
      folder: ``cifar-10-batches-bin`` or ``cifar-100-binary``, as the authors' archives hold them.

    Raises:
      ValueError: if a file has another length than whole images; it is named.
      OSError: if a file is missing.
    """
    path = Path(folder).expanduser()
    first = next((name for name in _CIFAR if (path / name).is_file()), "data_batch_1.bin")
    return _from_cifar(path, first)


def _from_cifar(path: Path, first: str) -> Dataset:
    train, test, label_bytes, meta = _CIFAR[first]
    names = places.read_file(path / meta).decode("ascii", "replace").split()
    training = _records([path / name for name in train], label_bytes)
    return from_splits(str(path), training, _records([path / test], label_bytes), names)


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


def from_npz(path: str | os.PathLike[str]) -> Dataset:
    """Reads a data set from the arrays of a ``.npz`` file, as :func:`from_arrays` takes them.

    Args:
      path: of a file with ``images`` and ``labels``, and maybe ``test_images`` and
        ``test_labels``; or with ``x_train``, ``y_train``, ``x_test``, ``y_test``, as Keras names
        them; without pickle.

    Raises:
      ValueError: if the file cannot be read, an array is missing, or they cannot be trained on.
    """
    data = places.read_file(path)
    expected = " or ".join(f"{each[0]} and {each[1]}" for each in _ARRAYS)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            names = next((each for each in _ARRAYS if each[0] in arrays), _ARRAYS[0])
            wanted = names if {*names[2:]} & {*arrays} else names[:2]
            missing = [name for name in wanted if name not in arrays]
            found = [] if missing else [arrays[name] for name in wanted]
    except Exception:  # NumPy, zipfile and zlib each raise their own
        raise ValueError(
            f"{path} cannot be read; expected an .npz file with {expected}, without pickle."
        ) from None
    if missing:
        raise ValueError(f"{path} has no array {missing[0]}; expected {expected}.")
    images, labels, *test = found
    return from_arrays(images, labels, test=tuple(test) or None, name=str(path))


def from_folder(
    path: str | os.PathLike[str], *, size: int | tuple[int, int] | None = None
) -> Dataset:
    """Reads a data set from a folder that has a folder of image files for each class.

    The classes are the folders' names, in their order. Where ``train/`` and ``test/`` (or ``val/``,
    ``valid/``, ``validation/``) lie in the folder, they are the splits, and the classes lie in
    them; otherwise the images are split as :func:`from_arrays` does, in the order of classes and
    file names. Image files end in ``.png``, ``.jpg``, ``.jpeg``, ``.webp``, ``.bmp``, ``.tif``,
    ``.tiff``, ``.ppm`` or ``.pgm``; other files are passed over. Images have one channel if all of
    them are grey, else three. All are held in memory.

    Args:
      path: of the folder; ``~`` is expanded.
      size: height and width in pixels, or one number for both: the middle of an image, in these
        proportions, is resized with a bicubic filter. Without it all images must be of one size.

    Raises:
      ValueError: if it has less than two classes, a class has no images, an image cannot be read,
        or sizes differ; the sentence names the folder or the file.
    """
    folder = Path(path).expanduser()
    sides = size if size is None or isinstance(size, tuple) else (size, size)
    if sides is not None:
        check_sides(f"size={size!r}", *sides)
    tests = [folder / name for name in _TESTS if (folder / name).is_dir()]
    has_splits = bool(tests) and (folder / "train").is_dir()
    train = _files(folder / "train" if has_splits else folder)
    test = _files(tests[0]) if has_splits else {}
    names = list(train)
    if len(names) < 2 or (has_splits and not test) or not test.keys() <= train.keys():
        found = f"{', '.join(names) or 'no class'} to train on" + (
            f" and {', '.join(test) or 'no class'} to test on" if has_splits else ""
        )
        raise ValueError(
            f"{folder} has {found}; expected a folder of images for each of two or more classes."
        )
    if not has_splits and {name.lower() for name in names} & {"train", "training", *_TESTS}:
        raise ValueError(
            f"{folder} has the folders {', '.join(names)}; expected a folder for each class, or "
            f"splits called train and {_TESTS[0]} (or {', '.join(_TESTS[1:])})."
        )
    labelled = [(file, names.index(name)) for split in (train, test)
                for name, files in split.items() for file in files]  # fmt: skip
    images = _images([file for file, _ in labelled], sides)
    labels = np.array([label for _, label in labelled], np.int32)
    count = sum(map(len, train.values()))
    return from_arrays(
        images[:count], labels[:count], test=(images[count:], labels[count:]) if test else None,
        class_names=tuple(names), name=str(folder),
    )  # fmt: skip


def _parsed(name: str) -> tuple[str, tuple[int, int] | None]:
    """Reads PATH, PATH@SIZE or PATH@HEIGHTxWIDTH."""
    match = re.fullmatch(r"(.+)@(\d+)(?:x(\d+))?", name)
    return (match[1], (int(match[2]), int(match[3] or match[2]))) if match else (name, None)


def _files(folder: Path) -> dict[str, list[Path]]:
    """The images of each class, at any depth, in the order of their names."""
    files = {
        each.name: [
            file for file in sorted(each.rglob("*"))
            if file.suffix.lower() in _ENDINGS and not file.is_dir()
            and not any(part.startswith(".") for part in file.relative_to(each).parts)
        ]
        for each in sorted(folder.iterdir())
        if each.is_dir() and not each.name.startswith(".")
    }  # fmt: skip
    for name in files:
        if not files[name]:
            raise ValueError(
                f"{folder / name} has no images; expected files that end in {', '.join(_ENDINGS)}."
            )
    return files


def _images(files: list[Path], sides: tuple[int, int] | None) -> np.ndarray:
    def read(file: Path) -> np.ndarray:
        picture = decode(file, places.read_file(file))
        pixels = np.asarray(fitted(picture, *sides) if sides else picture)
        return pixels[..., :1] if (pixels == pixels[..., :1]).all() else pixels

    images: list[np.ndarray] = []
    with ThreadPoolExecutor() as pool:
        for file, pixels in zip(files, pool.map(read, files), strict=True):
            images.append(pixels)
            if pixels.shape[:2] != images[0].shape[:2]:
                pool.shutdown(cancel_futures=True)
                raise ValueError(
                    f"{file} has {pixels.shape[:2]} pixels, and {files[0]} {images[0].shape[:2]}; "
                    "expected images of one size, or a size to resize them to, such as size=32 "
                    "(--dataset PATH@32)."
                )
    shape = *images[0].shape[:2], max(pixels.shape[-1] for pixels in images)
    return np.stack([np.broadcast_to(pixels, shape) for pixels in images])
