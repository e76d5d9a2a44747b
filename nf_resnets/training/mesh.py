"""The mesh over which runs and batches are sharded."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh

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
    if sweep < 1 or (data is not None and data < 1):
        raise ValueError(f"a mesh of sweep={sweep}, data={data} found; expected 1 or more of each.")
    if data is None:
        if not devices or len(devices) % sweep:
            raise ValueError(
                f"{len(devices)} devices found; expected a multiple of sweep={sweep}, as many for "
                "each group."
            )
        data = len(devices) // sweep
    if sweep * data != len(devices):
        raise ValueError(
            f"a mesh of sweep={sweep} times data={data} needs {sweep * data} devices; "
            f"{len(devices)} found."
        )
    axis_types = (AxisType.Auto, AxisType.Auto)
    return jax.make_mesh((sweep, data), (SWEEP, DATA), axis_types=axis_types, devices=devices)


def check_runs(runs: int, mesh: Mesh) -> None:
    """Refuses a number of runs that does not divide over the mesh's ``sweep`` axis."""
    if runs < 1 or runs % mesh.shape[SWEEP]:
        raise ValueError(
            f"{runs} runs found; expected a multiple of {mesh.shape[SWEEP]}, the devices of the "
            "mesh's sweep axis."
        )


__all__ = ["DATA", "SWEEP", "check_runs", "make_mesh"]
