"""Programs on images in the device's memory: batches are drawn inside the compiled loop."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import data
from nf_resnets.training import hosts
from nf_resnets.training.apply import eval_apply, has_batch_norm, train_apply
from nf_resnets.training.evaluate import make_estimate_batch_stats, make_evaluate
from nf_resnets.training.initial import (
    CALIBRATION_EXAMPLES,
    Draw,
    make_initial,
    refuse_other_params,
)
from nf_resnets.training.loss import image_loss
from nf_resnets.training.mesh import DATA, SWEEP, Vectorize, over_runs, replicate, shard_runs
from nf_resnets.training.program import (
    InitialFn,
    Program,
    Start,
    Steps,
    build,
    state_shapes,
)
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import NOISE, LossFn, Metrics, replica_step, varying

TEST_BATCH = 500
"""Examples in a batch of a test, at most."""

LONGEST = 1_000
"""The largest number of steps in one call: the length of its curve."""

METRICS = ("loss", "accuracy", "grad_norm", "update_norm")
"""The metrics of a step, in the order of a curve's columns."""


@dataclasses.dataclass(frozen=True)
class ImageTraining:
    """How the steps of a program on images are made.

    Attributes:
      batch_size: examples in a step of one run, over all its devices.
      num_steps: steps of a run.
      augmentation: what is done to the training images.
      micro_batches: how many parts a device cuts its part of the batch into.
      bn_estimate_batches: how many training batches BatchNorm's statistics are estimated from
        before each test; 0 to test with the running averages.
      draw: the weights that the schemes start from (:func:`nf_resnets.training.draw_params`).
      label_smoothing: the fraction of a label that is spread over all classes.
      average_decay: the decay of a moving average of the parameters, which is then tested in their
        place; None for no average.
      calibration_examples: training images that data-dependent schemes look at.
      gradient_noise: whether the curve has the gradient's signal and noise as well
        (:func:`nf_resnets.training.replica_step`).
    """

    batch_size: int
    num_steps: int
    augmentation: data.Augmentation = data.Augmentation()
    micro_batches: int = 1
    bn_estimate_batches: int = 0
    draw: Draw = "fan_in"
    label_smoothing: float = 0.0
    average_decay: float | None = None
    calibration_examples: int = CALIBRATION_EXAMPLES
    gradient_noise: bool = False

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the curve's columns."""
        return (*METRICS, *NOISE) if self.gradient_noise else METRICS

    def loss(self, model: Any, mesh: Mesh) -> LossFn:
        """The loss of a network's steps."""
        apply_fn = train_apply(model, shards=mesh.shape[DATA] * self.micro_batches)
        return image_loss(apply_fn, label_smoothing=self.label_smoothing)

    def initial(
        self,
        model: Any,
        shape: Sequence[int],
        optimizer: OptimizerFn,
        example: Start | TrainState,
    ) -> InitialFn:
        """The first state of a run on images ``[H, W, C]``; refuses an example that is none."""
        if self.average_decay is not None and getattr(example, "average", 0) is None:
            raise ValueError(
                f"average_decay={self.average_decay} found with a state that has no average; "
                "expected training.create_state(..., average_decay=...) to start it."
            )
        images = (jnp.zeros((1, *shape)),)
        if isinstance(example, TrainState) and isinstance(model, nn.Module):
            refuse_other_params(model, images, example.params)
        return make_initial(
            model, images, optimizer, draw=self.draw, average_decay=self.average_decay
        )


def image_program(
    model: Any,
    dataset: data.Dataset,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: ImageTraining,
    example: Start | TrainState,
    *,
    splits: tuple[data.DeviceData, data.DeviceData] | None = None,
    runs_per_device: int = 1,
    vectorize: Vectorize = "auto",
) -> Program:
    """Compiles the program of runs that train on a data set in memory.

    Args:
      model: a network of :mod:`nf_resnets.models`; or a function ``apply(params, batch_stats,
        images, keys) -> (logits, batch_stats)`` that calls any other one (``keys`` is None in a
        test), whose runs start from states of :func:`nf_resnets.training.create_state`.
      dataset: training and test split.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      training: how the steps are made.
      example: the start of one of the runs, from which shapes and dtypes follow.
      splits: training and test split, if they are on the mesh already (:func:`device_splits`).
      runs_per_device: how many runs a device of the mesh's ``sweep`` axis carries.
      vectorize: how a device computes several runs: vectorised, one after another (faster on a
        CPU), or as the platform wants it.

    Raises:
      ValueError: if batch or BatchNorm's slices do not divide over the mesh's ``data`` axis, or a
        state is of another network.
    """
    initial = training.initial(model, dataset.train.images.shape[1:], optimizer, example)
    splits = splits or device_splits(dataset, mesh)
    # Compiled ahead of time, so that a call with other shapes is an error, not a compilation.
    executable = lower_image_steps(
        model, dataset, optimizer, mesh, training, example,
        runs_per_device=runs_per_device, vectorize=vectorize,
    ).compile()  # fmt: skip

    def first_images() -> np.ndarray:
        images = dataset.train.images[: training.calibration_examples]
        return np.asarray(data.normalize(images, dataset.mean, dataset.std))

    def steps(states: TrainState, counts: np.ndarray) -> Steps:
        return executable(states, shard_runs(np.asarray(counts, np.int32), mesh), splits[0])  # type: ignore[no-any-return]

    return build(
        mesh,
        initial,
        example,
        slots=mesh.shape[SWEEP] * runs_per_device,
        batch=first_images,
        make_test=functools.partial(image_test, model, mesh, training, splits),
        steps=steps,
        num_steps=training.num_steps,
        model=model,
        steps_per_epoch=data.steps_per_epoch(len(dataset.train.labels), training.batch_size),
        metrics=training.metrics,
    )


def lower_image_steps(
    model: Any,
    dataset: data.Dataset,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: ImageTraining,
    example: Start | TrainState,
    *,
    runs_per_device: int = 1,
    vectorize: Vectorize = "auto",
) -> jax.stages.Lowered:
    """Lowers the ``steps`` of :func:`image_program` from shapes alone; computes nothing.

    The devices of the mesh need not be there: they may be those of
    :func:`nf_resnets.topology.topology_devices`.
    """
    whole = NamedSharding(mesh, PartitionSpec())
    split = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole),
        data.DeviceData.of(dataset, dataset.train),
    )
    initial = training.initial(model, dataset.train.images.shape[1:], optimizer, example)
    states = state_shapes(mesh, initial, example, mesh.shape[SWEEP] * runs_per_device)
    counts = jax.ShapeDtypeStruct(states.step.shape, jnp.int32, sharding=states.step.sharding)
    run_steps = make_train_steps(model, optimizer, mesh, training, vectorize=vectorize)
    return run_steps.lower(states, counts, split)


def make_train_steps(
    model: Any,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: ImageTraining,
    *,
    vectorize: Vectorize = "auto",
) -> jax.stages.Wrapped:
    """Compiles ``steps(states, counts, split) -> Steps`` of ``R`` runs, many in one call.

    The runs are sharded over the mesh's ``sweep`` axis, the batch of each over its ``data`` axis.
    Each makes as many of the int32 [R] steps as are left of its epoch, fewer if it diverges.
    """
    loss = training.loss(model, mesh)
    if vectorize == "auto":
        # One after another is faster on a CPU; on a TPU it moves fewer bytes, by the compiler.
        vectorize = "vmap" if mesh.devices.flat[0].platform == "gpu" else "loop"

    def one_run(state: TrainState, count: jax.Array, split: data.DeviceData) -> Steps:
        examples = split.labels.shape[0]
        per_epoch = data.steps_per_epoch(examples, training.batch_size)
        longest = min(per_epoch, LONGEST)
        order = data.epoch_order(state.seed, state.step // per_epoch, examples)
        count = jnp.minimum(jnp.minimum(count, longest), per_epoch - state.step % per_epoch)

        def step(state: TrainState) -> tuple[TrainState, Metrics]:
            batch = data.training_batch(
                split, order, state.seed, state.step, batch_size=training.batch_size,
                augmentation=training.augmentation, axis_name=DATA,
            )  # fmt: skip
            return replica_step(
                state, batch, loss=loss, optimizer=optimizer, axis_name=DATA,
                micro_batches=training.micro_batches, gradient_noise=training.gradient_noise,
            )  # fmt: skip

        return _loop(step, state, count, longest, training.metrics)

    return over_runs(one_run, mesh, vectorize=vectorize, donate=True)


def _loop(
    step: Callable[[TrainState], tuple[TrainState, Metrics]],
    state: TrainState,
    count: jax.Array,
    longest: int,
    names: Sequence[str],
) -> Steps:
    """Makes ``count`` steps of a run, fewer if it diverges."""

    def cond(carry: Any) -> jax.Array:
        index, _, _, finite = carry
        return finite & (index < count)

    def body(carry: Any) -> Any:
        index, state, curve, _ = carry
        state, metrics = step(state)
        numbers = jnp.stack([metrics[name] for name in names])
        curve = lax.dynamic_update_index_in_dim(curve, numbers, index, 0)
        return index + 1, state, curve, jnp.isfinite(numbers).all()

    start = (
        varying(jnp.int32(0), SWEEP),
        state,
        varying(jnp.full((longest, len(names)), jnp.nan, jnp.float32), SWEEP),
        varying(jnp.bool_(True), SWEEP),
    )
    index, state, curve, finite = lax.while_loop(cond, body, start)
    columns = {name: curve[:, column] for column, name in enumerate(names)}
    return Steps(state, columns, index, ~finite)


def device_splits(dataset: data.Dataset, mesh: Mesh) -> tuple[data.DeviceData, data.DeviceData]:
    """Training and test split, whole on every device of a mesh."""
    train, test = (
        replicate(data.DeviceData.of(dataset, split), mesh)
        for split in (dataset.train, dataset.test)
    )
    return train, test


def image_test(
    model: Any,
    mesh: Mesh,
    training: ImageTraining,
    splits: tuple[data.DeviceData, data.DeviceData],
    states: TrainState,
) -> Callable[[TrainState], Mapping[str, np.ndarray]]:
    """Compiles the ``test`` of :func:`image_program` for such ``states``.

    ``splits`` are those of :func:`device_splits`. With another ``bn_estimate_batches`` it is a
    second test for the runs of a program.
    """
    train_split, test_split = splits
    evaluate: Any = make_evaluate(eval_apply(model), mesh, batch_size=TEST_BATCH)
    evaluate = evaluate.lower(states.tested_params, states.batch_stats, test_split).compile()
    stats = tested_stats(model, mesh, training, train_split, states)

    def test(states: TrainState) -> Mapping[str, np.ndarray]:
        return hosts.gather(evaluate(states.tested_params, stats(states), test_split))

    return test


def tested_stats(
    model: Any, mesh: Mesh, training: ImageTraining, split: data.DeviceData, states: TrainState
) -> Callable[[TrainState], Any]:
    """Compiles ``stats(states)``, BatchNorm's statistics as :func:`image_test` takes them."""
    if not training.bn_estimate_batches or not has_batch_norm(model):
        return lambda states: states.batch_stats
    estimate: Any = make_estimate_batch_stats(
        train_apply(model, shards=mesh.shape[DATA] * training.micro_batches),
        mesh,
        batch_size=training.batch_size // training.micro_batches,
        batches=training.bn_estimate_batches * training.micro_batches,
    )

    def tested(states: TrainState) -> TrainState:
        return dataclasses.replace(states, params=states.tested_params)

    estimate = estimate.lower(tested(states), split).compile()
    return lambda states: estimate(tested(states), split)
