"""Training one run on streamed batches, and telling how long it waited for them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax.sharding import Mesh

from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.feed import Feed, local_rows
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.run import Advance, Status, run_steps
from nf_resnets.training.state import TrainState
from nf_resnets.training.streamed import StreamedStepFn

StreamFn = Callable[[int, np.ndarray], Iterator[dict[str, Any]]]
"""``stream(first_step, rows)``: this process's parts of the batches from a step on, ``rows`` being
the positions in the global batch that it holds."""


@dataclasses.dataclass(frozen=True)
class StreamedRun:
    """What came of a run, or of the part of it that this process has made.

    Attributes:
      status: ``"finished"``; ``"diverged"`` if loss, gradient or update stopped being finite;
        ``"stopped"`` if the process was told to stop, after the state was saved.
      state: the state after the last step; of a diverged run it is of no use.
      first_step: the step that this process began with, above 0 of a run that was resumed.
      curve: ``loss``, ``accuracy``, ``grad_norm`` and ``update_norm`` of every step from there on;
        of a diverged run the last entry is that of the step that diverged.
      waited: seconds in which a step waited for its input.
      seconds: of the whole loop, compilation included.
    """

    status: Status
    state: TrainState
    first_step: int
    curve: tuple[dict[str, float], ...]
    waited: float
    seconds: float


def train_streamed(
    step: StreamedStepFn,
    state: TrainState,
    stream: StreamFn,
    mesh: Mesh,
    *,
    num_steps: int,
    batch_size: int,
    checkpoints: Checkpoints | None = None,
    save_every: int = 0,
    stop: Preemption | None = None,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> StreamedRun:
    """Trains one run on streamed batches until it has made ``num_steps`` steps, or has to end.

    The data position is the number of steps made, which the state holds: a run that was killed and
    is started again with the same folder goes on from its newest checkpoint with the batch that
    would have come next, and ends with the parameters of a run that was not.

    Args:
      step: the compiled step (:func:`nf_resnets.training.make_streamed_step`).
      state: where the run begins, unless there is a checkpoint.
      stream: gives the batches from a step on, such as
        :func:`nf_resnets.data.training_stream` with its other arguments filled in.
      mesh: the mesh that ``step`` was compiled for.
      num_steps: steps of the whole run.
      batch_size: the one that ``step`` was compiled for.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They stay when the run is finished.
      save_every: steps between two checkpoints; 0 to save at the end, or when told to stop, only.
      stop: when a signal has come, the run is saved and ends.
      on_step: called after each step with the number of steps made, and the step's metrics with
        ``input_wait``, the seconds that it waited for its batch, and ``input_share``, the share of
        the time that all steps but the first have waited.

    Returns:
      The :class:`StreamedRun`.

    Raises:
      ValueError: if ``num_steps`` or ``save_every`` is out of range, the state has made more steps,
        or the stream ends early; from the stream, at an example that cannot be used.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.
    """
    clock = _Clock()
    opened = contextlib.ExitStack()

    def begin(state: TrainState) -> Advance:
        feed = Feed(stream(int(state.step), local_rows(mesh, batch_size)), mesh, batch_size)
        opened.callback(feed.close)
        # The loss of the step before: Any, since the type of arrays that JAX ships lacks is_ready.
        latest: Any = None

        def advance(states: TrainState, index: int) -> Any:
            nonlocal latest
            try:
                batch = next(feed)
            except StopIteration:
                raise ValueError(
                    f"the stream ended before step {index}; expected batches up to step "
                    f"{num_steps - 1}."
                ) from None
            # A device that is still computing has not waited, however long the host has.
            idle = latest is None or latest.is_ready()
            states, metrics = step(states, batch)
            latest = metrics["loss"]
            return states, metrics, feed.last_wait if idle else 0.0

        return advance

    def told(made: int, metrics: dict[str, float], wait: float) -> None:
        clock.stepped(wait)
        if on_step is not None:
            on_step(made, {**metrics, "input_wait": wait, "input_share": clock.share})

    with opened:
        run = run_steps(
            begin,
            state,
            mesh,
            num_steps=num_steps,
            on_step=told,
            checkpoints=checkpoints,
            save_every=save_every,
            stop=stop,
        )
    return StreamedRun(
        run.status, run.state, run.first_step, run.curve, clock.waited, clock.seconds
    )


class _Clock:
    """Adds up what steps have waited for input, and their share of the time."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._second = math.nan
        self._first_wait = 0.0
        self.waited = 0.0

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._start

    @property
    def share(self) -> float:
        """Without the first step, in which the program is compiled and the first batch read."""
        elapsed = time.perf_counter() - self._second
        return min((self.waited - self._first_wait) / elapsed, 1.0) if elapsed > 0 else 0.0

    def stepped(self, wait: float) -> None:
        self.waited += wait
        if math.isnan(self._second):
            self._second, self._first_wait = time.perf_counter(), wait


__all__ = ["StreamFn", "StreamedRun", "train_streamed"]
