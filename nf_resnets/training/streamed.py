"""Programs on images that are read from disk while the network trains, and their compiled steps."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from nf_resnets import data
from nf_resnets.data import imagenet, stream
from nf_resnets.data.augment import example_keys
from nf_resnets.data.crop import RandomCrop
from nf_resnets.data.mixup import mixture
from nf_resnets.data.order import local_positions
from nf_resnets.training.apply import ApplyFn, eval_apply, train_apply
from nf_resnets.training.evaluate import batch_sums
from nf_resnets.training.host_steps import HostSteps, local_rows, on_devices
from nf_resnets.training.initial import CALIBRATION_EXAMPLES, Draw, make_initial
from nf_resnets.training.mesh import DATA, over_runs
from nf_resnets.training.program import Program, Start, build
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import Metrics, check_batch, replica_step
from nf_resnets.training.steps import METRICS

DeviceBatch = dict[str, jax.Array]

COLOURS = imagenet.IMAGENET_MEAN, imagenet.IMAGENET_STD


@dataclasses.dataclass(frozen=True)
class StreamedTraining:
    """How the steps of a program on streamed images are made.

    Attributes:
      crop: how training images are cropped.
      short_side: what the shorter side of a test image is resized to before its central crop.
      reading: how images are read ahead.
      mixup: ``alpha`` of the Beta distribution of the mixture; 0 for no mixing.

    The others are those of :class:`nf_resnets.training.ImageTraining`.
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

    The dataset has the splits ``train`` and ``validation``, the second of which is tested on; the
    mesh has a ``sweep`` axis of one.
    """
    train_split, size = dataset.splits["train"], training.crop.size
    shards = mesh.shape[DATA] * training.micro_batches
    step = make_streamed_step(
        train_apply(model, shards=shards), optimizer, mesh,
        batch_size=training.batch_size, mixup=training.mixup,
        micro_batches=training.micro_batches, label_smoothing=training.label_smoothing,
    )  # fmt: skip

    def batches(seed: int, first_step: int) -> Iterator[DeviceBatch]:
        read = stream.training_stream(
            train_split, seed=seed, batch_size=training.batch_size, num_steps=training.num_steps,
            first_step=first_step, rows=local_rows(mesh, training.batch_size), crop=training.crop,
            reading=training.reading,
        )  # fmt: skip
        return on_devices(read, mesh)

    def first_images() -> np.ndarray:
        # Central crops: what a data-dependent scheme measures needs no random ones.
        count = min(CALIBRATION_EXAMPLES, train_split.num_examples)
        reading = dataclasses.replace(training.reading, workers=0)
        batch = next(_test_batches(train_split, training, count, None, reading))
        return np.asarray(data.normalize(jnp.asarray(batch["image"]), *COLOURS))

    host_steps = HostSteps(step, batches, mesh, METRICS)
    return build(
        mesh,
        make_initial(model, (jnp.zeros((1, size, size, 3)),), optimizer, draw=training.draw),
        example,
        slots=1,
        batch=first_images,
        compile_steps=lambda stacked: host_steps,
        make_test=lambda states: _test(model, dataset.splits["validation"], mesh, training),
        num_steps=training.num_steps,
        model=model,
        steps_per_epoch=data.steps_per_epoch(train_split.num_examples, training.batch_size),
        metrics=METRICS,
        input_seconds=lambda: host_steps.seconds_waited,
        close=host_steps.close,
    )


def _test_batches(
    split: Any, training: StreamedTraining, batch_size: int, rows: Any, reading: stream.Reading
) -> Any:
    return stream.evaluation_stream(
        split, batch_size=batch_size, size=training.crop.size, short_side=training.short_side,
        rows=rows, reading=reading,
    )  # fmt: skip


def _test(
    model: Any, split: Any, mesh: Mesh, training: StreamedTraining
) -> Callable[[TrainState], Mapping[str, np.ndarray]]:
    evaluate = make_streamed_evaluate(eval_apply(model), mesh)
    devices = mesh.shape[DATA]
    size = -(-min(training.batch_size, split.num_examples) // devices) * devices

    def test(states: TrainState) -> Mapping[str, np.ndarray]:
        read = _test_batches(split, training, size, local_rows(mesh, size), training.reading)
        with contextlib.closing(on_devices(read, mesh)) as batches:
            return evaluate(states.tested_params, states.batch_stats, batches)

    return test


def make_streamed_step(
    apply_fn: ApplyFn,
    optimizer: OptimizerFn,
    mesh: Mesh,
    *,
    batch_size: int,
    mixup: float = 0.0,
    micro_batches: int = 1,
    label_smoothing: float = 0.0,
) -> jax.stages.Wrapped:
    """As :func:`nf_resnets.training.make_train_steps`, but one step on a batch from the host.

    Batches have ``image`` uint8 [B, H, W, C] and ``label`` int32 [B]; mixup and dropout follow from
    the run's seed. Every image is mixed with another one of the whole batch,
    by :func:`nf_resnets.data.mixture`: replicas send each other their images, as bytes, so that one
    device and eight give the same numbers.
    """
    check_batch(batch_size, mesh, micro_batches)

    def prepared(state: TrainState, batch: DeviceBatch) -> DeviceBatch:
        positions = local_positions(batch_size, DATA)
        images, labels = data.normalize(batch["image"], *COLOURS), batch["label"]
        keys = example_keys(state.seed, state.step, positions)
        plain = {"image": images, "label": labels, "keys": keys}
        if not mixup:
            return plain
        fraction, partners = mixture(mixup, state.seed, state.step, batch_size)
        partners = partners[positions]
        # Gathered as bytes: a quarter of what they are as numbers.
        all_images, all_labels = lax.all_gather((batch["image"], labels), DATA, tiled=True)
        others = data.normalize(all_images[partners], *COLOURS)
        return {
            **plain,
            "image": fraction * images + (1 - fraction) * others,
            "other_label": all_labels[partners],
            "fraction": jnp.full(labels.shape, fraction),
        }

    def one_run(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        return replica_step(
            state, prepared(state, batch), apply_fn=apply_fn, optimizer=optimizer, axis_name=DATA,
            micro_batches=micro_batches, label_smoothing=label_smoothing,
        )  # fmt: skip

    return over_runs(one_run, mesh, data=PartitionSpec(DATA), donate=True)


def make_streamed_evaluate(
    apply_fn: ApplyFn, mesh: Mesh
) -> Callable[[Any, Any, Iterable[DeviceBatch]], dict[str, np.ndarray]]:
    """Compiles ``evaluate(params, batch_stats, batches)`` of ``R`` runs on batches from the host.

    Batches have ``image``, ``label`` and ``counts`` float32 [B], 0 for an example that only fills
    the batch. It gives ``loss`` and ``accuracy`` float64 [R], means over all examples that count.
    """

    def one_run(params: Any, batch_stats: Any, batch: DeviceBatch) -> jax.Array:
        images = data.normalize(batch["image"], *COLOURS)
        sums = batch_sums(apply_fn, params, batch_stats, images, batch["label"], batch["counts"])
        return lax.psum(sums, DATA)

    # Whole on every process, for each adds up the sums of all runs by itself.
    sums_of = over_runs(one_run, mesh, data=PartitionSpec(DATA), whole=True)

    def evaluate(
        params: Any, batch_stats: Any, batches: Iterable[DeviceBatch]
    ) -> dict[str, np.ndarray]:
        total = np.zeros((jax.tree.leaves(params)[0].shape[0], 3))
        for batch in batches:
            needed = {name: batch[name] for name in ("image", "label", "counts")}
            total += np.asarray(sums_of(params, batch_stats, needed), np.float64)
        return {"loss": total[:, 0] / total[:, 2], "accuracy": total[:, 1] / total[:, 2]}

    return evaluate


__all__ = [
    "DeviceBatch", "StreamedTraining", "make_streamed_evaluate", "make_streamed_step",
    "streamed_program",
]  # fmt: skip
