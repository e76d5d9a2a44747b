"""Many training steps in one call, of runs that share a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.data.batch import Augmentation, DeviceData, training_batch
from nf_resnets.data.order import epoch_order, steps_per_epoch
from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.mesh import DATA, SWEEP, stack, unstack
from nf_resnets.training.program import Steps
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import (
    NOISE,
    Metrics,
    Vectorize,
    check_batch,
    replica_step,
    varying,
)

LONGEST = 1_000
"""The largest number of steps in one call: the length of its curve."""

METRICS = ("loss", "accuracy", "grad_norm", "update_norm")
"""The metrics of a step, in the order of a curve's columns."""


def make_train_steps(
    apply_fn: ApplyFn,
    optimizer: OptimizerFn,
    mesh: Mesh,
    *,
    batch_size: int,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 (a frozen value)
    micro_batches: int = 1,
    label_smoothing: float = 0.0,
    vectorize: Vectorize = "auto",
    longest: int = LONGEST,
    gradient_noise: bool = False,
) -> jax.stages.Wrapped:
    """Compiles the steps of ``R`` runs on a ``("sweep", "data")`` mesh, many in one call.

    The runs are sharded over the mesh's ``sweep`` axis, the batch of each over its ``data`` axis.
    They share the program and the data set, and differ in their states. Each run makes the number
    of steps that it is given, fewer where an epoch ends or it diverges.

    Args:
      apply_fn: how a replica calls the network (:func:`nf_resnets.training.train_apply`), with
        BatchNorm's slices for ``mesh.shape["data"] * micro_batches`` shards.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: examples in a step of one run, over all its devices.
      augmentation: what is done to the training images.
      micro_batches: see :func:`nf_resnets.training.replica_step`.
      label_smoothing: see there.
      vectorize: how a device computes several runs: vectorised, one after another (faster on a
        CPU), or as the platform wants it.
      longest: the largest number of steps in one call.
      gradient_noise: whether the curve has the columns :data:`nf_resnets.training.step.NOISE`, too.

    Returns:
      ``steps(states, data, counts) -> Steps``: states with a leading axis ``[R, ...]`` on every
      leaf (see :func:`nf_resnets.training.stack`), the training split, int32 [R] counts, 0 for a
      run that stands still. The states given are donated.

    Raises:
      ValueError: if the batch does not divide over the devices and micro-batches.
    """
    check_batch(batch_size, mesh, micro_batches)
    if vectorize == "auto":
        # One after another is faster on a CPU; on a TPU it moves fewer bytes, by the compiler.
        vectorize = "vmap" if mesh.devices.flat[0].platform == "gpu" else "loop"
    metrics = (*METRICS, *NOISE) if gradient_noise else METRICS

    def one_run(state: TrainState, data: DeviceData, count: jax.Array) -> Steps:
        examples = data.labels.shape[0]
        per_epoch = steps_per_epoch(examples, batch_size)
        order = epoch_order(state.seed, state.step // per_epoch, examples)
        count = jnp.minimum(count, per_epoch - state.step % per_epoch)

        def step(state: TrainState) -> tuple[TrainState, Metrics]:
            batch = training_batch(
                data, order, state.seed, state.step,
                batch_size=batch_size, augmentation=augmentation, axis_name=DATA,
            )  # fmt: skip
            return replica_step(
                state, batch, apply_fn=apply_fn, optimizer=optimizer, axis_name=DATA,
                micro_batches=micro_batches, label_smoothing=label_smoothing,
                gradient_noise=gradient_noise,
            )  # fmt: skip

        return _loop(step, state, count, longest, metrics)

    return _compile_runs(one_run, mesh, vectorize, longest)


def _compile_runs(
    one_run: Callable[[TrainState, DeviceData, jax.Array], Steps],
    mesh: Mesh,
    vectorize: Vectorize,
    longest: int,
) -> jax.stages.Wrapped:
    """Compiles the steps of ``R`` runs, sharded over the mesh."""

    def local_runs(states: TrainState, data: DeviceData, counts: jax.Array) -> Steps:
        if counts.shape[0] == 1:
            return stack([one_run(unstack(states, 0), data, counts[0])])
        if vectorize == "vmap":
            return jax.vmap(one_run, in_axes=(0, None, 0))(states, data, counts)
        return lax.map(lambda run: one_run(run[0], data, run[1]), (states, counts))

    per_run, shared = PartitionSpec(SWEEP), PartitionSpec()
    sharded = jax.shard_map(
        local_runs, mesh=mesh, in_specs=(per_run, shared, per_run), out_specs=per_run
    )

    def steps(states: TrainState, data: DeviceData, counts: jax.Array) -> Steps:
        return sharded(states, data, jnp.minimum(counts, longest))

    return jax.jit(steps, donate_argnums=(0,), out_shardings=NamedSharding(mesh, per_run))


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


__all__ = ["LONGEST", "METRICS", "make_train_steps"]
