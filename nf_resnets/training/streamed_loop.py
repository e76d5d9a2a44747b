"""The loop over a run's steps on streamed batches: feeds, saves, resumes, and tells of stalls."""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.feed import Feed, local_rows
from nf_resnets.training.place import spread_runs
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.state import TrainState
from nf_resnets.training.step import stack, unstack
from nf_resnets.training.streamed import StreamedStepFn

StreamFn = Callable[[int, np.ndarray], Iterator[dict[str, Any]]]
"""``stream(first_step, rows)``: this process's parts of the batches from a step on, ``rows`` being
the positions in the global batch that it holds."""

# Processes that share a run ask each other so seldom whether one was told to stop: it is a message
# to all.
_ASK_EVERY = 16


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

    status: Literal["finished", "diverged", "stopped"]
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
      ValueError: if ``num_steps`` or ``save_every`` is out of range, or the stream ends early;
        from the stream, at an example that cannot be used.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} found; expected at least 1.")
    if save_every < 0:
        raise ValueError(f"save_every={save_every} found; expected at least 0.")
    if checkpoints is not None:
        state = _restored(checkpoints, state)
    first = int(state.step)
    # On a CPU every step is waited for: steps dispatched ahead on several virtual devices can
    # deadlock. Elsewhere a few steps run ahead of the host, so that reading metrics costs nothing.
    lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8

    states = spread_runs(stack([state]), mesh)
    feed = Feed(stream(first, local_rows(mesh, batch_size)), mesh, batch_size)
    pending: collections.deque[tuple[Any, float]] = collections.deque()
    curve: list[dict[str, float]] = []
    clock = _Clock()

    def finite() -> bool:
        """Reads the oldest pending metrics; tells whether the run is still alive after them."""
        metrics, wait = pending.popleft()
        numbers = {name: float(value[0]) for name, value in jax.device_get(metrics).items()}
        curve.append(numbers)
        clock.stepped(wait)
        if on_step is not None:
            times = {"input_wait": wait, "input_share": clock.share}
            on_step(first + len(curve), {**numbers, **times})
        return all(math.isfinite(value) for value in numbers.values())

    def end(status: Literal["finished", "diverged", "stopped"]) -> StreamedRun:
        last = unstack(states, 0)
        return StreamedRun(status, last, first, tuple(curve), clock.waited, clock.seconds)

    try:
        for index in range(first, num_steps):
            try:
                batch = next(feed)
            except StopIteration:
                raise ValueError(
                    f"the stream ended before step {index}; expected batches up to step "
                    f"{num_steps - 1}."
                ) from None
            # A device that is still computing has not waited, however long the host has.
            idle = not pending or pending[-1][0]["loss"].is_ready()
            states, metrics = step(states, batch)
            pending.append((metrics, feed.last_wait if idle else 0.0))
            made = index + 1
            stopping = made < num_steps and _told_to_stop(stop, made)
            saving = checkpoints is not None and (
                stopping or made == num_steps or (save_every and made % save_every == 0)
            )
            # Before it is saved, a state must have been seen to be finite.
            while len(pending) > (0 if saving or stopping else lag):
                if not finite():
                    return end("diverged")
            if saving:
                _save(checkpoints, made, states)
            if stopping:
                return end("stopped")
        while pending:
            if not finite():
                return end("diverged")
    finally:
        feed.close()
    return end("finished")


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


def _told_to_stop(stop: Preemption | None, made: int) -> bool:
    if stop is None:
        return False
    if jax.process_count() == 1:
        return stop.requested
    return made % _ASK_EVERY == 0 and hosts.anywhere(stop.requested)


def _save(checkpoints: Checkpoints | None, made: int, states: TrainState) -> None:
    tree = hosts.gather(unstack(states, 0))
    if checkpoints is not None and hosts.is_leader():
        checkpoints.save(made, tree)


def _restored(checkpoints: Checkpoints, state: TrainState) -> TrainState:
    """The newest checkpoint on every process, or the state itself if there is none."""
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    found = checkpoints.restore(like) if hosts.is_leader() else None
    shared = hosts.share(None if found is None else found[1], like)
    return state if shared is None else shared


__all__ = ["StreamFn", "StreamedRun", "train_streamed"]
