"""The mesh over which runs and batches are sharded, and arrays put on its devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

SWEEP, DATA = "sweep", "data"
"""The two axes: runs of a sweep along the one, the slices of each run's batch along the other."""

Vectorize = Literal["auto", "vmap", "loop"]


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
    """Stacks trees of one structure along a new leading axis ``[R, ...]``."""
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
        # Every process holds the whole value, and gives its own devices their parts of it.
        value = np.asarray(leaf)
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return jax.tree.map(put, tree)


def over_runs(
    one_run: Callable[..., Any],
    mesh: Mesh,
    *,
    data: PartitionSpec = PartitionSpec(),  # noqa: B008 (a frozen value)
    vectorize: Vectorize = "loop",
    donate: bool = False,
    whole: bool = False,
) -> jax.stages.Wrapped:
    """Compiles ``one_run(*run, data)`` for ``R`` runs, sharded over the mesh's ``sweep`` axis.

    Its arguments are a run's own, ``[R, ...]`` in the compiled function, and last the data that all
    runs share, sharded as ``data`` says. A device computes its runs by ``vmap`` or in a loop, so
    that eight compile as fast as one. ``donate`` gives the first argument up; the result of
    ``whole`` is whole on every process, and not sharded over the runs.
    """

    def local_runs(runs: tuple[Any, ...], data: Any) -> Any:
        if jax.tree.leaves(runs)[0].shape[0] == 1:
            return stack([one_run(*unstack(runs, 0), data)])
        if vectorize == "vmap":
            return jax.vmap(one_run, in_axes=(*(0 for _ in runs), None))(*runs, data)
        return lax.map(lambda run: one_run(*run, data), runs)

    per_run = PartitionSpec(SWEEP)
    sharded = jax.shard_map(local_runs, mesh=mesh, in_specs=(per_run, data), out_specs=per_run)
    # The outputs' shardings are named because the compiler calls an axis of one device unsharded,
    # and the second step would be looked up under other shardings than the first.
    return jax.jit(
        lambda *arguments: sharded(arguments[:-1], arguments[-1]),
        donate_argnums=(0,) if donate else (),
        out_shardings=NamedSharding(mesh, PartitionSpec() if whole else per_run),
    )
