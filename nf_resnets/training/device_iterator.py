"""Batches that a host reads, as arrays on the devices of a mesh."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.training.mesh import DATA


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The positions in the global batch that this process's devices hold, and that it reads.

    Where the mesh's ``sweep`` axis extends over processes, several read the same rows.

    Args:
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: examples in a step, over all devices of a run.

    Returns:
      Rising positions, int64 [b].

    Raises:
      ValueError: if the batch does not divide over the devices, or none of them is this process's.

    Example:
      >>> from nf_resnets.training.mesh import make_mesh
      >>> local_rows(make_mesh(devices=jax.devices()[:1]), 4).tolist()
      [0, 1, 2, 3]
    """
    if batch_size < 1 or batch_size % mesh.shape[DATA]:
        raise ValueError(
            f"batch_size={batch_size} does not divide evenly over the {mesh.shape[DATA]} devices "
            "of the mesh's data axis."
        )
    slices = _sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = {row for each in slices if each for row in range(*each[0].indices(batch_size))}
    if not rows:
        raise ValueError("no device of the mesh belongs to this process; expected at least one.")
    return np.array(sorted(rows))


class DeviceIterator:
    """Puts a host's batches on the devices of a mesh.

    Args:
      batches: this process's parts of the batches, dicts of arrays ``[b, ...]``, in the order of
        its :func:`local_rows`.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      batch_size: ``B``, examples in a step, over all devices of a run.

    Raises:
      ValueError: if the batch does not divide over the devices; from ``next``, if a batch has other
        than ``b`` examples.

    Example:
      >>> from nf_resnets.training.mesh import make_mesh
      >>> mesh = make_mesh(devices=jax.devices()[:1])
      >>> batches = DeviceIterator(iter([{"label": np.arange(2)}]), mesh, 2)
      >>> [batch["label"].tolist() for batch in batches]
      [[0, 1]]
    """

    def __init__(self, batches: Iterator[dict[str, Any]], mesh: Mesh, batch_size: int) -> None:
        self._batches = batches
        self._rows = local_rows(mesh, batch_size)
        self._batch_size = batch_size
        self._sharding = _sharding(mesh)

    def __iter__(self) -> DeviceIterator:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        batch = next(self._batches)
        return {name: self._put(name, np.asarray(values)) for name, values in batch.items()}

    def close(self) -> None:
        """Ends what reads ahead."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()

    def _put(self, name: str, values: np.ndarray) -> jax.Array:
        if values.shape[:1] != self._rows.shape:
            raise ValueError(
                f"{name} of shape {values.shape} found in a batch; expected {len(self._rows)} "
                "examples, those that this process's devices hold."
            )
        shape = (self._batch_size, *values.shape[1:])
        return jax.make_array_from_callback(
            shape, self._sharding, lambda at: self._part(values, at)
        )

    def _part(self, values: np.ndarray, index: Any) -> np.ndarray:
        start, stop, _ = index[0].indices(self._batch_size)
        first = int(np.searchsorted(self._rows, start))
        # On a CPU the array would share the memory, into which a loader may read its next batch.
        return values[first : first + stop - start].copy()


def _sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(DATA))


__all__ = ["DeviceIterator", "local_rows"]
