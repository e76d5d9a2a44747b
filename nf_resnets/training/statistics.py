"""BatchNorm's statistics for the parameters as they are, not as they were some steps ago."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.data.batch import DeviceData, training_batch
from nf_resnets.data.order import check_whole
from nf_resnets.models.conv import never_stored
from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.mesh import DATA, SWEEP, check_runs
from nf_resnets.training.state import TrainState, is_counter


def make_estimate_batch_stats(
    apply_fn: ApplyFn, mesh: Mesh, *, batch_size: int, batches: int, momentum: float | None = None
) -> Callable[[TrainState, DeviceData, jax.Array], Any]:
    r"""Compiles the estimation of BatchNorm's statistics at the parameters that a run ended with.

    Running statistics forget with a factor of 0.9 a step; after few steps of a deep network that
    still moves fast they are those of a network that is gone. Here mean and variance are averages
    over some training batches, all with the final parameters: ``mean = sum_i mean_i / batches``,
    likewise the variance. The images are not augmented.
    Whole numbers among the statistics stay as they are.

    Args:
      apply_fn: how a replica calls the network (:func:`nf_resnets.training.train_apply`).
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: examples in a batch over all devices of a run.
      batches: how many batches, the first ones of the order given.
      momentum: what a step keeps of the running statistics. None finds it for each of them, from
        two updates.

    Returns:
      ``estimate(states, data, orders) -> batch_stats``, with a leading axis ``[R, ...]`` on states
      and statistics, the training split, and orders int32 [R, N].

    Raises:
      ValueError: if ``batches`` is below 1; from the function, if ``R`` is no multiple of the
        mesh's ``sweep`` axis or the batch does not fit the split.
      TypeError: if ``batches`` or ``batch_size`` is no whole number.

    Source: the precise BatchNorm of Wu, Johnson, *Rethinking "Batch" in BatchNorm*, 2021.

    Example:
      >>> from nf_resnets import data, models, training
      >>> dataset = data.load("digits")  # doctest: +SKIP
      >>> estimate = make_estimate_batch_stats(
      ...     training.train_apply(models.WideResNet(depth=10, scheme="batchnorm")),
      ...     training.make_mesh(), batch_size=64, batches=8)  # doctest: +SKIP
      >>> split = data.DeviceData.of(dataset, dataset.train)  # doctest: +SKIP
      >>> batch_stats = estimate(states, split, orders)  # doctest: +SKIP
    """
    check_whole(batches=batches, batch_size=batch_size)
    if batches < 1:
        raise ValueError(f"batches={batches} found; expected at least 1.")

    def one_run(state: TrainState, data: DeviceData, order: jax.Array) -> Any:
        nothing = jax.tree.map(jnp.zeros_like, state.batch_stats)

        @never_stored()
        def one_batch(index: jax.Array) -> Any:
            batch = training_batch(
                data, order, state.seed, index, batch_size=batch_size, axis_name=DATA
            )
            _, updated = apply_fn(state.params, nothing, batch["image"], batch["keys"])
            # From 0, an update of the running statistics adds this fraction of the batch's.
            if momentum is not None:
                return jax.tree.map(lambda value: value / (1 - momentum), updated)
            # From what is as large as that, the difference is a fraction of it that float32 keeps.
            start = jax.tree.map(lambda new: jnp.maximum(jnp.abs(new), 1), updated)
            _, again = apply_fn(state.params, start, batch["image"], batch["keys"])
            return jax.tree.map(
                lambda new, then, before: new / (1 - (then - new) / before), updated, again, start
            )

        found = lax.map(one_batch, jnp.arange(batches))
        means = lax.pmean(jax.tree.map(lambda value: value.mean(axis=0), found), DATA)
        return jax.tree.map(
            lambda mean, given: given if is_counter(given) else mean.astype(given.dtype),
            means, state.batch_stats,
        )  # fmt: skip

    def local_runs(states: TrainState, data: DeviceData, orders: jax.Array) -> Any:
        return lax.map(lambda run: one_run(run[0], data, run[1]), (states, orders))

    per_run, shared = PartitionSpec(SWEEP), PartitionSpec()
    sharded = jax.shard_map(
        local_runs, mesh=mesh, in_specs=(per_run, shared, per_run), out_specs=per_run
    )

    def estimate(states: TrainState, data: DeviceData, orders: jax.Array) -> Any:
        check_runs(orders.shape[0], mesh)
        return sharded(states, data, orders)

    return jax.jit(estimate, out_shardings=NamedSharding(mesh, per_run))


__all__ = ["make_estimate_batch_stats"]
