"""Programs on images that are read from disk while the network trains."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from nf_resnets import data
from nf_resnets.data import imagenet, stream
from nf_resnets.data.batch import mix
from nf_resnets.training.apply import eval_apply
from nf_resnets.training.evaluate import batch_sums
from nf_resnets.training.host_steps import (
    HostSteps,
    PrepareFn,
    host_step,
    local_rows,
    on_devices,
)
from nf_resnets.training.images import ImageTraining
from nf_resnets.training.mesh import DATA, over_runs
from nf_resnets.training.program import Program, Start, build
from nf_resnets.training.state import OptimizerFn, TrainState

COLOURS = imagenet.IMAGENET_MEAN, imagenet.IMAGENET_STD


@dataclasses.dataclass(frozen=True)
class Streamed:
    """Images that are read from disk while a network trains.

    Attributes:
      dataset: with the splits ``train`` and ``validation``, the second of which is tested on.
      crop: how training images are cropped.
      short_side: what the shorter side of a test image is resized to before its central crop.
      threads: how many images are decoded at a time.
    """

    dataset: imagenet.EncodedDataset
    crop: data.RandomCrop
    short_side: int
    threads: int = stream.THREADS

    def test_batches(self, split: str, batch_size: int, rows: Any = None) -> Any:
        """The images of a split, cropped in the middle."""
        return stream.evaluation_stream(
            self.dataset.splits[split], batch_size=batch_size, size=self.crop.size,
            short_side=self.short_side, rows=rows, threads=self.threads,
        )  # fmt: skip


def streamed_program(
    model: Any,
    dataset: Streamed,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: ImageTraining,
    example: Start | TrainState,
) -> Program:
    """As :func:`nf_resnets.training.image_program`, but images come from the host; one slot.

    The mesh has a ``sweep`` axis of one.

    Raises:
      ValueError: as there, and if ``training`` asks for what streamed images do not have.
    """
    alone = data.Augmentation(mixup=training.augmentation.mixup)
    if training.augmentation != alone or training.bn_estimate_batches:
        raise ValueError(
            f"{training.augmentation} and bn_estimate_batches={training.bn_estimate_batches} found "
            "for streamed images; expected mixup alone (the crop is that of Streamed)."
        )
    split, size = dataset.dataset.splits["train"], training.batch_size

    def batches(seed: int, first_step: int) -> Iterator[dict[str, jax.Array]]:
        read = stream.training_stream(
            split, seed=seed, batch_size=size, num_steps=training.num_steps,
            first_step=first_step, rows=local_rows(mesh, size), crop=dataset.crop,
            threads=dataset.threads,
        )  # fmt: skip
        return on_devices(read, mesh)

    def first_images() -> np.ndarray:
        # Central crops: what a data-dependent scheme measures needs no random ones.
        count = min(training.calibration_examples, split.num_examples)
        batch = next(dataset.test_batches("train", count))
        return np.asarray(data.normalize(jnp.asarray(batch["image"]), *COLOURS))

    side = dataset.crop.size
    step = host_step(
        training.loss(model, mesh), mixed(size, training.augmentation.mixup), optimizer, mesh,
        micro_batches=training.micro_batches, gradient_noise=training.gradient_noise,
    )  # fmt: skip
    return build(
        mesh,
        training.initial(model, (side, side, 3), optimizer, example),
        example,
        slots=1,
        steps=HostSteps(step, batches, mesh, training.metrics),
        metrics=training.metrics,
        batch=first_images,
        make_test=lambda states: _test(model, dataset, mesh, size),
        num_steps=training.num_steps,
        model=model,
        steps_per_epoch=data.steps_per_epoch(split.num_examples, size),
    )


def mixed(batch_size: int, mixup: float = 0.0) -> PrepareFn:
    """Makes of ``image`` uint8 [B, H, W, C] and ``label`` int32 [B] the batch of a step.

    Images are mixed as :func:`nf_resnets.data.training_batch` mixes them.
    """

    def prepare(state: TrainState, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
        seed, step = state.seed, state.step
        keys = data.example_keys(seed, step, data.local_positions(batch_size, DATA))
        images = data.normalize(batch["image"], *COLOURS)
        plain = {"image": images, "label": batch["label"], "keys": keys}
        if not mixup:
            return plain
        return mix(plain, mixup, seed, step, batch_size=batch_size, axis_name=DATA)

    return prepare


def _test(
    model: Any, dataset: Streamed, mesh: Mesh, batch_size: int
) -> Callable[[TrainState], Mapping[str, np.ndarray]]:
    """Compiles the test of a run: means over the examples that do not just fill a batch."""
    apply_fn, devices = eval_apply(model), mesh.shape[DATA]
    size = -(-min(batch_size, dataset.dataset.splits["validation"].num_examples) // devices)
    size *= devices

    def one_run(params: Any, batch_stats: Any, batch: dict[str, jax.Array]) -> jax.Array:
        images = data.normalize(batch["image"], *COLOURS)
        sums = batch_sums(apply_fn, params, batch_stats, images, batch["label"], batch["counts"])
        return lax.psum(sums, DATA)

    # Whole on every process, for each adds up the sums by itself.
    sums_of = over_runs(one_run, mesh, data=PartitionSpec(DATA), whole=True)

    def test(states: TrainState) -> Mapping[str, np.ndarray]:
        read = dataset.test_batches("validation", size, local_rows(mesh, size))
        total = np.zeros((1, 3))
        with contextlib.closing(on_devices(read, mesh)) as batches:
            for batch in batches:
                sums = sums_of(states.tested_params, states.batch_stats, batch)
                total += np.asarray(sums, np.float64)
        return {"loss": total[:, 0] / total[:, 2], "accuracy": total[:, 1] / total[:, 2]}

    return test
