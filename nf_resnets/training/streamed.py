"""Training step and evaluation for images that come from the host, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.data.augment import example_keys, normalize
from nf_resnets.data.mixup import mixed, mixture
from nf_resnets.data.order import local_positions
from nf_resnets.training.apply import ApplyFn
from nf_resnets.training.evaluate import batch_sums
from nf_resnets.training.mesh import DATA, SWEEP, check_runs
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import Metrics, Vectorize, check_batch, compile_step, replica_step

DeviceBatch = dict[str, jax.Array]


def make_streamed_step(
    apply_fn: ApplyFn,
    optimizer: OptimizerFn,
    mesh: Mesh,
    *,
    batch_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    mixup: float = 0.0,
    micro_batches: int = 1,
    label_smoothing: float = 0.0,
    vectorize: Vectorize = "auto",
) -> Callable[[TrainState, DeviceBatch], tuple[TrainState, Metrics]]:
    """As :func:`nf_resnets.training.make_train_steps`, but one step on a batch from the host.

    The runs share the batches; mixup and dropout follow from each one's seed. Every image is mixed
    with another one of the whole batch, by :func:`nf_resnets.data.mixture`: replicas send each
    other their images, as bytes, so that one device and eight give the same numbers.

    Args:
      apply_fn: see ``make_train_steps``, as for the arguments that are not listed here.
      optimizer: see there.
      mesh: see there.
      batch_size: ``B``, examples in a step of one run, over all its devices.
      mean: of the training pixels, per channel, in raw pixel units.
      std: standard deviation of the training pixels, likewise.
      mixup: ``alpha`` of the Beta distribution of the fractions; 0 for no mixing.
      micro_batches: see there.
      label_smoothing: see there.
      vectorize: see there.

    Returns:
      ``step(states, batch) -> (states, metrics)``: states with a leading axis ``[R, ...]`` on every
      leaf, a batch with ``image`` uint8 [B, H, W, C] and ``label`` int32 [B] sharded over the mesh
      (:class:`nf_resnets.training.DeviceIterator`); metrics float32 [R]. The states given are
      donated.

    Raises:
      ValueError: if the batch does not divide over the devices and micro-batches, ``mixup`` is
        negative, or ``vectorize`` is none of the three; from the step, if ``R`` is no multiple of
        the ``sweep`` axis or the batch has another size.
    """
    check_batch(batch_size, mesh, micro_batches)
    if not 0 <= mixup < float("inf"):
        raise ValueError(f"mixup={mixup} found; expected a finite number of at least 0.")
    colours = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def prepared(state: TrainState, batch: DeviceBatch) -> DeviceBatch:
        positions = local_positions(batch_size, DATA)
        images, labels = normalize(batch["image"], *colours), batch["label"]
        found = {
            "image": images,
            "label": labels,
            "keys": example_keys(state.seed, state.step, positions),
        }
        if not mixup:
            return found
        fraction, partners = mixture(mixup, state.seed, state.step, batch_size)
        partners = partners[positions]
        # Gathered as bytes: a quarter of what they are as numbers.
        all_images, all_labels = lax.all_gather((batch["image"], labels), DATA, tiled=True)
        return {
            **found,
            "image": mixed(images, normalize(all_images[partners], *colours), fraction),
            "other_label": all_labels[partners],
            "fraction": jnp.full(labels.shape, fraction),
        }

    def one_run(state: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        return replica_step(
            state,
            prepared(state, batch),
            apply_fn=apply_fn,
            optimizer=optimizer,
            axis_name=DATA,
            micro_batches=micro_batches,
            label_smoothing=label_smoothing,
        )

    compiled = compile_step(one_run, mesh, vectorize=vectorize)

    def step(states: TrainState, batch: DeviceBatch) -> tuple[TrainState, Metrics]:
        if batch["label"].shape != (batch_size,):
            raise ValueError(
                f"a batch of {batch['label'].shape[0]} examples found; expected "
                f"batch_size={batch_size}."
            )
        return compiled(states, {name: batch[name] for name in ("image", "label")})

    return step


def make_streamed_evaluate(
    apply_fn: ApplyFn, mesh: Mesh, *, mean: Sequence[float], std: Sequence[float]
) -> Callable[[Any, Any, Iterable[DeviceBatch]], dict[str, np.ndarray]]:
    """Compiles the evaluation of ``R`` runs on batches that come from the host.

    Args:
      apply_fn: how the network is called (:func:`nf_resnets.training.eval_apply`).
      mesh: see :func:`nf_resnets.training.make_mesh`.
      mean: of the training pixels, per channel, in raw pixel units.
      std: standard deviation of the training pixels, likewise.

    Returns:
      ``evaluate(params, batch_stats, batches)`` with a leading axis ``[R, ...]`` on parameters and
      statistics, and batches of ``image``, ``label`` and ``counts`` float32 [B], 0 for an example
      that only fills the batch. It gives ``loss`` and ``accuracy`` float64 [R], means over all
      examples that count.

    Raises:
      ValueError: from the function, if no example counts, or ``R`` is no multiple of the mesh's
        ``sweep`` axis.
    """
    colours = np.asarray(mean, np.float32), np.asarray(std, np.float32)

    def one_run(params: Any, batch_stats: Any, batch: DeviceBatch) -> jax.Array:
        images = normalize(batch["image"], *colours)
        sums = batch_sums(apply_fn, params, batch_stats, images, batch["label"], batch["counts"])
        return lax.psum(sums, DATA)

    def local_runs(params: Any, batch_stats: Any, batch: DeviceBatch) -> jax.Array:
        return lax.map(lambda run: one_run(run[0], run[1], batch), (params, batch_stats))

    per_run, per_example = PartitionSpec(SWEEP), PartitionSpec(DATA)
    sums_of = jax.jit(
        jax.shard_map(
            local_runs, mesh=mesh, in_specs=(per_run, per_run, per_example), out_specs=per_run
        ),
        # On every process whole, for each adds up the sums of all runs by itself.
        out_shardings=NamedSharding(mesh, PartitionSpec()),
    )

    def evaluate(
        params: Any, batch_stats: Any, batches: Iterable[DeviceBatch]
    ) -> dict[str, np.ndarray]:
        runs = jax.tree.leaves(params)[0].shape[0]
        check_runs(runs, mesh)
        total = np.zeros((runs, 3))
        for batch in batches:
            needed = {name: batch[name] for name in ("image", "label", "counts")}
            total += np.asarray(sums_of(params, batch_stats, needed), np.float64)
        if not total[:, 2].all():
            raise ValueError("no example that counts found in the batches; expected at least one.")
        return {"loss": total[:, 0] / total[:, 2], "accuracy": total[:, 1] / total[:, 2]}

    return evaluate


__all__ = ["DeviceBatch", "make_streamed_evaluate", "make_streamed_step"]
