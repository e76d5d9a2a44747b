"""Programs on images that are read from disk while the network trains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from nf_resnets import data
from nf_resnets.data import imagenet, stream
from nf_resnets.data.crop import RandomCrop
from nf_resnets.training.apply import eval_apply, train_apply
from nf_resnets.training.device_iterator import DeviceIterator, local_rows
from nf_resnets.training.host_steps import HostSteps
from nf_resnets.training.initial import CALIBRATION_EXAMPLES, Draw, make_initial
from nf_resnets.training.mesh import DATA
from nf_resnets.training.program import Program, Start, build
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.steps import METRICS
from nf_resnets.training.streamed import make_streamed_evaluate, make_streamed_step


@dataclasses.dataclass(frozen=True)
class StreamedTraining:
    """How the steps of a program on streamed images are made.

    Attributes:
      batch_size: examples in a step, over all devices.
      num_steps: steps of a run.
      crop: how training images are cropped.
      short_side: what the shorter side of a test image is resized to before its central crop.
      reading: how images are read ahead.
      mixup: ``alpha`` of the Beta distribution of the mixture; 0 for no mixing.
      micro_batches: into how many parts a device cuts its part of the batch.
      draw: which weights the schemes change (:func:`nf_resnets.training.draw_params`).
      label_smoothing: the fraction of a label that is spread over all classes.
    """

    batch_size: int
    num_steps: int
    crop: RandomCrop
    short_side: int
    reading: stream.Reading = stream.Reading()
    mixup: float = 0.0
    micro_batches: int = 1
    draw: Draw = "own"
    label_smoothing: float = 0.0


def streamed_program(
    model: Any,
    dataset: imagenet.EncodedDataset,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: StreamedTraining,
    example: Start | TrainState,
) -> Program:
    """As :func:`nf_resnets.training.image_program`, but images come from the host; one slot.

    Args:
      model: see there.
      dataset: with the splits ``train`` and ``validation``, the second of which is tested on.
      optimizer: see there.
      mesh: with a ``sweep`` axis of one.
      training: how the steps are made.
      example: the start of one of the runs.
    """
    train_split, size = dataset.split("train"), training.crop.size
    shards = mesh.shape[DATA] * training.micro_batches
    colours: dict[str, Any] = {"mean": imagenet.IMAGENET_MEAN, "std": imagenet.IMAGENET_STD}
    step = make_streamed_step(
        train_apply(model, shards=shards),
        optimizer,
        mesh,
        batch_size=training.batch_size,
        mixup=training.mixup,
        micro_batches=training.micro_batches,
        label_smoothing=training.label_smoothing,
        **colours,
    )

    def batches(seed: int, first_step: int) -> DeviceIterator:
        read = stream.training_stream(
            train_split,
            seed=seed,
            batch_size=training.batch_size,
            num_steps=training.num_steps,
            first_step=first_step,
            rows=local_rows(mesh, training.batch_size),
            crop=training.crop,
            reading=training.reading,
        )
        return DeviceIterator(read, mesh, training.batch_size)

    def first_images() -> np.ndarray:
        # Central crops: what a data-dependent scheme measures needs no random ones.
        count = min(CALIBRATION_EXAMPLES, train_split.num_examples)
        reading = dataclasses.replace(training.reading, workers=0)
        found = next(_test_batches(train_split, training, count, None, reading))
        return np.asarray(data.normalize(jnp.asarray(found["image"]), *colours.values()))

    host_steps = HostSteps(step, batches, mesh, METRICS)
    return build(
        mesh,
        make_initial(model, (jnp.zeros((1, size, size, 3)),), optimizer, draw=training.draw),
        example,
        slots=1,
        batch=first_images,
        compile_steps=lambda stacked: host_steps,
        num_steps=training.num_steps,
        model=model,
        steps_per_epoch=data.steps_per_epoch(train_split.num_examples, training.batch_size),
        metrics=METRICS,
        test=_test(model, dataset.split("validation"), mesh, training, colours),
        input_seconds=lambda: host_steps.seconds_waited,
        close=host_steps.close,
    )


def _test_batches(
    split: Any, training: StreamedTraining, batch_size: int, rows: Any, reading: stream.Reading
) -> Any:
    return stream.evaluation_stream(
        split,
        batch_size=batch_size,
        size=training.crop.size,
        short_side=training.short_side,
        rows=rows,
        reading=reading,
    )


def _test(
    model: Any, split: Any, mesh: Mesh, training: StreamedTraining, colours: Mapping[str, Any]
) -> Callable[[TrainState], Mapping[str, np.ndarray]]:
    evaluate = make_streamed_evaluate(eval_apply(model), mesh, **colours)
    devices = mesh.shape[DATA]
    size = -(-min(training.batch_size, split.num_examples) // devices) * devices

    def test(states: TrainState) -> Mapping[str, np.ndarray]:
        read = _test_batches(split, training, size, local_rows(mesh, size), training.reading)
        batches = DeviceIterator(read, mesh, size)
        try:
            return evaluate(states.tested_params, states.batch_stats, batches)
        finally:
            batches.close()

    return test


__all__ = ["StreamedTraining", "streamed_program"]
