"""Runs stacked along an axis, and arrays put on the devices of a mesh, in one process or many."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.training.mesh import SWEEP, check_runs


def stack(trees: list[Any]) -> Any:
    """Stacks trees of one structure along a new leading axis ``[R, ...]``.

    Example:
      >>> import jax.numpy as jnp
      >>> from nf_resnets.training.mesh import make_mesh
      >>> runs = stack([{"w": jnp.zeros(2)}, {"w": jnp.ones(2)}])
      >>> runs["w"].shape, unstack(runs, 1)["w"].tolist()
      ((2, 2), [1.0, 1.0])
      >>> mesh = make_mesh(devices=jax.devices()[:1])
      >>> shard_runs(runs, mesh)["w"].shape, replicate(runs, mesh)["w"].sharding.is_fully_replicated
      ((2, 2), True)
    """
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstack(tree: Any, run: Any) -> Any:
    """Takes one run out of a stacked tree."""
    return jax.tree.map(lambda leaf: leaf[run], tree)


def replicate(tree: Any, mesh: Mesh) -> Any:
    """Copies every leaf whole to every device of the mesh."""
    return _put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_runs(tree: Any, mesh: Mesh) -> Any:
    """Shards the leading axis ``[R, ...]`` of every leaf over the mesh's ``sweep`` axis.

    Raises:
      ValueError: if ``R`` is no multiple of the ``sweep`` axis, or a leaf has no axis.
    """
    for leaf in jax.tree.leaves(tree):
        shape = np.shape(leaf)
        if not shape:
            raise ValueError(
                f"the scalar {leaf!r} found; expected a leading axis of runs on every leaf, as "
                "stack makes it."
            )
        check_runs(shape[0], mesh)
    return _put(tree, NamedSharding(mesh, PartitionSpec(SWEEP)))


def _put(tree: Any, sharding: NamedSharding) -> Any:
    def put(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not (
            leaf.is_fully_addressable or leaf.is_fully_replicated
        ):
            # No process holds the whole value: the devices themselves must send the parts.
            return jax.jit(lambda value: value, out_shardings=sharding)(leaf)
        # Every process holds the whole value, and gives its own devices their parts of it.
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(put, tree)


__all__ = ["replicate", "shard_runs", "stack", "unstack"]
