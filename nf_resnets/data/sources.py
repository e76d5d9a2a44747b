"""Data sets by name or path.

scikit-learn and TensorFlow Datasets are imported by the call that needs them, so that importing
the library costs neither.
"""

import dataclasses
import difflib
import importlib.util
import os
from typing import Any

import numpy as np

from nf_resnets.data.dataset import Dataset, Split, from_splits
from nf_resnets.data.files import from_cifar, from_npz, is_cifar
from nf_resnets.data.folder import from_folder, parse
from nf_resnets.data.prepared import (
    has_random_access,
    open_builder,
    prepare_command,
    quiet,
    readable,
    with_tensorflow,
)

DATASETS = ("digits", "cifar10", "cifar100", "svhn_cropped", "svhn_extra", "fashion_mnist")

_BINARY = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
"""What the archives of the authors' binary files unpack to."""

# Names of ours for what TensorFlow Datasets has under another one, and the splits trained on.
_TRAINED_ON = {"svhn_extra": ("svhn_cropped", "train+extra")}


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Dataset:
    """Loads a data set by name, or from files by their path.

    ``digits`` (1,797 handwritten digits, 8 x 8, pixels 0 to 16) lies inside scikit-learn; its split
    is ``np.random.default_rng(0).permutation(1797)``, of which the first 1,437 are for training and
    the last 360 for testing. The others are read with TensorFlow Datasets, in the order of the
    files, from what has been prepared on disk: nothing is ever downloaded here. TensorFlow is
    needed for a copy in tfrecord format only. ``svhn_extra`` is ``svhn_cropped`` with its 531,131
    easier images, the split ``extra``, after the 73,257 of the training split, as published results
    on SVHN have it.

    Args:
      name: one of ``DATASETS``; or the path of a folder for :func:`from_folder`, as ``"photos"``,
        ``"photos@32"`` for ``size=32`` or ``"photos@32x48"`` for ``size=(32, 48)``; or that of an
        ``.npz`` file for :func:`from_npz`, or of the binary files for :func:`from_cifar`.
      data_dir: the folder that TensorFlow Datasets was given, which holds ``<name>/<version>``;
        None is its default. For ``cifar10`` also the folder of the binary files, or the one in
        which ``cifar-10-batches-bin`` lies. Not used for ``digits``.

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
        path, size = parse(str(name)) if not os.path.isdir(name) else (str(name), None)
        if size is None and path.endswith(".npz"):
            return from_npz(path)
        if size is None and is_cifar(os.path.expanduser(path)):
            return from_cifar(path)
        if os.sep in path or os.path.isdir(path):
            return from_folder(path, size=size)
        close = difflib.get_close_matches(str(name).lower(), DATASETS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(
            f"unknown data set {name!r}{hint}; known are {', '.join(DATASETS)}, and paths of "
            "folders of images, .npz files and CIFAR's binary files."
        )
    if name in _BINARY and data_dir is not None:
        root = os.path.expanduser(data_dir)
        for folder in (root, os.path.join(root, _BINARY[name])):
            if is_cifar(folder):
                return dataclasses.replace(from_cifar(folder), name=name)
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
    tfds = with_tensorflow()
    # A cycle length of one reads the files one after another, as ArrayRecord does.
    config = tfds.ReadConfig(interleave_cycle_length=1)
    dataset = builder.as_dataset(split, batch_size=-1, shuffle_files=False, read_config=config)
    arrays = tfds.as_numpy(dataset)
    return Split(arrays["image"], arrays["label"].astype(np.int32))


__all__ = ["DATASETS", "load"]
