"""ImageNet, and sets of its format: too large for memory, read one encoded image at a time.

The format is that of ``imagenet2012`` in TensorFlow Datasets: ``image`` (a JPEG), ``label``, and,
if the set has one, ``file_name``, by which messages call the image.
"""

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from nf_resnets.data.decode import ImageFile
from nf_resnets.data.prepared import (
    has_random_access,
    open_builder,
    prepare_command,
    quiet,
    readable,
    root_of,
)

IMAGENET = "imagenet2012"

# Of the training images' pixels from 0 to 255, as every published pipeline has them.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)


class Example(NamedTuple):
    """One image of a split, of which nothing but the file's header has been decoded.

    Attributes:
      image: its file.
      label: its class.
      where: what messages call it.
    """

    image: ImageFile
    label: int
    where: str


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSplit:
    """One split on disk, read at any position.

    Attributes:
      where: what messages call it.
      folder: where its files are.
      source: what gives the stored example of an index, ``image`` as the bytes of its file.
      num_examples: how many there are.
      num_classes: labels are in ``[0, num_classes)``.
    """

    where: str
    folder: str
    source: Any
    num_examples: int
    num_classes: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """What tells it from other splits: name, version and number of examples."""
        return self.where, os.path.basename(self.folder), self.num_examples

    def __getitem__(self, index: int) -> Example:
        """Returns an example.

        Raises:
          ValueError: if it is no image, or its label is no class; with the split, the index and
            the file's name.
          OSError: if its file on disk cannot be read.
        """
        with readable(self.where, self.folder):
            stored = self.source[index]
        name = stored.get("file_name")
        name = f" ({name.decode(errors='replace')})" if isinstance(name, bytes) else ""
        where = f"{self.where}, example {index}{name}"
        label = int(stored["label"])
        if not 0 <= label < self.num_classes:
            raise ValueError(
                f"{where}: label {label} found; expected a class in [0, {self.num_classes})."
            )
        try:
            return Example(ImageFile(stored["image"]), label, where)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedDataset:
    """A data set of encoded images on disk.

    Attributes:
      name: what messages call it.
      splits: those there are, by name; ImageNet has ``train`` and ``validation``.
      num_classes: labels are in ``[0, num_classes)``.
      class_names: one name per class.
    """

    name: str
    splits: Mapping[str, EncodedSplit]
    num_classes: int
    class_names: tuple[str, ...]

    def split(self, name: str) -> EncodedSplit:
        """Returns a split.

        Raises:
          ValueError: if there is none of that name; the message lists those there are.
        """
        if name not in self.splits:
            raise ValueError(
                f"split={name!r} found; {self.name} has {', '.join(self.splits) or 'none'}."
            )
        return self.splits[name]


def open_encoded(
    data_dir: str | os.PathLike[str] | None = None, name: str = IMAGENET
) -> EncodedDataset:
    """Opens a data set in ImageNet's format that TensorFlow Datasets has prepared on disk.

    Nothing is read yet but the description, from which the number of classes and examples comes.

    Args:
      data_dir: the folder that TensorFlow Datasets was given, which holds ``<name>/<version>``;
        None is its default.
      name: the name that TensorFlow Datasets gives the set.

    Raises:
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ModuleNotFoundError: if its files are of a format that is not read at any position.
      ValueError: if it has no images with labels.
      OSError: if its description is damaged.

    Example:
      >>> dataset = open_encoded("/data", "imagenet2012")  # doctest: +SKIP
      >>> dataset.num_classes, dataset.split("train").num_examples  # doctest: +SKIP
      (1000, 1281167)
    """
    import tensorflow_datasets as tfds

    builder = open_builder(name, data_dir)
    folder, info = builder.data_path, builder.info
    if not has_random_access(builder):
        raise ModuleNotFoundError(
            f"{name} in {folder} is in {info.file_format.value} format; expected array_record,"
            " whose images can be read in any order: prepare a copy in another folder with"
            f" {prepare_command(name, root_of(builder) / 'array_record')}."
        )
    features = info.features
    kinds = (("image", tfds.features.Image), ("label", tfds.features.ClassLabel))
    if not all(key in features and isinstance(features[key], kind) for key, kind in kinds):
        raise ValueError(
            f"{name} in {folder} has {', '.join(features)}; expected an image and a label."
        )
    splits = {}
    decoders = {"image": tfds.decode.SkipDecoding()}
    for split, description in info.splits.items():
        with quiet(), readable(name, folder):
            source = builder.as_data_source(split, decoders=decoders)
        splits[split] = EncodedSplit(
            where=f"{name}, {split} split",
            folder=str(folder),
            source=source,
            num_examples=description.num_examples,
            num_classes=features["label"].num_classes,
        )
    names = tuple(features["label"].names)
    return EncodedDataset(name, splits, features["label"].num_classes, names)


__all__ = [
    "IMAGENET",
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "EncodedDataset",
    "EncodedSplit",
    "Example",
    "open_encoded",
]
