"""What the experiments on ImageNet share: the streamed images, a network's program, one run of it.

Where there is no ImageNet, the handwritten digits inside scikit-learn are written as JPEG files in
a data set of ImageNet's format, so that the same files, decoding, crops and streams are passed
through, only at 32 x 32 pixels.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import io
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from experiments.curves import CurvesFile
from experiments.folder import ResultsFolder, Row
from experiments.training_run import OnStep
from nf_resnets import data, schemes, training
from nf_resnets.data import imagenet, stream
from nf_resnets.data.crop import RandomCrop
from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.feed import Feed, local_rows
from nf_resnets.training.streamed import make_streamed_evaluate, make_streamed_step
from nf_resnets.training.streamed_loop import train_streamed

DIGITS = "digits_jpeg"
"""The name of the digits as a data set of JPEG files."""

CALIBRATION_IMAGES = 128  # RescaleNet's authors found that many to be enough
CURVE_POINTS = 200  # of a run, at most


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


@dataclasses.dataclass(frozen=True)
class StreamedProgram:
    """What the runs of one network share: the compiled functions, and what they are fed with.

    Attributes:
      model: the network.
      mesh: the devices.
      dataset: the images on disk.
      images: how they are cut.
      reading: how they are read ahead.
      batch_size: examples in a step.
      steps: steps of a run.
      steps_per_epoch: steps of one pass through the training split.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      initial: ``initial(scheme, key)`` gives the variables of a network before its first step.
      step: the training step.
      evaluate: loss and accuracy on a stream.
    """

    model: Any
    mesh: jax.sharding.Mesh
    dataset: imagenet.EncodedDataset
    images: Images
    reading: stream.Reading
    batch_size: int
    steps: int
    steps_per_epoch: int
    optimizer: Callable[[dict[str, Any]], Any]
    initial: Callable[[schemes.Scheme, jax.Array], Any]
    step: Any
    evaluate: Any


def steps_of(dataset: imagenet.EncodedDataset, batch_size: int, epochs: int) -> int:
    """The steps of a number of epochs."""
    return epochs * data.steps_per_epoch(dataset.split("train").num_examples, batch_size)


def build_program(
    model: Any,
    dataset: imagenet.EncodedDataset,
    images: Images,
    reading: stream.Reading,
    optimizer: Callable[[dict[str, Any]], Any],
    *,
    batch_size: int,
    steps: int,
    mixup: float = 0.0,
    micro_batches: int = 1,
) -> StreamedProgram:
    """Builds what the runs of one network need; everything is compiled at its first call.

    Args:
      model: a network of :mod:`nf_resnets.models`, whose scheme gives the anatomy.
      dataset: what it is trained and tested on.
      images: how the images are cut.
      reading: how they are read ahead.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      batch_size: examples in a step.
      steps: steps of a run.
      mixup: ``alpha`` of the Beta distribution of the shares; 0 for no mixing.
      micro_batches: into how many parts a device cuts its share of the batch.
    """
    norm = schemes.get(model.scheme).anatomy.norm
    # As many devices as divide the batch, and, for BatchNorm, the batch's slices.
    slices = (model.bn_groups if norm == "batch" else batch_size) // micro_batches
    devices = math.gcd(slices, batch_size // micro_batches, len(jax.devices()))
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    colours = {"mean": imagenet.IMAGENET_MEAN, "std": imagenet.IMAGENET_STD}
    return StreamedProgram(
        model=model,
        mesh=mesh,
        dataset=dataset,
        images=images,
        reading=reading,
        batch_size=batch_size,
        steps=steps,
        steps_per_epoch=steps_of(dataset, batch_size, 1),
        optimizer=optimizer,
        initial=_make_initial(model, dataset, images, reading),
        step=make_streamed_step(
            training.train_apply(model, shards=devices * micro_batches),
            optimizer,
            mesh,
            batch_size=batch_size,
            mixup=mixup,
            micro_batches=micro_batches,
            **colours,
        ),
        evaluate=make_streamed_evaluate(training.eval_apply(model), mesh, **colours),
    )


def _make_initial(
    model: Any, dataset: imagenet.EncodedDataset, images: Images, reading: stream.Reading
) -> Callable[[schemes.Scheme, jax.Array], Any]:
    # It runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.partial(jax.jit, static_argnums=0, compiler_options=quickly)
    def drawn(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = model.init(key, jnp.zeros((1, images.size, images.size, 3)))
        params = scheme.init(variables["params"], model.num_branches, key=key)
        return {**variables, "params": params}

    def initial(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = drawn(scheme, key)
        if scheme.calibrate is None:
            return variables
        split = dataset.split("train")
        count = min(CALIBRATION_IMAGES, split.num_examples)
        # Central crops of the first training images: the channel means need no random ones.
        first = next(
            stream.evaluation_stream(
                split,
                batch_size=count,
                size=images.size,
                short_side=images.short_side,
                reading=dataclasses.replace(reading, workers=0),
            )
        )
        pixels = data.normalize(first["image"], imagenet.IMAGENET_MEAN, imagenet.IMAGENET_STD)
        return {**variables, "params": scheme.calibrate(model.apply, variables["params"], pixels)}

    return initial


OUTCOME = (
    "status", "steps", "first_step", "batch_size", "test_accuracy", "test_loss", "train_accuracy",
    "train_loss", "input_wait", "input_share", "seconds", "seconds_per_step",
)  # fmt: skip
"""The columns that :func:`make_run` fills. Steps, times and waits are those since the run was last
resumed, at ``first_step``; ``train_*`` are means over the last tenth of these steps;
``input_share`` and ``seconds_per_step`` leave out the first, which contains the compilation."""

CURVE_COLUMNS = ("step", "loss", "accuracy")


def make_run(
    program: StreamedProgram,
    scheme: schemes.Scheme,
    seed: int,
    hyper: dict[str, float],
    on_step: OnStep,
    *,
    checkpoints: Checkpoints,
    curves: CurvesFile,
    key: Mapping[str, Any],
    save_every: int = 1_000,
) -> Row:
    """Trains one network of a program, from its checkpoint if there is one, and tests it once.

    Args:
      program: what the runs of its network share.
      scheme: how it is initialised; of the anatomy that the program was made for.
      seed: from which weights, data order and crops follow.
      hyper: the numbers that the program's optimizer takes.
      on_step: called after each step with the number of steps made and the step's metrics.
      checkpoints: where it is saved.
      curves: where its curve goes.
      key: the columns that name the run.
      save_every: steps between two checkpoints.

    Returns:
      The columns of ``OUTCOME``.
    """
    start = time.perf_counter()
    variables = program.initial(scheme, jax.random.key(seed))
    state = training.create_state(
        variables["params"],
        program.optimizer,
        hyper,
        batch_stats=variables.get("batch_stats"),
        seed=seed,
    )
    crop = RandomCrop(
        program.images.size, area=(program.images.lowest_area, 1.0), flip=program.images.flip
    )
    batches = functools.partial(
        stream.training_stream,
        program.dataset.split("train"),
        seed=seed,
        batch_size=program.batch_size,
        num_steps=program.steps,
        crop=crop,
        reading=program.reading,
    )
    times: list[float] = []
    share = math.nan

    def tick(step: int, metrics: dict[str, float]) -> None:
        nonlocal share
        share = metrics["input_share"]
        times[1:] = [time.perf_counter()]  # the first and the latest
        on_step(step, metrics)

    made = train_streamed(
        program.step,
        state,
        lambda first_step, rows: batches(first_step=first_step, rows=rows),
        program.mesh,
        num_steps=program.steps,
        batch_size=program.batch_size,
        checkpoints=checkpoints,
        save_every=save_every,
        on_step=tick,
    )
    if made.curve:
        curves.put(key, list(thinned(made.curve, made.first_step)))
    test = {"accuracy": math.nan, "loss": math.nan}
    status = made.status
    if status == "finished":
        test = _test(program, made.state)
        # The last update itself may have been the one too many.
        if not math.isfinite(test["loss"]):
            status, test["accuracy"] = "diverged", math.nan
    last = made.curve[-max(1, len(made.curve) // 10) :]
    per_step = (times[-1] - times[0]) / (len(made.curve) - 1) if len(times) > 1 else math.nan
    return {
        "status": status,
        "steps": len(made.curve),
        "first_step": made.first_step,
        "batch_size": program.batch_size,
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "train_accuracy": _mean([metrics["accuracy"] for metrics in last]),
        "train_loss": _mean([metrics["loss"] for metrics in last]),
        "input_wait": round(made.waited, 3),
        "input_share": round(share, 4),
        "seconds": round(time.perf_counter() - start, 2),
        "seconds_per_step": round(per_step, 5),
    }


def _test(program: StreamedProgram, state: training.TrainState) -> dict[str, float]:
    split = program.dataset.split("validation")
    devices = program.mesh.shape[training.DATA]
    size = -(-min(program.batch_size, split.num_examples) // devices) * devices
    batches = stream.evaluation_stream(
        split,
        batch_size=size,
        size=program.images.size,
        short_side=program.images.short_side,
        rows=local_rows(program.mesh, size),
        reading=program.reading,
    )
    stacked = training.spread_runs(training.stack([state]), program.mesh)
    feed = Feed(batches, program.mesh, size)
    try:
        found = program.evaluate(stacked.params, stacked.batch_stats, feed)
    finally:
        feed.close()
    return {name: float(value[0]) for name, value in found.items()}


def thinned(curve: Sequence[Mapping[str, float]], first_step: int) -> Iterator[dict[str, float]]:
    """Means over equal parts of a curve, ``CURVE_POINTS`` at most, each at the last step of it."""
    parts = min(CURVE_POINTS, len(curve))
    ends = [len(curve) * part // parts for part in range(parts + 1)]
    for start, end in zip(ends, ends[1:], strict=False):
        part = curve[start:end]
        yield {
            "step": first_step + end,
            "loss": _mean([metrics["loss"] for metrics in part]),
            "accuracy": _mean([metrics["accuracy"] for metrics in part]),
        }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def checkpoints_of(
    folder: ResultsFolder, settings: Any, key: Mapping[str, Any], *, grid: Sequence[str]
) -> Checkpoints:
    """The checkpoints of one run, inside the results folder.

    Args:
      folder: the results folder.
      settings: on what the run depends, but for those of the grid.
      key: the columns that name the run.
      grid: names of those settings that only say which runs there are to be.
    """
    name = "-".join(str(value) for value in key.values())
    fixed = {field: value for field, value in vars(settings).items() if field not in grid}
    fixed["images"] = dataclasses.asdict(settings.images)
    return Checkpoints(folder.path / "checkpoints" / name, {"settings": fixed, "run": dict(key)})


def drop_checkpoints(
    folder: ResultsFolder, settings: Any, keys: Sequence[Mapping[str, Any]], *, grid: Sequence[str]
) -> None:
    """Removes the checkpoints of those runs whose rows are in the folder."""
    for key in keys:
        if folder.has(**key):
            try:
                checkpoints_of(folder, settings, key, grid=grid).delete()
            except CheckpointError as error:
                print(error)
    left = folder.path / "checkpoints"
    if left.is_dir() and not any(left.iterdir()):
        left.rmdir()


def plot_accuracy(
    panels: Mapping[str, Sequence[Row]], curves: CurvesFile, path: Any, title: str, subtitle: str
) -> None:
    """Draws the accuracy on the training batches against the step, one panel for each name."""
    drawn = []
    for name, rows in panels.items():
        if not rows:
            continue
        lines = []
        for row in rows:
            points = curves.of(row)
            lines.append(
                Curve(
                    row["title"],
                    [int(point["step"]) for point in points],
                    [100 * float(point["accuracy"]) for point in points],
                    diverged=row["status"] == "diverged",
                )
            )
        drawn.append(Panel("step", f"training accuracy (%), {name}", lines, y_limits=(0, 100)))
    if drawn:
        curves_figure(drawn, path, title=title, subtitle=subtitle)


def rows_of(folder: ResultsFolder, keys: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Those rows of a folder that are named, in that order."""
    named = [{name: str(value) for name, value in key.items()} for key in keys]
    return [row for key in named for row in folder.rows if key.items() <= row.items()]


def mean_cell(rows: Sequence[Mapping[str, Any]], column: str, *, error: bool = False) -> str:
    """The mean of an accuracy, or of the error, in percent, of runs that finished."""
    found = [100 * float(row[column]) for row in rows if row["status"] == "finished"]
    gone = len(rows) - len(found)
    mean = sum(100 - value if error else value for value in found) / max(len(found), 1)
    return " ".join(
        filter(None, [f"{mean:.1f}" if found else "", f"({gone} diverged)" if gone else ""])
    )


def stalls(rows: Sequence[Row]) -> str:
    """One sentence on how long the runs waited for their input."""
    waited = sum(float(row["input_wait"]) for row in rows)
    seconds = sum(float(row["seconds"]) for row in rows)
    return (
        f"Waiting for input took {waited:.1f} s of the runs' {seconds:.0f} s "
        f"({100 * waited / max(seconds, 1e-9):.0f}%)."
    )


__all__ = [
    "CALIBRATION_IMAGES",
    "CURVE_COLUMNS",
    "DIGITS",
    "OUTCOME",
    "SMALL_IMAGES",
    "Command",
    "Images",
    "StreamedProgram",
    "build_program",
    "check_options",
    "checkpoints_of",
    "drop_checkpoints",
    "make_run",
    "mean_cell",
    "open_images",
    "plot_accuracy",
    "reading_of",
    "rows_of",
    "stalls",
    "steps_of",
    "thinned",
    "write_digits",
]
