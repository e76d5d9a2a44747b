"""ImageNet for the experiments: which images, how they are cut and read, and the options for it.

Where there is no ImageNet, the handwritten digits inside scikit-learn are written as JPEG files in
a data set of ImageNet's format, so that the same files, decoding, crops and streams are passed
through, only at 32 x 32 pixels.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nf_resnets import data
from nf_resnets.data import imagenet, stream

DIGITS = "digits_jpeg"
"""The name of the digits as a data set of JPEG files."""


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of an experiment on ImageNet."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits as JPEG files, minutes on two cores; paper: ImageNet,
    as published."""
    variants: tuple[str, ...] = ()
    """Rows of the table, with spaces between; by default all."""
    seeds: tuple[int, ...] = ()
    """Seeds, with spaces between; by default those of the scale."""
    steps: int = 0
    """Steps of each run; 0 for the scale's number."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps ImageNet; by default its own default. Digits need none."""
    out: Path | None = None
    """The results folder; by default runs/NAME-SCALE. Started again with the same folder, the
    command makes only what is missing, and goes on with a run that was cut."""
    workers: int = 0
    """Runs at a time; 0 for two on a CPU of two cores or more, else one."""
    reading_threads: int = 0
    """Images of a run decoded at a time; 0 for as many as there are cores, at least 4."""
    reading_processes: int = 0
    """Processes that make a run's batches, instead of the threads; 0 for threads."""


@dataclasses.dataclass(frozen=True)
class Images:
    """What is streamed, and how the images are cut.

    Attributes:
      dataset: a data set of ImageNet's format, or the digits.
      size: pixels on a side of what the network sees.
      short_side: what the shorter side is resized to before the test's central crop.
      lowest_area: the smallest share of the area that a training crop has.
      flip: whether half of the training images are mirrored.
      most: examples of each split, at most; 0 for all.
    """

    dataset: str = imagenet.IMAGENET
    size: int = 224
    short_side: int = 256
    lowest_area: float = 0.08
    flip: bool = True
    most: int = 0


SMALL_IMAGES = Images(DIGITS, size=32, short_side=32, lowest_area=0.6, flip=False)


def check_options(command: Command, known: Sequence[str]) -> None:
    """Refuses variants that there are not, and numbers of readers below 0.

    Raises:
      SystemExit: with one sentence that says which.
    """
    for name in command.variants:
        if name not in known:
            raise SystemExit(f"--variants {name} found; expected some of {', '.join(known)}.")
    for option in ("reading_threads", "reading_processes"):
        value = getattr(command, option)
        if value < 0:
            flag = option.replace("_", "-")
            raise SystemExit(f"--{flag} {value} found; expected at least 1, or 0 to choose.")


def reading_of(command: Command) -> stream.Reading:
    """How the runs of a command read ahead."""
    threads = command.reading_threads or max(4, os.cpu_count() or 1)
    return stream.Reading(threads=threads, workers=command.reading_processes)


def open_images(images: Images, data_dir: str | None) -> imagenet.EncodedDataset:
    """Opens the data set that the settings name; the digits are written to a temporary folder.

    Raises:
      SystemExit: if it is not there, or cannot be used; with the sentence that says why.
    """
    try:
        if images.dataset != DIGITS:
            dataset = imagenet.open_encoded(data_dir, images.dataset)
            for split in ("train", "validation"):
                dataset.split(split)
        else:
            folder = Path(tempfile.mkdtemp(prefix="nf_resnets-digits-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            write_digits(folder, most=images.most)
            dataset = imagenet.open_encoded(folder, DIGITS)
        import grain  # noqa: F401 (asked for before the first run, not in it)
    except (ValueError, OSError, ImportError) as error:
        raise SystemExit(str(error)) from None
    return dataset


def write_digits(folder: Path, *, most: int = 0) -> None:
    """Writes the digits as JPEG files of 32 x 32 pixels, in ImageNet's format.

    Args:
      folder: where the data set's own folder is made.
      most: digits of each split, at most; 0 for all.
    """
    import tensorflow_datasets as tfds
    from PIL import Image

    digits = data.load("digits")
    splits = {"train": digits.train, "validation": digits.test}

    def examples(split: data.Split) -> Iterator[tuple[str, dict[str, Any]]]:
        for index in range(min(len(split.labels), most or len(split.labels))):
            grey = np.round(split.images[index, :, :, 0] * (255 / digits.max_value))
            image = Image.fromarray(grey.astype(np.uint8)).resize(
                (32, 32), Image.Resampling.BICUBIC
            )
            file = io.BytesIO()
            image.convert("RGB").save(file, "JPEG", quality=95)
            file.seek(0)
            name, label = f"digit_{index}.JPEG", int(split.labels[index])
            yield name, {"image": file, "label": label, "file_name": name}

    class DigitsJpeg(tfds.core.GeneratorBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")
        pkg_dir_path = folder

        def _info(self) -> Any:
            features = {
                "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                "label": tfds.features.ClassLabel(names=digits.class_names),
                "file_name": tfds.features.Text(),
            }
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(features)
            )

        def _split_generators(self, _: Any) -> Any:
            return {name: examples(split) for name, split in splits.items()}

        def _generate_examples(self) -> Any:
            raise NotImplementedError("the splits are given by _split_generators")

    tfds.disable_progress_bar()
    # What TFDS prints on the way speaks of downloads, of which there is none.
    with contextlib.redirect_stdout(io.StringIO()):
        DigitsJpeg(data_dir=folder).download_and_prepare(file_format="array_record")


def steps_of(dataset: imagenet.EncodedDataset, batch_size: int, epochs: int) -> int:
    """The steps of a number of epochs."""
    return epochs * data.steps_per_epoch(dataset.split("train").num_examples, batch_size)


__all__ = [
    "DIGITS",
    "SMALL_IMAGES",
    "Command",
    "Images",
    "check_options",
    "open_images",
    "reading_of",
    "steps_of",
    "write_digits",
]
