"""Loss and accuracy on a whole split: every example counted once, none dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.data.augment import normalize
from nf_resnets.data.batch import DeviceData
from nf_resnets.data.order import check_whole
from nf_resnets.models.conv import never_stored
from nf_resnets.training.apply import ApplyFn, called
from nf_resnets.training.loss import correct
from nf_resnets.training.mesh import DATA, SWEEP, check_runs


def make_evaluate(
    apply_fn: ApplyFn, mesh: Mesh, *, batch_size: int
) -> Callable[[Any, Any, DeviceData], dict[str, jax.Array]]:
    """Compiles the evaluation of ``R`` runs on a ``("sweep", "data")`` mesh.

    The split is cut into as few batches as that takes, as equal as they can be; what the last one
    lacks is filled up with examples that do not count.

    Args:
      apply_fn: how the network is called (:func:`nf_resnets.training.eval_apply`).
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: the most examples in a batch over all devices of a run; rounded up to divide
        evenly.

    Returns:
      ``evaluate(params, batch_stats, data)`` with a leading axis ``[R, ...]`` on parameters and
      statistics; it gives ``loss`` and ``accuracy`` float32 [R], means over the whole split. The
      accuracy is NaN if a label is no class.

    Raises:
      ValueError: if ``batch_size`` is below 1; from the function, if ``R`` is no multiple of the
        mesh's ``sweep`` axis.
      TypeError: if ``batch_size`` is no whole number.

    Example:
      >>> import numpy as np
      >>> from nf_resnets import data, training
      >>> def apply(params, batch_stats, images, keys):
      ...     return images.reshape(len(images), -1) @ params, batch_stats
      >>> images = np.arange(160, dtype=np.uint8).reshape(10, 4, 4, 1)
      >>> dataset = data.from_arrays(images, np.arange(10) % 2)
      >>> mesh = training.make_mesh(devices=jax.devices()[:1])
      >>> evaluate = make_evaluate(apply, mesh, batch_size=4)
      >>> split = data.DeviceData.of(dataset, dataset.test)
      >>> found = jax.eval_shape(evaluate, jnp.zeros((1, 16, 2)), {}, split)
      >>> {name: each.shape for name, each in found.items()}
      {'accuracy': (1,), 'loss': (1,)}
    """
    check_whole(batch_size=batch_size)
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size} found; expected at least 1.")
    devices = mesh.shape[DATA]
    most = -(-batch_size // devices)

    def one_run(params: Any, batch_stats: Any, data: DeviceData) -> dict[str, jax.Array]:
        count = data.labels.shape[0]
        if not count:
            raise ValueError("the split has no examples; expected at least one.")
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

    def local_runs(params: Any, batch_stats: Any, data: DeviceData) -> dict[str, jax.Array]:
        # One after another in one loop, so that eight runs compile as fast as one does; there is no
        # backward pass, which loops would slow down.
        return lax.map(lambda run: one_run(run[0], run[1], data), (params, batch_stats))

    per_run, shared = PartitionSpec(SWEEP), PartitionSpec()
    sharded = jax.shard_map(
        local_runs, mesh=mesh, in_specs=(per_run, per_run, shared), out_specs=per_run
    )

    def evaluate(params: Any, batch_stats: Any, data: DeviceData) -> dict[str, jax.Array]:
        check_runs(jax.tree.leaves(params)[0].shape[0], mesh)
        return sharded(params, batch_stats, data)

    return jax.jit(evaluate, out_shardings=NamedSharding(mesh, per_run))


def batch_sums(
    apply_fn: ApplyFn,
    params: Any,
    batch_stats: Any,
    images: jax.Array,
    labels: jax.Array,
    counts: jax.Array,
) -> jax.Array:
    """What a batch adds to the losses, the correct predictions and the examples, float32 [3].

    ``counts`` is 0 for an example that only fills the batch.
    """
    with never_stored():
        logits, _ = called(apply_fn, params, batch_stats, images, None)
    logits = logits.astype(jnp.float32)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    # where, not a product: an example that does not count may have an infinite loss.
    found = [jnp.where(counts > 0, each, 0.0).sum() for each in (losses, correct(logits, labels))]
    return jnp.stack([*found, counts.sum()])


__all__ = ["batch_sums", "make_evaluate"]
