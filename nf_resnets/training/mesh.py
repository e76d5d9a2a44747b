"""The mesh over which runs and batches are sharded, and arrays put on its devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

SWEEP, DATA = "sweep", "data"
"""The two axes: runs of a sweep along the one, the slices of each run's batch along the other."""


def make_mesh(
    sweep: int = 1, data: int | None = None, *, devices: Sequence[jax.Device] | None = None
) -> Mesh:
    """Makes a ``[sweep, data]`` mesh; by default all devices share one run's batch.

    Args:
      sweep: how many groups of devices train different runs.
      data: how many devices share a batch; by default as many as there are for each group.
      devices: the devices to use; by default all, of every process.

    Raises:
      ValueError: if the devices do not make such a mesh.

    Example:
      >>> make_mesh(devices=jax.devices()[:1]).axis_names
      ('sweep', 'data')
    """
    devices = list(jax.devices() if devices is None else devices)
    count = max(len(devices) // max(sweep, 1), 1) if data is None else data
    if sweep < 1 or sweep * count != len(devices):
        raise ValueError(
            f"a mesh of sweep={sweep}, data={data} found for {len(devices)} devices; expected a "
            "product of as many."
        )
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((sweep, count), (SWEEP, DATA), axis_types=axis_types, devices=devices)


def stack(trees: list[Any]) -> Any:
    """Stacks trees of one structure along a new leading axis ``[R, ...]``.

    Example:
      >>> import jax.numpy as jnp
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
    """Shards the leading axis ``[R, ...]`` of every leaf over the mesh's ``sweep`` axis."""
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


__all__ = ["DATA", "SWEEP", "make_mesh", "replicate", "shard_runs", "stack", "unstack"]
