"""The loop over a run's steps, whatever feeds them: it resumes, saves, stops, sees divergence."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.place import spread_runs
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.state import TrainState
from nf_resnets.training.step import stack, unstack

Status = Literal["finished", "diverged", "stopped"]

Advance = Callable[[TrainState, int], tuple[TrainState, Mapping[str, jax.Array], Any]]
"""``advance(states, index)`` makes step ``index`` of the stacked state, and gives the new one, its
metrics, each ``[1]``, and a note of its own."""

# Processes that share a run ask each other so seldom whether one was told to stop: it is a message
# to all.
_ASK_EVERY = 16


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run, or of the part of it that this process has made.

    Attributes:
      status: ``"finished"``; ``"diverged"`` if a metric (loss, gradient, update) stopped being
        finite; ``"stopped"`` if the process was told to stop, after the state was saved.
      state: the state after the last step; of a diverged run it is of no use.
      first_step: the step that this process began with, above 0 of a run that was resumed.
      curve: the metrics of every step from there on; of a diverged run the last entry is that of
        the step that diverged.
    """

    status: Status
    state: TrainState
    first_step: int
    curve: tuple[dict[str, float], ...]


def run_steps(
    begin: Callable[[TrainState], Advance],
    state: TrainState,
    mesh: Mesh,
    *,
    num_steps: int,
    on_step: Callable[[int, dict[str, float], Any], Any],
    checkpoints: Checkpoints | None = None,
    save_every: int | Callable[[int], bool] = 0,
    save_failed: Callable[[CheckpointError], Any] | None = None,
    stop: Preemption | None = None,
) -> Run:
    """Makes the steps of a run until it has made ``num_steps``, or has to end.

    Args:
      begin: ``begin(state)`` gives the function that makes the steps from that state on.
      state: where the run begins, unless there is a checkpoint; a state that has made ``t`` steps
        goes on with step ``t``.
      mesh: where the state is put.
      num_steps: steps of the whole run.
      on_step: called after each step with the number of steps made, its metrics and its note.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They stay when the run is finished.
      save_every: steps between two checkpoints; 0 to save at the end, or when told to stop, only.
        A function says after which number of steps one is due.
      save_failed: called if a checkpoint cannot be saved, and the run goes on; by default, and when
        told to stop, that is an error.
      stop: when a signal has come, the run is saved and ends.

    Raises:
      ValueError: if ``num_steps`` or ``save_every`` is out of range, more steps were made already,
        or a batch had a label that is no class.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} found; expected at least 1.")
    if isinstance(save_every, int):
        if save_every < 0:
            raise ValueError(f"save_every={save_every} found; expected at least 0.")
        every = save_every or num_steps
        due: Callable[[int], bool] = lambda made: made % every == 0  # noqa: E731
    else:
        due = save_every
    if checkpoints is not None:
        state = _restored(checkpoints, state)
    first = int(state.step)
    if first > num_steps:
        raise ValueError(
            f"num_steps={num_steps} found; expected at least the {first} made already."
        )
    # On a CPU every step is waited for: steps dispatched ahead on several virtual devices can
    # deadlock. Elsewhere a few steps run ahead of the host, so that reading metrics costs nothing.
    lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8
    advance = begin(state)
    states = spread_runs(stack([state]), mesh)
    pending: collections.deque[tuple[Any, Any]] = collections.deque()
    curve: list[dict[str, float]] = []

    def finite() -> bool:
        """Reads the oldest pending metrics; tells whether the run is still alive after them."""
        metrics, note = pending.popleft()
        numbers = {name: float(value[0]) for name, value in jax.device_get(metrics).items()}
        curve.append(numbers)
        refuse_labels(numbers, f"the batch of step {first + len(curve)}")
        on_step(first + len(curve), numbers, note)
        return all(math.isfinite(value) for value in numbers.values())

    def end(status: Status) -> Run:
        return Run(status, unstack(states, 0), first, tuple(curve))

    for index in range(first, num_steps):
        states, metrics, note = advance(states, index)
        pending.append((metrics, note))
        made = index + 1
        stopping = made < num_steps and _told_to_stop(stop, made)
        saving = checkpoints is not None and (stopping or made == num_steps or due(made))
        # Before it is saved, a state must have been seen to be finite.
        while len(pending) > (0 if saving or stopping else lag):
            if not finite():
                return end("diverged")
        if saving:
            try:
                _save(checkpoints, made, states)
            except CheckpointError as error:
                if save_failed is None or stopping:
                    raise
                save_failed(error)
        if stopping:
            return end("stopped")
    while pending:
        if not finite():
            return end("diverged")
    return end("finished")


def refuse_labels(metrics: Mapping[str, float], where: str) -> None:
    """Tells labels that are no class from divergence: only they make the accuracy NaN.

    Args:
      metrics: of a step or a test.
      where: what to say they are those of.

    Raises:
      ValueError: if the accuracy is NaN.
    """
    if math.isnan(metrics.get("accuracy", 0.0)):
        raise ValueError(
            f"a label in {where} is no class of the network; expected 0 <= label < num_classes "
            "(was the data set changed after it was checked?)."
        )


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


__all__ = ["Advance", "Run", "Status", "refuse_labels", "run_steps"]
