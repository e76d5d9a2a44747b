"""Tests of a run: loss and accuracy on a whole split, and the statistics of BatchNorm for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from nf_resnets.data.augment import normalize
from nf_resnets.data.batch import DeviceData, training_batch
from nf_resnets.data.order import epoch_order
from nf_resnets.models.conv import never_stored
from nf_resnets.models.layers import MOMENTUM
from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.loss import correct
from nf_resnets.training.mesh import DATA, over_runs
from nf_resnets.training.state import TrainState


def make_evaluate(
    apply_fn: ApplyFn, mesh: Mesh, *, batch_size: int
) -> Callable[[Any, Any, DeviceData], dict[str, jax.Array]]:
    """Compiles ``evaluate(params, batch_stats, data)`` of ``R`` runs on a mesh.

    It gives ``loss`` and ``accuracy`` float32 [R], means over the whole split; the accuracy is NaN
    if a label is no class. The split is cut into as few batches as ``batch_size`` allows, as equal
    as they can be; what the last one lacks is filled up with examples that do not count.
    """
    devices = mesh.shape[DATA]
    most = -(-batch_size // devices)

    def one_run(params: Any, batch_stats: Any, data: DeviceData) -> dict[str, jax.Array]:
        count = data.labels.shape[0]
        steps = -(-count // (most * devices))
        # 360 examples are one batch of 360 and not of 500, 1,200 are three of 400.
        local_size = -(-count // (steps * devices))

        def one_batch(step: jax.Array) -> jax.Array:
            start = (step * devices + lax.axis_index(DATA)) * local_size
            index = start + jnp.arange(local_size)
            counts = (index < count).astype(jnp.float32)
            index = jnp.minimum(index, count - 1)
            images = normalize(data.take(index), data.mean, data.std)
            return batch_sums(apply_fn, params, batch_stats, images, data.labels[index], counts)

        sums = lax.map(one_batch, jnp.arange(steps)).sum(axis=0)
        loss, accuracy, _ = lax.psum(sums, DATA) / count
        return {"loss": loss, "accuracy": accuracy}

    return over_runs(one_run, mesh)


def batch_sums(
    apply_fn: ApplyFn,
    params: Any,
    batch_stats: Any,
    images: jax.Array,
    labels: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """The sums of losses, correct predictions and ``counts`` (0 or 1) of a batch, float32 [3]."""
    with never_stored():
        logits, _ = apply_fn(params, batch_stats, images, None)
    logits = logits.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    # where, not a product: an example that does not count may have an infinite loss.
    sums = [jnp.where(counts > 0, each, 0.0).sum() for each in (losses, correct(logits, labels))]
    return jnp.stack([*sums, counts.sum()])


def make_estimate_batch_stats(
    apply_fn: ApplyFn, mesh: Mesh, *, batch_size: int, batches: int
) -> Callable[[TrainState, DeviceData], Any]:
    """Compiles ``estimate(states, data)``, BatchNorm's statistics at the last parameters.

    Running statistics forget with a factor of 0.9 a step; after few steps of a deep network that
    still moves fast they are those of a network that is gone. Here mean and variance are averages
    over the first ``batches`` of a run's first epoch, not augmented: ``mean = sum_i mean_i /
    batches``, likewise the variance. The network is one of this library.

    Source: the precise BatchNorm of Wu, Johnson, *Rethinking "Batch" in BatchNorm*, 2021.
    """

    def one_run(state: TrainState, data: DeviceData) -> Any:
        order = epoch_order(state.seed, 0, data.labels.shape[0])
        nothing = jax.tree.map(jnp.zeros_like, state.batch_stats)

        @never_stored()
        def one_batch(index: jax.Array) -> Any:
            batch = training_batch(
                data, order, state.seed, index, batch_size=batch_size, axis_name=DATA
            )
            _, updated = apply_fn(state.params, nothing, batch["image"], batch["keys"])
            # From 0, an update of the running statistics adds this fraction of the batch's.
            return jax.tree.map(lambda value: value / (1 - MOMENTUM), updated)

        of_batches = lax.map(one_batch, jnp.arange(batches))
        return lax.pmean(jax.tree.map(lambda value: value.mean(axis=0), of_batches), DATA)

    return over_runs(one_run, mesh)
