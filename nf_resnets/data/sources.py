"""Data sets by name or path.

TensorFlow Datasets are imported by the call that needs them.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
from typing import Any

import numpy as np

from nf_resnets.data.dataset import Dataset, Split, from_splits
from nf_resnets.data.files import from_cifar, from_npz, is_cifar
from nf_resnets.data.folder import from_folder, parse
from nf_resnets.data.prepared import open_builder, quiet, read_examples, readable

DATASETS = ("digits", "cifar10", "cifar100", "svhn_cropped", "svhn_extra", "fashion_mnist")

_BINARY = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
"""The folders of the authors' binary files."""


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
        return _from_path(str(name))
    if name in _BINARY and data_dir is not None:
        root = os.path.expanduser(data_dir)
        for folder in (root, os.path.join(root, _BINARY[name])):
            if is_cifar(folder):
                return dataclasses.replace(from_cifar(folder), name=name)
    return _digits() if name == "digits" else _from_tfds(name, data_dir)


def _from_path(name: str) -> Dataset:
    path, size = (name, None) if os.path.isdir(name) else parse(name)
    if path.endswith(".npz"):
        return from_npz(path)
    if is_cifar(os.path.expanduser(path)):
        return from_cifar(path)
    if os.sep in path or os.path.isdir(path):
        return from_folder(path, size=size)
    close = difflib.get_close_matches(name.lower(), DATASETS, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(
        f"unknown data set {name!r}{hint}; known are {', '.join(DATASETS)}, and paths of "
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


__all__ = ["DATASETS", "load"]
