"""The inputs of a trained network: images of one shape and scale, or sentences of one language."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from nf_resnets.data import Dataset
from nf_resnets.data.pictures import check_sides


@dataclasses.dataclass(frozen=True)
class Images:
    """Images as a network was trained on them, and the names of their classes.

    Lists and NumPy's numbers become tuples of Python's, as a file gives them back.

    Attributes:
      shape: ``(H, W, C)``.
      mean: of the training pixels, for each channel, in raw pixel units.
      std: of the training pixels, for each channel, in raw pixel units.
      max_value: the raw value of a white pixel: 16 for digits, 255 for most others.
      class_names: one for each class, in the order of the logits.
      crop: the fraction of an image's shorter side that is used, in its middle; 0.875 where
        networks are tested on 224 of 256 pixels.

    Raises:
      ValueError: if a number is out of its range, or there is not one mean and std a channel.
    """

    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    max_value: float
    class_names: tuple[str, ...]
    crop: float = 1.0

    def __post_init__(self) -> None:
        kinds: dict[str, Any] = {"shape": int, "mean": float, "std": float, "class_names": str}
        for name, kind in kinds.items():
            object.__setattr__(self, name, tuple(map(kind, getattr(self, name))))
        *sides, channels = self.shape
        check_sides(f"shape={self.shape}", *sides)
        numbers = f"for each of the {channels} channels"
        for name, fits, expected in (
            ("shape", len(sides) == 2 and channels in (1, 3), "(H, W, C) with 1 channel, or 3"),
            ("mean", len(self.mean) == channels and all(map(math.isfinite, self.mean)),
             f"a finite number {numbers}"),
            ("std", len(self.std) == channels and all(0 < x < math.inf for x in self.std),
             f"a number above 0 {numbers}"),
            ("max_value", 0 < self.max_value < math.inf, "a number above 0"),
            ("crop", 0 < self.crop <= 1, "a number above 0 and up to 1"),
            ("class_names", len(self.class_names) >= 2, "two or more"),
        ):  # fmt: skip
            if not fits:
                raise ValueError(f"{name}={getattr(self, name)!r} found; expected {expected}.")

    @classmethod
    def of(cls, dataset: Dataset) -> Images:
        """Those of a data set."""
        shape, white = dataset.train.images.shape[1:], float(dataset.max_value)
        return cls(shape, dataset.mean, dataset.std, white, dataset.class_names)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """Sentences of two languages, such as ``"de"``, and the SentencePiece models of their tokens.

    The two vocabularies are the same bytes where the languages share one.
    """

    source: str
    target: str
    source_vocabulary: bytes = dataclasses.field(repr=False)
    target_vocabulary: bytes = dataclasses.field(repr=False)
