"""Many training steps in one call, of runs that share a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from nf_resnets.data.batch import Augmentation, DeviceData, training_batch
from nf_resnets.data.order import epoch_order, steps_per_epoch
from nf_resnets.training.apply import train_apply
from nf_resnets.training.initial import CALIBRATION_EXAMPLES, Draw
from nf_resnets.training.mesh import DATA, SWEEP, Vectorize, over_runs
from nf_resnets.training.program import Steps
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import NOISE, Metrics, check_batch, replica_step, varying

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
    augmentation: Augmentation = Augmentation()
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


def make_train_steps(
    model: Any,
    optimizer: OptimizerFn,
    mesh: Mesh,
    training: ImageTraining,
    *,
    vectorize: Vectorize = "auto",
) -> jax.stages.Wrapped:
    """Compiles the steps of ``R`` runs on a ``("sweep", "data")`` mesh, many in one call.

    The runs are sharded over the mesh's ``sweep`` axis, the batch of each over its ``data`` axis.
    They share the program and the data set, and differ in their states. Each run makes the number
    of steps that it is given, fewer where an epoch ends or it diverges.

    Args:
      model: the network, as :func:`nf_resnets.training.train_apply` takes it.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      training: how the steps are made.
      vectorize: how a device computes several runs: vectorised, one after another (faster on a
        CPU), or as the platform wants it.

    Returns:
      ``steps(states, counts, data) -> Steps``: states with a leading axis ``[R, ...]`` on every
      leaf (see :func:`nf_resnets.training.stack`), int32 [R] counts, 0 for a run that stands still,
      the training split. The states given are donated.

    Raises:
      ValueError: if the batch does not divide over the devices and micro-batches.
    """
    check_batch(training.batch_size, mesh, training.micro_batches)
    apply_fn = train_apply(model, shards=mesh.shape[DATA] * training.micro_batches)
    if vectorize == "auto":
        # One after another is faster on a CPU; on a TPU it moves fewer bytes, by the compiler.
        vectorize = "vmap" if mesh.devices.flat[0].platform == "gpu" else "loop"

    def one_run(state: TrainState, count: jax.Array, data: DeviceData) -> Steps:
        examples = data.labels.shape[0]
        per_epoch = steps_per_epoch(examples, training.batch_size)
        longest = min(per_epoch, LONGEST)
        order = epoch_order(state.seed, state.step // per_epoch, examples)
        count = jnp.minimum(jnp.minimum(count, longest), per_epoch - state.step % per_epoch)

        def step(state: TrainState) -> tuple[TrainState, Metrics]:
            batch = training_batch(
                data, order, state.seed, state.step, batch_size=training.batch_size,
                augmentation=training.augmentation, axis_name=DATA,
            )  # fmt: skip
            return replica_step(
                state, batch, apply_fn=apply_fn, optimizer=optimizer, axis_name=DATA,
                micro_batches=training.micro_batches, label_smoothing=training.label_smoothing,
                gradient_noise=training.gradient_noise,
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


__all__ = ["LONGEST", "METRICS", "ImageTraining", "make_train_steps"]
