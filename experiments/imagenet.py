"""ImageNet for the experiments: which images, how they are cropped and read, and the options.

Without ImageNet the handwritten digits inside scikit-learn are written as JPEG files in a data set
of ImageNet's format. They use the same decoding, crops and streams, at 32 x 32 pixels.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nf_resnets import data, optim, schemes
from nf_resnets.data import imagenet, stream
from nf_resnets.data.crop import RandomCrop
from nf_resnets.plotting.curves import Panel, curves_figure, smoothed
from nf_resnets.training import StreamedTraining

from . import experiment
from .experiment import Point, Results, Setup, curve_lines, mean_curves, number
from .findings import RULE, who_trains_where
from .folder import Row
from .table import seeds_shown

DIGITS = "digits_jpeg"
"""The name of the digits as a data set of JPEG files."""


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of an experiment on ImageNet."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits as JPEG files, minutes on two cores; paper: ImageNet,
    as published."""
    variants: tuple[str, ...] = ()
    """Rows of the table, with spaces between; by default all."""
    reading_threads: int = 0
    """Images of a run decoded at a time; 0 for as many as there are cores, at least 4."""
    reading_processes: int = 0
    """Processes that make a run's batches, instead of the threads; 0 for threads."""


@dataclasses.dataclass(frozen=True)
class Images:
    """What is streamed, and how the images are cut."""

    dataset: str = imagenet.IMAGENET  # or another of its format, or the digits
    size: int = 224  # pixels on a side of what the network sees
    short_side: int = 256  # what is resized to this before the test's central crop
    lowest_area: float = 0.08  # of a training crop, as a share of the image's
    flip: bool = True  # half of the training images
    most: int = 0  # examples of each split; 0 for all


SMALL_IMAGES = Images(DIGITS, size=32, short_side=32, lowest_area=0.6, flip=False)


@dataclasses.dataclass(frozen=True)
class Streamed:
    """The images on disk, and how they are read ahead."""

    encoded: imagenet.EncodedDataset
    reading: stream.Reading

    @property
    def identity(self) -> imagenet.EncodedDataset:
        """What of it the numbers of a run depend on."""
        return self.encoded

    @property
    def name(self) -> str:
        """Of the data set."""
        return self.encoded.name

    @property
    def num_classes(self) -> int:
        """Labels are in ``[0, num_classes)``."""
        return self.encoded.num_classes

    def steps(self, batch_size: int, epochs: int = 1) -> int:
        """The steps of a number of epochs."""
        return epochs * data.steps_per_epoch(self.encoded.split("train").num_examples, batch_size)


def lengths(streamed: Streamed, batch_size: int, epochs: int, steps: int | None) -> dict[str, int]:
    """The lengths of a :class:`Point`: its steps, by default those of the epochs, and its batch."""
    num_steps, epoch = steps or streamed.steps(batch_size, epochs), streamed.steps(batch_size)
    return {"num_steps": num_steps, "steps_per_epoch": epoch, "batch_size": batch_size}


def load(settings: Any, command: Command) -> Streamed:
    """Opens the data set that the settings name, to be read as the command says."""
    for option in ("reading_threads", "reading_processes"):
        if (value := getattr(command, option)) < 0:
            flag = option.replace("_", "-")
            raise ValueError(f"--{flag} {value} found; expected at least 1, or 0 to choose.")
    threads = command.reading_threads or max(4, os.cpu_count() or 1)
    reading = stream.Reading(threads=threads, workers=command.reading_processes)
    return Streamed(open_images(settings.images, command.data_dir), reading)


def open_images(images: Images, data_dir: str | None) -> imagenet.EncodedDataset:
    """Opens the data set that the settings name; the digits are written to a temporary folder."""
    import grain  # noqa: F401 (asked for before the first run, not in it)

    if images.dataset == DIGITS:
        folder = Path(tempfile.mkdtemp(prefix="nf_resnets-digits-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        write_digits(folder, most=images.most)
        return imagenet.open_encoded(folder, DIGITS)
    dataset = imagenet.open_encoded(data_dir, images.dataset)
    for split in ("train", "validation"):
        dataset.split(split)
    return dataset


def write_digits(folder: Path, *, most: int = 0) -> None:
    """Writes the digits as JPEG files of 32 x 32 pixels into a data set of ImageNet's format."""
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


def streamed_setup(
    model: Any,
    settings: Any,
    streamed: Streamed,
    point: Point,
    *,
    schedule: Callable[[Any], Any],
    mixup: float = 0.0,
    micro_batch: int = 0,
    scheme: schemes.Scheme | None = None,
    **groups: Any,
) -> Setup:
    """A network that is trained by SGD, or as the command says, on streamed images.

    Args:
      model: the network.
      settings: ``images``, ``momentum`` and ``weight_decay``.
      streamed: how the images are read.
      point: one of the runs.
      schedule: ``schedule(rate)`` is the learning rate, a function of the step.
      mixup: ``alpha`` of the Beta distribution of the mixture; 0 for no mixing.
      micro_batch: examples of a step in memory at a time, at most; 0 for all.
      scheme: whose scalars are slow; None for the network's.
      groups: other arguments of :func:`nf_resnets.optim.sgd`.
    """

    def optimizer(hyper: dict[str, Any], name: optim.Name = "sgd") -> Any:
        rule, _ = optim.OPTIMIZERS[name]
        return rule(
            schedule(hyper["learning_rate"]),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            scheme=scheme or model.scheme,
            **groups,
        )

    images = settings.images
    training = StreamedTraining(
        batch_size=point.batch_size,
        num_steps=point.num_steps,
        crop=RandomCrop(images.size, area=(images.lowest_area, 1.0), flip=images.flip),
        short_side=images.short_side,
        reading=streamed.reading,
        mixup=mixup,
        micro_batches=-(-point.batch_size // (micro_batch or point.batch_size)),
    )
    return Setup(model, optimizer, training, streamed.encoded)


def drops_at(drops: Sequence[float], num_steps: int) -> list[int]:
    """The steps after which parts of a run are over."""
    return sorted({max(1, round(drop * num_steps)) for drop in drops})


OUTCOME = (
    "status", "steps", "first_step", "batch_size", "test_accuracy", "test_loss", "train_accuracy",
    "train_loss", "input_wait", "input_share", "seconds", "seconds_per_step",
)  # fmt: skip
"""The columns that tell the outcome of a run: ``train_*`` are means over the last tenth of its
steps; ``first_step`` is where it was last resumed, and of the steps since then are the waits."""


def row(settings: Any, point: Point, run: Mapping[str, Any]) -> Row:
    """The columns that runs on images in memory have not."""
    measures = run["measures"]
    curve = measures["curve"]
    last = slice(-max(1, len(curve["step"]) // 10), None)
    return {
        "first_step": measures["resumed_at"],
        "train_accuracy": float(np.mean([number(value) for value in curve["accuracy"][last]])),
        "train_loss": float(np.mean([number(value) for value in curve["loss"][last]])),
        "input_wait": round(number(measures["input_wait"]), 3),
        "input_share": round(number(measures["input_fraction"]), 4),
    }


CURVES = curve_lines(lambda settings: 200)


def heading(results: Results) -> str:
    """What stands above the tables."""
    return f"Top-1 (%) on {results.data.name}; published: on ImageNet, by the paper:"


def note(shows: Mapping[str, str], results: Results) -> str:
    """What a scale can show, and how long the runs waited for their input."""
    waited = sum(float(row["input_wait"]) for row in results.rows)
    seconds = sum(float(row["seconds"]) for row in results.rows)
    stalls = (
        f"Waiting for input took {waited:.1f} s of the runs' {seconds:.0f} s "
        f"({100 * waited / max(seconds, 1e-9):.0f}%)."
    )
    return "\n".join(filter(None, [shows[results.command.scale], stalls]))


def named(dataset: str) -> str:
    """What figures call a data set."""
    return "Digits as JPEG files" if dataset == DIGITS else dataset


def plot_panels(
    results: Results, panels: Mapping[str, Sequence[Row]], path: Path, *, at: str, subtitle: str
) -> None:
    """Draws the training accuracy, a panel for the rows of each name, seeds as a band.

    The title says who trains ``at`` (or ``"in"``) which.
    """
    drawn = []
    for name, rows in panels.items():
        curves = mean_curves(dataclasses.replace(results, rows=rows), "title")
        window = -(-max(len(curve.x) for curve in curves) // 20)
        drawn.append(
            Panel(
                "step",
                "training accuracy (%)",
                [smoothed(curve, window) for curve in curves],
                y_limits=(0, 100),
                heading=name if len(panels) > 1 else "",
            )
        )
    shown = [{**row, "panel": name} for name, rows in panels.items() for row in rows]
    curves_figure(
        drawn,
        path,
        title=who_trains_where(panels, results.chance, at=at),
        subtitle=(
            f"{named(results.data.name)}, {subtitle}; {seeds_shown(shown, 'panel', 'title')}; "
            f"curves are means of a twentieth of the run. {RULE.format(what='test accuracy')}"
        ),
    )


__all__ = [
    "CURVES", "DIGITS", "OUTCOME", "SMALL_IMAGES", "Command", "Images", "Streamed", "drops_at",
    "heading", "lengths", "load", "note", "open_images", "plot_panels", "row", "streamed_setup",
    "write_digits",
]  # fmt: skip
