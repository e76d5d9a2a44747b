"""The order of the training examples, a pure function of the seed and the step.

Nothing is carried from step to step:

    order = epoch_order(seed, step // steps_per_epoch(n, batch_size), n)     # once per epoch
    index = batch_indices(order, step, batch_size, axis_name="data")         # inside the step
"""

import operator

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike


def seed_key(seed: ArrayLike) -> jax.Array:
    """Returns the PRNG key from which the order and the augmentation of a run are derived."""
    check_seed(seed)
    # By name, for ``jax_default_prng_impl`` would change the order.
    return jax.random.key(seed, impl="threefry2x32")


def check_seed(seed: ArrayLike) -> None:
    """Refuses a concrete seed outside [0, 2**32), of which JAX would keep the low 32 bits."""
    if not isinstance(seed, jax.core.Tracer) and not 0 <= operator.index(seed) < 2**32:  # type: ignore[arg-type]
        raise ValueError(f"seed={seed} found; expected a whole number in [0, 2**32).")


def steps_per_epoch(num_examples: int, batch_size: int) -> int:
    """Returns the number of full batches in an epoch; the remainder is dropped.

    Raises:
      ValueError: if the batch is smaller than one or larger than the split.
    """
    if not 1 <= batch_size <= num_examples:
        raise ValueError(
            f"batch_size={batch_size} found for a training split of {num_examples} examples; "
            f"expected 1 to {num_examples}."
        )
    return num_examples // batch_size


def epoch_order(seed: ArrayLike, epoch: ArrayLike, num_examples: int) -> jax.Array:
    """Returns the order in which an epoch visits the training examples.

    Args:
      seed: integer scalar in [0, 2**32); may be traced, so that ``vmap`` over seeds works.
      epoch: integer scalar, counted from 0; may be traced.
      num_examples: size of the training split.

    Returns:
      A permutation, int32 [num_examples].
    """
    key = jax.random.fold_in(seed_key(seed), epoch)
    return jax.random.permutation(key, jnp.arange(num_examples, dtype=jnp.int32))


def local_positions(batch_size: int, axis_name: str | None = None) -> jax.Array:
    """Returns the positions in the global batch that this replica holds.

    Replica ``d`` of ``D`` holds ``[d * batch_size / D, (d + 1) * batch_size / D)``.

    Args:
      batch_size: examples per step over all replicas.
      axis_name: mapped axis (of ``shard_map``, ``pmap`` or ``vmap``) over which the batch is split;
        None if it is not.

    Returns:
      int32 [batch_size / D].

    Raises:
      ValueError: if the batch does not divide over the replicas.

    Example:
      >>> jax.vmap(lambda _: local_positions(6, "data"), axis_name="data")(jnp.zeros(2)).tolist()
      [[0, 1, 2], [3, 4, 5]]
    """
    if axis_name is None:
        return jnp.arange(batch_size, dtype=jnp.int32)
    replicas = jax.lax.axis_size(axis_name)
    if batch_size % replicas:
        raise ValueError(
            f"batch_size={batch_size} does not divide evenly over the {replicas} replicas of axis"
            f" {axis_name!r}."
        )
    local = batch_size // replicas
    return jax.lax.axis_index(axis_name) * local + jnp.arange(local, dtype=jnp.int32)


def batch_indices(
    order: jax.Array, step: ArrayLike, batch_size: int, axis_name: str | None = None
) -> jax.Array:
    """Returns the examples that this replica trains on at a global step.

    Args:
      order: ``epoch_order`` of epoch ``step // steps_per_epoch``, int32 [num_examples].
      step: integer scalar, counted from 0 over the whole run; may be traced.
      batch_size: examples per step over all replicas.
      axis_name: as of :func:`local_positions`.

    Returns:
      Indices into the training split, int32 [batch_size / D] for ``D`` replicas.

    Raises:
      ValueError: if the batch does not fit the split or does not divide over the replicas.
    """
    steps = steps_per_epoch(order.shape[0], batch_size)
    positions = local_positions(batch_size, axis_name)
    # The remainder comes first: step * batch_size overflows int32 in a long run.
    start = jnp.asarray(step) % steps * batch_size + positions[0]
    return jax.lax.dynamic_slice_in_dim(order, start, positions.shape[0])
