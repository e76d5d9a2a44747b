"""ImageNet, and sets of its format: too large for memory, read one encoded image at a time.

The format is that of ``imagenet2012`` in TensorFlow Datasets: ``image`` (a JPEG), ``label``, and,
if the set has one, ``file_name``, by which messages call the image.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from nf_resnets.data.prepared import has_random_access, open_builder, quiet, readable

IMAGENET = "imagenet2012"

Box = tuple[float, float, float, float]
"""``(left, top, right, bottom)`` in pixels of the whole image, as Pillow has it."""

# Of the training images' pixels from 0 to 255, as every published pipeline has them.
IMAGENET_MEAN = (123.675, 116.28, 103.53)
IMAGENET_STD = (58.395, 57.12, 57.375)

# Those of ImageNet are JPEGs but for one, a PNG. Others are not tried: what looks like one of a
# hundred rare formats is more likely damage.
_FORMATS = ("JPEG", "PNG")

# How much more resolution than is needed is decoded: without a spare, the result would be sharper
# than that of the filter on the whole image.
_SPARE = 2


class Example:
    """One image of a split, of which nothing but the file's header has been decoded.

    Args:
      encoded: the bytes of its file.
      label: its class.
      index: its position in the split.
      where: its name in messages.

    Raises:
      ValueError: if it is no JPEG or PNG image.
    """

    def __init__(self, encoded: bytes, label: int = 0, index: int = 0, where: str = "image"):
        self.label, self.index, self.where = label, index, where
        try:
            self._image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
        except Exception as error:  # whatever decoders stumble over
            raise ValueError(
                f"{where}: {len(encoded)} bytes that begin with {encoded[:12]!r} found; expected a "
                "JPEG or PNG image."
            ) from error
        self.width, self.height = self._image.size

    def pixels(self, box: Box, size: int, *, flip: bool = False) -> np.ndarray:
        """Returns a box, resized to a square, as RGB: uint8 ``[size, size, 3]``.

        The filter is the bilinear one whose support grows with the reduction (Pillow's), as in the
        published pipelines. A large image, to be reduced to a quarter or less, is decoded at half
        the resolution or less, which JPEG's transform does for nothing.

        Raises:
          ValueError: if the file ends before the image does, or is damaged.
        """
        left, top, right, bottom = box
        try:
            across, down = size / (right - left), size / (bottom - top)
            if max(across, down) <= 1 / (2 * _SPARE):
                # The smallest of JPEG's four resolutions that is not less than the one asked for.
                asked = (int(_SPARE * self.width * across), int(_SPARE * self.height * down))
                self._image.draft(None, asked)
            image = self._image.convert("RGB")
        except Exception as error:  # whatever decoders stumble over
            raise ValueError(
                f"{self.where}: a damaged image of {self.width} x {self.height} pixels found "
                f"({error})."
            ) from error
        x, y = image.width / self.width, image.height / self.height
        box = (left * x, top * y, min(right * x, image.width), min(bottom * y, image.height))
        square = image.resize((size, size), Image.Resampling.BILINEAR, box=box)
        if flip:
            square = square.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(square)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedSplit:
    """One split on disk, read at any position.

    Attributes:
      where: its name in messages.
      folder: the folder of its files.
      source: gives the stored example of an index, ``image`` as the bytes of its file.
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
        """Name, version and number of examples."""
        return self.where, os.path.basename(self.folder), self.num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Example:
        """Returns an example; errors have the split, the index and the file's name."""
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
        return Example(stored["image"], label, index, where)


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedDataset:
    """A data set of encoded images on disk.

    Attributes:
      name: its name in messages.
      splits: those there are, by name; ImageNet has ``train`` and ``validation``.
      num_classes: labels are in ``[0, num_classes)``.
      class_names: one name per class.
    """

    name: str
    splits: Mapping[str, EncodedSplit]
    num_classes: int
    class_names: tuple[str, ...]


def open_encoded(
    data_dir: str | os.PathLike[str] | None = None, name: str = IMAGENET
) -> EncodedDataset:
    """Opens a data set in ImageNet's format that TensorFlow Datasets has prepared on disk.

    Args:
      data_dir: the folder that TensorFlow Datasets was given, which holds ``<name>/<version>``;
        None is its default.
      name: the name that TensorFlow Datasets gives the set.

    Raises:
      FileNotFoundError: if the data set is not there; the message has the command to prepare it.
      ValueError: if its files are not in array_record format.
      OSError: if its description is damaged.
    """
    builder = open_builder(name, data_dir)
    import tensorflow_datasets as tfds

    folder, info = builder.data_path, builder.info
    if not has_random_access(builder):
        raise ValueError(
            f"{name} in {folder} is in {info.file_format.value} format; expected array_record,"
            " whose images can be read in any order: prepare a copy in another folder with"
            ' download_and_prepare(file_format="array_record").'
        )
    features = info.features
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
    return EncodedDataset(name, splits, len(names), names)
