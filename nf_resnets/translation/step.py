"""One training step of a translation model: that of one replica, and its compiled form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from nf_resnets import models
from nf_resnets.data import example_keys, local_positions
from nf_resnets.training.mesh import DATA, over_runs
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import Metrics, update, varying_params
from nf_resnets.translation.loss import token_losses
from nf_resnets.translation.vocabulary import PADDING


def replica_step(
    state: TrainState,
    batch: dict[str, jax.Array],
    *,
    model: models.Transformer,
    optimizer: OptimizerFn,
    label_smoothing: float = 0.1,
    axis_name: str | None = None,
) -> tuple[TrainState, Metrics]:
    """Makes one step on this replica's rows of the batch; a pure function without a mesh.

    The loss is the mean of :func:`token_losses` over all tokens of the batch that are no padding,
    on whichever replica they are: replicas with longer sentences count for more, and the numbers
    are those of one device.

    Args:
      state: the run's state, the same on every replica.
      batch: ``source``, ``inputs`` and ``targets`` int32 [b, T], this replica's rows; the replicas
        in their order hold the whole batch.
      model: the network.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      label_smoothing: the fraction of the target that is spread over the vocabulary.
      axis_name: the mapped axis whose members share the batch; None for one replica.

    Returns:
      The new state, and of the whole batch ``loss``, ``likelihood`` (the mean negative
      log-likelihood of a token, without smoothing), ``accuracy``, ``tokens``, ``grad_norm`` and
      ``update_norm``, float32 [].
    """
    rows = batch["source"].shape[0]
    replicas = 1 if axis_name is None else lax.axis_size(axis_name)
    # A row's dropout depends on its position in the batch, not on the number of devices.
    keys = example_keys(state.seed, state.step, local_positions(rows * replicas, axis_name))
    there = batch["targets"] != PADDING
    tokens = _sum(there.sum(dtype=jnp.float32), axis_name)

    def loss_fn(params: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logits = _train_logits(model, params, batch, keys)
        losses, likelihoods = token_losses(
            logits, batch["targets"], label_smoothing=label_smoothing
        )
        correct = (jnp.argmax(logits, axis=-1) == batch["targets"]) & there
        count = jnp.maximum(tokens, 1.0)
        return losses.sum() / count, (likelihoods.sum() / count, correct.sum() / count)

    (loss, (likelihood, accuracy)), grads = jax.value_and_grad(loss_fn, has_aux=True)(
        varying_params(state.params, axis_name)
    )
    # Sums, not means: each replica has divided by the tokens of all of them.
    loss, likelihood, accuracy, grads = _sum((loss, likelihood, accuracy, grads), axis_name)
    new_state, norms = update(state, loss, grads, optimizer, state.batch_stats)
    metrics = {"loss": loss, "likelihood": likelihood, "accuracy": accuracy, "tokens": tokens}
    return new_state, metrics | norms


def _sum(tree: Any, axis_name: str | None) -> Any:
    return tree if axis_name is None else lax.psum(tree, axis_name)


def _train_logits(
    model: models.Transformer, params: Any, batch: dict[str, jax.Array], keys: jax.Array
) -> jax.Array:
    """Logits [b, T, V] in training, with a dropout of its own for every row."""
    apply: Callable[..., Any] = model.apply
    if not model.dropout:
        logits: jax.Array = apply({"params": params}, batch["source"], batch["inputs"], train=True)
        return logits

    def one(source: jax.Array, inputs: jax.Array, key: jax.Array) -> Any:
        row = (source[None], inputs[None])
        return apply({"params": params}, *row, train=True, rngs={"dropout": key})[0]

    return jax.vmap(one)(batch["source"], batch["inputs"], keys)


def make_train_step(
    model: models.Transformer, optimizer: OptimizerFn, mesh: Mesh, *, label_smoothing: float = 0.1
) -> jax.stages.Wrapped:
    """Compiles the step of ``R`` runs on a ``("sweep", "data")`` mesh, once for every batch shape.

    The runs are sharded over the mesh's ``sweep`` axis, the rows of the batch, which they share,
    over its ``data`` axis. The runs differ in their states: parameters, seed, hyper-parameters.

    Returns:
      ``step(states, batch) -> (states, metrics)``: states with a leading axis ``[R, ...]`` on every
      leaf (see :func:`nf_resnets.training.stack`); ``source``, ``inputs`` and ``targets`` int32
      [B, T]; metrics float32 [R]. The states given are donated.

    """

    def one_run(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Metrics]:
        return replica_step(
            state,
            batch,
            model=model,
            optimizer=optimizer,
            label_smoothing=label_smoothing,
            axis_name=DATA,
        )

    return over_runs(one_run, mesh, data=PartitionSpec(DATA), donate=True)


__all__ = ["make_train_step", "replica_step"]
