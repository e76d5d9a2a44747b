"""Programs on batches from the host, which are put on the devices of a mesh."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets.training.mesh import DATA, over_runs
from nf_resnets.training.program import Steps
from nf_resnets.training.state import OptimizerFn, TrainState
from nf_resnets.training.step import LossFn, Metrics, replica_step


def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The positions in the global batch that this process's devices hold, rising.

    Where the mesh's ``sweep`` axis extends over processes, several read the same rows.
    """
    slices = _sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    rows = {row for each in slices if each for row in range(*each[0].indices(batch_size))}
    return np.array(sorted(rows))


def on_devices(
    batches: Iterator[dict[str, Any]], mesh: Mesh
) -> Generator[dict[str, jax.Array], None, None]:
    """Puts a host's batches, in the order of its :func:`local_rows`, on the devices of a mesh."""
    sharding = _sharding(mesh)
    try:
        for batch in batches:
            # On a CPU arrays would share the memory, into which a loader may read its next batch.
            yield {
                name: jax.make_array_from_process_local_data(sharding, np.array(values))
                for name, values in batch.items()
            }
    finally:
        _close(batches)


def _close(batches: Any) -> None:
    """Ends what reads ahead."""
    getattr(batches, "close", lambda: None)()


def _sharding(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(DATA))


BatchesFn = Callable[[int, int], Iterator[Any]]
"""``batches(seed, step)`` iterates over a run's batches from a step on; ``close()`` ends it."""

PrepareFn = Callable[[TrainState, dict[str, jax.Array]], dict[str, jax.Array]]
"""``prepare(state, batch)`` makes of a replica's part of a host's batch what the loss takes."""


def host_step(
    loss: LossFn, prepare: PrepareFn, optimizer: OptimizerFn, mesh: Mesh, **options: Any
) -> jax.stages.Wrapped:
    """Compiles ``step(states, batch) -> (states, metrics)``, once for every shape of batch.

    States and metrics are those of ``R`` runs, sharded over the mesh's ``sweep`` axis; the batch,
    which they share, is sharded over its ``data`` axis. The states given are donated. ``options``
    are those of :func:`nf_resnets.training.replica_step`.
    """

    def one_run(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, Metrics]:
        return replica_step(
            state, prepare(state, batch), loss=loss, optimizer=optimizer, axis_name=DATA, **options
        )

    return over_runs(one_run, mesh, data=PartitionSpec(DATA), donate=True)


class HostSteps:
    """The ``steps`` of a :class:`nf_resnets.training.Program` with one slot.

    It keeps the batches of a run open between calls; runs in several threads need copies of it.
    ``step(states, batch) -> (states, metrics)`` is compiled; of its metrics those named are kept.

    Attributes:
      seconds_waited: how long it has waited for batches.
    """

    def __init__(
        self, step: Callable[..., Any], batches: BatchesFn, mesh: Mesh, metrics: tuple[str, ...]
    ) -> None:
        self._step, self._open, self._metrics = step, batches, metrics
        # Steps dispatched ahead on several virtual CPU devices can deadlock. Elsewhere a few run
        # ahead of the host, so that reading metrics costs nothing.
        self._lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8
        self._batches: Any = None
        self._at: tuple[int, int] | None = None  # seed and step of the next batch
        self.seconds_waited = 0.0

    def __call__(self, states: TrainState, counts: np.ndarray) -> Steps:
        """Makes ``counts[0]`` steps, fewer if the run diverges."""
        seed, first = int(states.seed[0]), int(states.step[0])
        if self._at != (seed, first):
            self.close()
            self._batches = self._open(seed, first)
        pending: collections.deque[Any] = collections.deque()
        rows: list[list[float]] = []
        loss: Any = None
        for _ in range(int(counts[0])):
            batch = self._next(loss)
            states, metrics = self._step(states, batch)
            loss = metrics["loss"]
            pending.append([metrics[name] for name in self._metrics])
            if not self._read(pending, rows, self._lag):
                break
        diverged = not self._read(pending, rows, 0)
        self._at = seed, first + len(rows)
        if diverged:
            self.close()
        curve = np.array(rows, np.float32).reshape(len(rows), len(self._metrics))
        columns = {name: curve[None, :, index] for index, name in enumerate(self._metrics)}
        return Steps(states, columns, np.array([len(rows)], np.int32), np.array([diverged]))

    def _next(self, loss: Any) -> Any:
        start = time.perf_counter()
        batch = next(self._batches)
        # A device that is still computing has not waited, however long the host has.
        if loss is None or loss.is_ready():
            self.seconds_waited += time.perf_counter() - start
        return batch

    @staticmethod
    def _read(pending: collections.deque[Any], rows: list[list[float]], most: int) -> bool:
        """Reads metrics until at most so many are pending; False as soon as one is not finite."""
        while True:
            if rows and not np.isfinite(rows[-1]).all():
                return False
            if len(pending) <= most:
                return True
            rows.append([float(value[0]) for value in jax.device_get(pending.popleft())])

    def close(self) -> None:
        """Ends what reads ahead."""
        _close(self._batches)
        self._batches = self._at = None
