"""One training step: the pure function of one replica, and its update of the state."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from nf_resnets.analysis.noise_scale import pair_estimates, squared_norm
from nf_resnets.training.state import OptimizerFn, TrainState, is_counter, moved_average

Metrics = dict[str, jax.Array]


LossFn = Callable[[Any, Any, dict[str, jax.Array]], tuple[jax.Array, tuple[Metrics, Any]]]
"""``loss(params, batch_stats, batch) -> (loss, (metrics, new batch_stats))``, the loss and the
metrics as means over the replica's part of the batch."""


def replica_step(
    state: TrainState,
    batch: dict[str, jax.Array],
    *,
    loss: LossFn,
    optimizer: OptimizerFn,
    axis_name: str | None = None,
    micro_batches: int = 1,
    gradient_noise: bool = False,
) -> tuple[TrainState, Metrics]:
    """Makes one training step on this replica's part of the batch; a pure function.

    Loss, gradients, metrics and BatchNorm's running statistics are averaged over the replicas and
    over the micro-batches. The function takes no mesh: it runs on one device, under
    ``jax.shard_map``, and under ``jax.pmap(..., axis_name=axis_name)``.

    Args:
      state: the run's state, the same on every replica.
      batch: arrays ``[b, ...]``, this replica's part.
      loss: see ``LossFn``; :func:`nf_resnets.training.image_loss` is that of images.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      axis_name: the mapped axis whose members share the batch; None for one replica.
      micro_batches: how many equal parts the replica's batch is cut into, computed in turn to save
        memory; the gradients are those of the whole batch.
      gradient_noise: whether to estimate the gradient's signal and noise from two or more
        micro-batches of all replicas (:func:`nf_resnets.analysis.pair_estimates`).

    Returns:
      The new state, and ``loss``, its metrics, ``grad_norm`` and ``update_norm`` of the whole
      batch, float32 []; ``gradient_signal`` and ``gradient_noise`` where they are asked for.

    Example:
      >>> import optax
      >>> from nf_resnets import training
      >>> def apply(params, batch_stats, images, keys):
      ...     return images.reshape(len(images), -1) @ params["head"]["kernel"], batch_stats
      >>> def optimizer(hyper):
      ...     return optax.sgd(hyper["learning_rate"])
      >>> state = training.create_state({"head": {"kernel": jnp.zeros((3, 2))}}, optimizer,
      ...                               {"learning_rate": 0.1})
      >>> batch = {"image": jnp.ones((4, 1, 1, 3)), "label": jnp.array([0, 1, 1, 1])}
      >>> loss = training.image_loss(apply)
      >>> step = jax.jit(lambda *at: replica_step(*at, loss=loss, optimizer=optimizer))
      >>> state, metrics = step(state, batch)
      >>> round(float(metrics["loss"]), 4), int(state.step)
      (0.6931, 1)
    """
    params = state.params
    if axis_name is not None:
        # Before a gradient is taken: otherwise ``shard_map`` itself sums it over the replicas.
        params = jax.tree.map(lambda leaf: lax.pcast(leaf, (axis_name,), to="varying"), params)
    gradient = jax.value_and_grad(loss, has_aux=True)

    def mean_of_replicas(leaf: jax.Array) -> jax.Array:
        # A sum of counters, which all replicas have alike, may pass the largest number.
        return (lax.pmax if is_counter(leaf) else lax.pmean)(leaf, axis_name)

    def of_part(part: dict[str, jax.Array]) -> Any:
        (value, aux), grads = gradient(params, state.batch_stats, part)
        return value, aux, grads, squared_norm(grads) if gradient_noise else None

    means = _mean_over_parts(of_part, batch, micro_batches)
    replicas = 1
    if axis_name is not None:
        means, replicas = jax.tree.map(mean_of_replicas, means), lax.axis_size(axis_name)
    value, (metrics, batch_stats), grads, square = means
    new_state, norms = _update(state, value, grads, optimizer, batch_stats)
    metrics = {"loss": value, **metrics, **norms}
    if gradient_noise:
        examples = _examples(batch)
        pair = pair_estimates(
            square, squared_norm(grads), small_batch=examples // micro_batches,
            large_batch=examples * replicas,
        )  # fmt: skip
        metrics |= dict(zip(NOISE, pair, strict=True))
    return new_state, metrics


NOISE = ("gradient_signal", "gradient_noise")
"""The metrics of a step from which the gradient noise scale follows; see ``analysis``."""


def _update(
    state: TrainState, loss: jax.Array, grads: Any, optimizer: OptimizerFn, batch_stats: Any
) -> tuple[TrainState, Metrics]:
    """Applies gradients; ``loss`` is for optimizers that adapt to it (``optax.polyak_sgd``)."""
    transformation = optax.with_extra_args_support(optimizer(state.hyper))
    updates, opt_state = transformation.update(grads, state.opt_state, state.params, value=loss)
    params = optax.apply_updates(state.params, updates)
    step = state.step + 1
    new_state = dataclasses.replace(
        state,
        step=step,
        params=params,
        batch_stats=_as_before(batch_stats, state.batch_stats),
        opt_state=_as_before(opt_state, state.opt_state),
        average=None if state.average is None else moved_average(state.average, params, step),
    )
    return new_state, {"grad_norm": _norm(grads), "update_norm": _norm(updates)}


def _examples(batch: dict[str, jax.Array]) -> int:
    return int(next(iter(batch.values())).shape[0])


def _mean_over_parts(
    function: Callable[[dict[str, jax.Array]], Any], batch: dict[str, jax.Array], parts: int
) -> Any:
    """The mean of a function over the equal parts of a batch, computed one after another."""
    if parts == 1:
        return function(batch)
    examples = _examples(batch)
    cut = jax.tree.map(lambda leaf: leaf.reshape(parts, examples // parts, *leaf.shape[1:]), batch)

    # The sums start from zeros, and not from the first part: so the scan's body is the only copy of
    # the network that is compiled.
    of_one = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], cut))

    def zero(like: Any) -> jax.Array:
        # A sum in bfloat16 loses parts that are small beside it.
        half = jnp.issubdtype(like.dtype, jnp.floating) and like.dtype.itemsize < 4
        dtype = jnp.float32 if half else like.dtype
        # A shape bears no axes outside of a ``shard_map``.
        axes = like.manual_axis_type.varying if like.manual_axis_type else ()
        return varying(jnp.zeros(like.shape, dtype), *axes)

    def add(total: jax.Array, of_part: jax.Array) -> jax.Array:
        return of_part if is_counter(of_part) else total + of_part

    def mean(total: jax.Array, like: Any) -> jax.Array:
        return total if is_counter(like) else (total / parts).astype(like.dtype)

    def body(total: Any, part: dict[str, jax.Array]) -> tuple[Any, None]:
        return jax.tree.map(add, total, function(part)), None

    total, _ = lax.scan(body, jax.tree.map(zero, of_one), cut)
    return jax.tree.map(mean, total, of_one)


def varying(array: jax.Array, *axis_names: str) -> jax.Array:
    """Marks an array as varying over the mapped axes over which it does not vary yet."""
    there = jax.typeof(array).manual_axis_type.varying
    missing = tuple(name for name in axis_names if name not in there)
    return lax.pcast(array, missing, to="varying") if missing else array


def _norm(tree: Any) -> jax.Array:
    # The squares of bfloat16 numbers are summed in float32.
    return optax.tree.norm(jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree))


def _as_before(new: Any, old: Any) -> Any:
    """Casts a tree to the containers and dtypes it had, so that nothing is compiled again."""

    def cast(value: Any, before: Any) -> jax.Array:
        # Some leaves are constants, as of Adafactor's state; a loop wants them to vary as before.
        axes = jax.typeof(before).manual_axis_type.varying
        return varying(value.astype(before.dtype), *axes)

    return jax.tree.map(
        cast, jax.tree.unflatten(jax.tree.structure(old), jax.tree.leaves(new)), old
    )
