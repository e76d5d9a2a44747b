"""ImageNet for the experiments: which images, how they are cropped and read, and the options.

Without ImageNet the handwritten digits inside scikit-learn are made JPEG files in memory. They use
the same decoding, crops and streams, at 32 x 32 pixels.
"""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nf_resnets import data, models, optim, schemes, training
from nf_resnets.data import imagenet
from nf_resnets.plotting.curves import Panel, curves_figure, smoothed
from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.image_task import bn_groups_of, drops_at

from .experiment import Experiment, Results, Row, curve_of
from .grid import Point
from .main import Command
from .table import mean_curves
from .task import HostTask, Setup, shared

DIGITS = "digits_jpeg"
"""The name of the digits as a data set of JPEG files."""

IMAGENET = {
    "dataset": imagenet.IMAGENET, "size": 224, "short_side": 256, "lowest_area": 0.08,
    "flip": True, "most": 0, "stem_channels": 64, "weight_decay": 1e-4, "peak_lr": 0.1,
    "mixup": 0.0, "micro_batch": 0, "warmup_epochs": 0.0, "optimizer": "sgd", "dtype": "float32",
    "steps": 0, "scalar_factor": 0.1, "evaluate_every": 0,
}  # fmt: skip
"""The images, ``size`` pixels on a side, and the usual crops; ``most`` examples of each split, 0
for all. ``ghost_batch`` is BatchNorm's slice, ``micro_batch`` what is in memory at a time."""
SMALL = IMAGENET | {
    "dataset": DIGITS, "size": 32, "short_side": 32, "lowest_area": 0.6, "flip": False,
    "stem_channels": 8,
}  # fmt: skip


def task(
    options: Callable[[Point], Mapping[str, Any]], points: Sequence[Point], command: Command
) -> HostTask:
    """The runs of points on the images of one data set."""
    encoded = open_images(shared(points, "dataset", "most"), command.data_dir)
    return HostTask(encoded, functools.partial(setup, options))


def setup(
    options: Callable[[Point], Mapping[str, Any]], point: Point, encoded: imagenet.EncodedDataset
) -> Setup:
    """Network, optimizer and steps of a point; ``options(point)`` are further ones of the network.

    As many images are decoded at a time as there are cores, and at least 4.
    """
    batch = point["batch_size"]
    per_epoch = data.steps_per_epoch(encoded.splits["train"].num_examples, batch)
    num_steps = point["steps"] or round(point["epochs"] * per_epoch)
    warmup = min(num_steps, round(point["warmup_epochs"] * per_epoch))
    model = models.make(
        point["model"], point["scheme"], num_classes=encoded.num_classes,
        stem_channels=point["stem_channels"], dtype=models.dtype_of(point["dtype"]),
        bn_groups=bn_groups_of(
            schemes.get(point["scheme"]), batch, point["ghost_batch"], point["micro_batch"] or batch
        ),
        **options(point),
    )  # fmt: skip

    def optimizer(hyper: Mapping[str, Any]) -> Any:
        schedule = optim.halving(hyper["learning_rate"], num_steps)
        if "drops" in point:
            boundaries = sorted(set(drops_at(point["drops"], num_steps)))
            schedule = optim.step_decay(hyper["learning_rate"], boundaries, 0.1)
        rule, _ = optim.OPTIMIZERS[point["optimizer"]]
        return rule(
            optim.warmup(schedule, warmup),
            weight_decay=point["weight_decay"],
            scheme=model.scheme,
            scalar_factor=point["scalar_factor"],
        )

    crop = data.RandomCrop(point["size"], area=(point["lowest_area"], 1.0), flip=point["flip"])
    how = training.ImageTraining(
        batch_size=batch,
        num_steps=num_steps,
        augmentation=data.Augmentation(mixup=point["mixup"]),
        micro_batches=-(-batch // (point["micro_batch"] or batch)),
        draw="own",
    )
    threads = max(4, os.cpu_count() or 1)
    source = training.Streamed(encoded, crop, point["short_side"], threads)
    return Setup(training.streamed_program, model, source, optimizer, how, per_epoch)


def open_images(point: Point, data_dir: str | None) -> imagenet.EncodedDataset:
    """Opens the data set that a point names."""
    import grain  # noqa: F401 (asked for before the first run, not in it)

    if point["dataset"] == DIGITS:
        return digits_jpeg(point["most"])
    return imagenet.open_encoded(data_dir, point["dataset"])


def digits_jpeg(most: int = 0) -> imagenet.EncodedDataset:
    """The digits as JPEG files of 32 x 32 pixels, as a data set of ImageNet's format in memory."""
    digits, splits = data.load("digits"), {}
    for name, split in (("train", digits.train), ("validation", digits.test)):
        stored = []
        for pixels, label in list(zip(split.images, split.labels, strict=True))[: most or None]:
            grey = np.round(pixels[..., 0] * (255 / digits.max_value)).astype(np.uint8)
            image = Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC)
            file = io.BytesIO()
            image.convert("RGB").save(file, "JPEG", quality=95)
            stored.append({"image": file.getvalue(), "label": label})
        splits[name] = imagenet.EncodedSplit(
            f"{DIGITS}, {name} split", "memory", stored, len(stored), digits.num_classes
        )
    return imagenet.EncodedDataset(DIGITS, splits, digits.num_classes, digits.class_names)


def columns(row: Row) -> Row:
    """The accuracy on the training batches, a mean over the last tenth of the steps."""
    accuracy = row["measures"]["curve"]["accuracy"]
    return {"train_accuracy": float(np.mean(accuracy[-max(1, len(accuracy) // 10) :]))}


def panels_figure(results: Results, panels: Mapping[str, Sequence[Row]], path: Path) -> None:
    """Draws the training accuracy, a panel for the rows of each name, seeds as a band."""
    drawn = []
    for name, rows in panels.items():
        curves = mean_curves(results, rows)
        window = -(-max(len(curve.x) for curve in curves) // 20)
        smooth = [smoothed(curve, window) for curve in curves]
        heading = name if len(panels) > 1 else ""
        drawn.append(
            Panel("step", "training accuracy (%)", smooth, y_limits=(0, 100), heading=heading)
        )
    subtitle = f"{results.about}; means of a twentieth of the run"
    curves_figure(drawn, path, title="Training accuracy", subtitle=subtitle)


def experiment(name: str, *arguments: Any, options: Any = lambda point: {}, **fields: Any) -> Any:
    """An experiment on streamed images; ``options(point)`` are further ones of its network."""
    execution = Execution(devices_per_run=0, runs_per_device=1)
    fields = {"columns": columns, "lines": curve_of, "execution": execution, **fields}
    return Experiment(name, *arguments, task=functools.partial(task, options), typed=dict, **fields)
