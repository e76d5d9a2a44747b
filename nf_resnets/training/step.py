"""One training step: the pure function of one replica, and its compiled form on a mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.data.batch import Augmentation, DeviceData, training_batch
from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.mesh import DATA, SWEEP, check_runs
from nf_resnets.training.state import OptimizerFn, TrainState

Metrics = dict[str, jax.Array]
StepFn = Callable[[TrainState, DeviceData, jax.Array], tuple[TrainState, Metrics]]


def replica_step(
    state: TrainState,
    batch: dict[str, jax.Array],
    *,
    apply_fn: ApplyFn,
    optimizer: OptimizerFn,
    axis_name: str | None = None,
) -> tuple[TrainState, Metrics]:
    """Makes one SGD step on this replica's part of the batch; a pure function without a mesh.

    The loss is the mean cross-entropy; gradients, metrics and BatchNorm's running statistics are
    averaged over the replicas. It runs by itself, under ``jax.shard_map``, and under
    ``jax.pmap(..., axis_name=axis_name)``.

    Args:
      state: the run's state, the same on every replica.
      batch: ``image`` float32 [b, H, W, C] and ``label`` int32 [b], this replica's part; networks
        with dropout need ``keys`` [b], a PRNG key for each image, too.
      apply_fn: ``apply(params, batch_stats, images, keys) -> (logits, batch_stats)``.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      axis_name: the mapped axis whose members share the batch; None for one replica.

    Returns:
      The new state, and ``loss``, ``accuracy`` and ``grad_norm`` of the whole batch, float32 [].
    """

    def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, Any]]:
        logits, batch_stats = apply_fn(params, state.batch_stats, batch["image"], batch.get("keys"))
        logits = logits.astype(jnp.float32)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"])
        correct = jnp.argmax(logits, axis=-1) == batch["label"]
        return losses.mean(), (correct.mean(dtype=jnp.float32), batch_stats)

    # Replicated parameters must become this replica's own before the gradient is taken: otherwise
    # shard_map sums the gradients over the replicas by itself, and the mean below is D times off.
    params = state.params
    if axis_name is not None:
        params = jax.tree.map(lambda p: lax.pcast(p, (axis_name,), to="varying"), params)
    (loss, (accuracy, batch_stats)), grads = jax.value_and_grad(loss_fn, has_aux=True)(params)
    if axis_name is not None:
        loss, accuracy, batch_stats, grads = lax.pmean(
            (loss, accuracy, batch_stats, grads), axis_name
        )

    updates, opt_state = optimizer(state.hyper).update(grads, state.opt_state, state.params)
    new_state = dataclasses.replace(
        state,
        step=state.step + 1,
        params=optax.apply_updates(state.params, updates),
        batch_stats=_as_before(batch_stats, state.batch_stats),
        opt_state=_as_before(opt_state, state.opt_state),
    )
    # The squares of bfloat16 gradients are summed in float32.
    grad_norm = optax.tree.norm(jax.tree.map(lambda grad: grad.astype(jnp.float32), grads))
    metrics = {"loss": loss, "accuracy": accuracy, "grad_norm": grad_norm}
    return new_state, metrics


def _as_before(new: Any, old: Any) -> Any:
    """Gives a tree the containers and dtypes it had; else the next step would compile again."""
    pairs = zip(jax.tree.leaves(new), jax.tree.leaves(old), strict=True)
    leaves = [value.astype(before.dtype) for value, before in pairs]
    return jax.tree.unflatten(jax.tree.structure(old), leaves)


def make_train_step(
    apply_fn: ApplyFn,
    optimizer: OptimizerFn,
    mesh: Mesh,
    *,
    batch_size: int,
    augmentation: Augmentation = Augmentation(),  # noqa: B008 (a frozen value)
    together: Literal["auto", "vmap", "loop"] = "auto",
) -> StepFn:
    """Compiles the step of ``R`` runs on a ``("sweep", "data")`` mesh.

    The runs are spread over the mesh's ``sweep`` axis, the batch of each over its ``data`` axis.
    They share the program and the data set, and differ in their states: parameters, seed,
    hyper-parameters.

    Args:
      apply_fn: how a replica calls the network (:func:`nf_resnets.training.train_apply`).
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: examples in a step of one run, over all its devices.
      augmentation: what is done to the training images.
      together: how a device computes several runs: ``"vmap"`` vectorised, ``"loop"`` one after
        another, which is faster on a CPU; ``"auto"`` chooses by platform.

    Returns:
      ``step(states, data, orders) -> (states, metrics)``: states with a leading axis ``[R, ...]``
      on every leaf (see :func:`stack`), the training split, the epoch's orders int32 [R, N];
      metrics float32 [R]. The states given are used up (donated).

    Raises:
      ValueError: if the batch does not divide over the devices, or ``together`` is none of the
        three; from the step, if ``R`` is no multiple of the ``sweep`` axis, or there are not as
        many orders as runs, of the split's length.
    """
    if batch_size % mesh.shape[DATA]:
        raise ValueError(
            f"batch_size={batch_size} does not divide evenly over the {mesh.shape[DATA]} devices "
            "of the mesh's data axis."
        )
    if together not in ("auto", "vmap", "loop"):
        raise ValueError(f"together={together!r} found; expected 'auto', 'vmap' or 'loop'.")
    if together == "auto":
        together = "loop" if mesh.devices.flat[0].platform == "cpu" else "vmap"

    def one_run(
        state: TrainState, data: DeviceData, order: jax.Array
    ) -> tuple[TrainState, Metrics]:
        batch = training_batch(
            data,
            order,
            state.seed,
            state.step,
            batch_size=batch_size,
            augmentation=augmentation,
            axis_name=DATA,
        )
        return replica_step(state, batch, apply_fn=apply_fn, optimizer=optimizer, axis_name=DATA)

    def local_runs(
        states: TrainState, data: DeviceData, orders: jax.Array
    ) -> tuple[TrainState, Metrics]:
        if together == "vmap" and orders.shape[0] > 1:
            return jax.vmap(one_run, in_axes=(0, None, 0))(states, data, orders)
        runs = [one_run(unstack(states, run), data, orders[run]) for run in range(orders.shape[0])]
        return stack([state for state, _ in runs]), stack([metrics for _, metrics in runs])

    per_run, shared = PartitionSpec(SWEEP), PartitionSpec()
    sharded = jax.shard_map(
        local_runs, mesh=mesh, in_specs=(per_run, shared, per_run), out_specs=(per_run, per_run)
    )

    def step(states: TrainState, data: DeviceData, orders: jax.Array) -> tuple[TrainState, Metrics]:
        # At tracing time: a gather would clamp what is out of range and train on something else.
        expected = (states.step.shape[0], data.labels.shape[0])
        check_runs(expected[0], mesh)
        if orders.shape != expected:
            raise ValueError(
                f"orders of shape {orders.shape} found; expected {expected}, an order of the whole "
                "split for each run."
            )
        return sharded(states, data, orders)

    # The outputs' shardings are named because the compiler calls an axis of one device unsharded,
    # and the second step would be looked up under other shardings than the first.
    return jax.jit(step, donate_argnums=(0,), out_shardings=NamedSharding(mesh, per_run))


def stack(trees: list[Any]) -> Any:
    """Puts trees of one structure together along a new leading axis ``[R, ...]``."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: Any, run: int) -> Any:
    """Takes one run out of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[run], tree)


__all__ = ["Metrics", "StepFn", "make_train_step", "replica_step", "stack", "unstack"]
