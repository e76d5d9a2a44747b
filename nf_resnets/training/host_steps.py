"""Steps on batches from the host."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from nf_resnets.training.program import Steps
from nf_resnets.training.state import TrainState

BatchesFn = Callable[[int, int], Iterator[Any]]
"""``batches(seed, step)`` iterates over a run's batches from a step on; ``close()`` ends it."""


class HostSteps:
    """The ``steps`` of a :class:`nf_resnets.training.Program` with one slot.

    Args:
      step: ``step(states, batch) -> (states, metrics)``, compiled.
      batches: opens the batches of a run; they stay open between calls.
      mesh: see :func:`nf_resnets.training.make_mesh`.
      metrics: the names of the metrics that are kept.
    """

    def __init__(
        self, step: Callable[..., Any], batches: BatchesFn, mesh: Mesh, metrics: tuple[str, ...]
    ) -> None:
        self._step, self._batches, self._metrics = step, batches, metrics
        # Steps dispatched ahead on several virtual CPU devices can deadlock. Elsewhere a few run
        # ahead of the host, so that reading metrics costs nothing.
        self._lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8
        self._open: Iterator[Any] | None = None
        self._at: tuple[int, int] | None = None
        self.seconds_waited = 0.0

    def __call__(self, states: TrainState, counts: np.ndarray) -> Steps:
        """Makes ``counts[0]`` steps, fewer if the run diverges."""
        at = int(states.seed[0]), int(states.step[0])
        if self._open is None or self._at != at:
            self.close()
            self._open = self._batches(*at)
        pending: collections.deque[Any] = collections.deque()
        rows: list[list[float]] = []
        loss: Any = None
        for step in range(int(counts[0])):
            batch = self._next(at[1] + step, loss)
            states, metrics = self._step(states, batch)
            loss = metrics["loss"]
            pending.append([metrics[name] for name in self._metrics])
            if not self._read(pending, rows, self._lag):
                break
        diverged = not self._read(pending, rows, 0)
        self._at = at[0], at[1] + len(rows)
        if diverged:
            self.close()
        curve = np.array(rows, np.float32).reshape(len(rows), len(self._metrics))
        columns = {name: curve[None, :, index] for index, name in enumerate(self._metrics)}
        return Steps(states, columns, np.array([len(rows)], np.int32), np.array([diverged]))

    def _next(self, step: int, loss: Any) -> Any:
        start = time.perf_counter()
        try:
            batch = next(self._open)  # type: ignore[arg-type]
        except StopIteration:
            raise ValueError(
                f"the stream ended before step {step}; expected more batches."
            ) from None
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
        close = getattr(self._open, "close", None)
        if close is not None:
            close()
        self._open, self._at = None, None


__all__ = ["BatchesFn", "HostSteps"]
