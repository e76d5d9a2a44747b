"""Steps on batches that a host makes: one after another, as far ahead as the device allows."""

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
        # On a CPU every step is waited for: steps dispatched ahead on several virtual devices can
        # deadlock. Elsewhere a few run ahead of the host, so that reading metrics costs nothing.
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
        latest: Any = None
        for made in range(int(counts[0])):
            start = time.perf_counter()
            try:
                batch = next(self._open)
            except StopIteration:
                raise ValueError(
                    f"the stream ended before step {at[1] + made}; expected more batches."
                ) from None
            # A device that is still computing has not waited, however long the host has.
            if latest is None or latest.is_ready():
                self.seconds_waited += time.perf_counter() - start
            states, metrics = self._step(states, batch)
            latest = metrics["loss"]
            pending.append([metrics[name] for name in self._metrics])
            while len(pending) > self._lag and self._read(pending, rows):
                pass
            if rows and not np.isfinite(rows[-1]).all():
                break
        while pending and (not rows or np.isfinite(rows[-1]).all()):
            self._read(pending, rows)
        curve = np.array(rows, np.float32).reshape(len(rows), len(self._metrics))
        diverged = bool(rows) and not np.isfinite(curve[-1]).all()
        self._at = at[0], at[1] + len(rows)
        if diverged:
            self.close()
        columns = {name: curve[None, :, index] for index, name in enumerate(self._metrics)}
        return Steps(states, columns, np.array([len(rows)], np.int32), np.array([diverged]))

    def close(self) -> None:
        """Ends what reads ahead."""
        close = getattr(self._open, "close", None)
        if close is not None:
            close()
        self._open, self._at = None, None

    @staticmethod
    def _read(pending: collections.deque[Any], rows: list[list[float]]) -> bool:
        rows.append([float(value[0]) for value in jax.device_get(pending.popleft())])
        return bool(np.isfinite(rows[-1]).all())


__all__ = ["BatchesFn", "HostSteps"]
