"""Training one run of a program, without a ledger."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.progress import Progress, advance, checkpoint_like, restore, steps_for
from nf_resnets.training.state import TrainState

CALL_SECONDS = 1.0
"""How long a call of the program takes, about; a signal is noticed between two calls."""


@dataclasses.dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
      status: ``"finished"``; ``"diverged"`` if a metric (loss, gradient, update) is not finite;
        ``"stopped"`` if the process was told to stop, after the state was saved.
      state: the state after the last step, as NumPy arrays; meaningless if the run diverged.
      progress: its steps and their metrics, those of earlier processes included.
    """

    status: Literal["finished", "diverged", "stopped"]
    state: TrainState
    progress: Progress

    @property
    def curve(self) -> tuple[dict[str, float], ...]:
        """The metrics of every step that this process made."""
        return tuple(self.progress.row(step) for step in range(self.first_step, self.progress.step))

    @property
    def first_step(self) -> int:
        """The step from which this process resumed the run; 0 for a run made in one go."""
        return self.progress.first_step


def train(
    program: Program,
    start: Start | TrainState,
    *,
    checkpoints: Checkpoints | None = None,
    save_every: int | float = 0,
    save_failed: Callable[[CheckpointError], Any] | None = None,
    stop: Preemption | None = None,
    on_begin: Callable[[Progress], Any] | None = None,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made the program's steps, diverges, or is told to stop.

    Order and augmentation follow from the seed and the step: a run that is killed and started again
    with the same checkpoints ends with the parameters of one that was not.

    Args:
      program: with one slot.
      start: how the run begins, or the state with which it does, unless there is a checkpoint.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They are kept when the run is finished.
      save_every: steps (int) or seconds (float) between two checkpoints; 0 to save only at the end
        and when told to stop.
      save_failed: called if a checkpoint cannot be saved, and the run continues. Without it, and
        when told to stop, that is an error.
      stop: after a signal, the run is saved and ends.
      on_begin: called before the first step with the run's progress, which has the curve of the
        steps that earlier processes made.
      on_step: called for each step with the number of steps made and the step's metrics.

    Raises:
      ValueError: if the program has several slots, ``save_every`` is negative, the state has more
        steps than the program, or a label in a batch is no class.
      TypeError: if ``program`` is no program.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from nf_resnets import data, optim, training
      >>> def apply(params, batch_stats, images, keys):
      ...     return images.reshape(len(images), -1) @ params["head"]["kernel"], batch_stats
      >>> def optimizer(hyper):
      ...     return optim.sgd(hyper["learning_rate"])
      >>> state = training.create_state(
      ...     {"head": {"kernel": jnp.zeros((64, 10))}}, optimizer, {"learning_rate": 0.1})
      >>> program = training.image_program(
      ...     apply, data.load("digits"), optimizer, training.make_mesh(devices=jax.devices()[:1]),
      ...     training.ImageTraining(batch_size=64, num_steps=2), state)
      >>> run = train(program, state)
      >>> run.status, len(run.curve)
      ('finished', 2)
    """
    if not isinstance(program, Program):
        raise TypeError(
            f"program is a {type(program).__name__}; expected a training.Program, such as "
            "training.image_program makes."
        )
    if program.slots != 1:
        raise ValueError(f"a program of {program.slots} slots found; expected one of 1.")
    if not save_every >= 0:
        raise ValueError(f"save_every={save_every} found; expected at least 0.")
    states, run = _begin(program, start, checkpoints)
    if on_begin is not None:
        on_begin(run)
    saver = _Saver(checkpoints, save_every, save_failed)
    count, status = 1, "finished"
    while run.step < run.num_steps and status == "finished":
        before = run.step
        count = min(count, run.num_steps - before, saver.steps_left(before))
        states, elapsed = advance(program, states, [run], [count])
        count = hosts.broadcast(steps_for(CALL_SECONDS, run.step - before, elapsed))
        if on_step is not None:
            for step in range(before, run.step):
                on_step(step + 1, run.row(step))
        ended = run.step == run.num_steps
        if run.diverged:
            status = "diverged"
        elif not ended and hosts.any_process(stop is not None and stop.requested):
            status = "stopped"
        if status == "stopped" or (status == "finished" and (ended or saver.is_due(run.step))):
            saver.save(run, program.take(states, 0), must=status == "stopped")
    return Run(status, program.take(states, 0), run)  # type: ignore[arg-type]


def _begin(
    program: Program, start: Start | TrainState, checkpoints: Checkpoints | None
) -> tuple[TrainState, Progress]:
    """The run's state in the slot and how far it is, from a checkpoint if there is one."""
    found = None if checkpoints is None else restore(checkpoints, checkpoint_like(program))
    if found is not None:
        states = program.put(program.empty(), 0, found[1]["state"])
        return states, Progress.resume(program, *found)
    run = Progress.begin(program)
    if isinstance(start, TrainState):
        run.step = run.first_step = int(start.step)
        if run.step > run.num_steps:
            raise ValueError(
                f"num_steps={run.num_steps} found; expected at least the {run.step} made."
            )
    return program.begin(program.empty(), 0, start), run


class _Saver:
    """Decides when a run is saved, and saves it."""

    def __init__(self, checkpoints: Any, every: int | float, failed: Any) -> None:
        self._checkpoints, self._failed = checkpoints, failed
        whole = isinstance(every, int | np.integer)
        self._steps, self._seconds = (int(every), 0.0) if whole else (0, float(every))
        self._last = time.monotonic()

    def steps_left(self, step: int) -> int:
        """Steps until the next checkpoint that is due by steps."""
        return self._steps - step % self._steps if self._steps else 2**31 - 1

    def is_due(self, step: int) -> bool:
        if self._seconds:
            return bool(hosts.broadcast(time.monotonic() - self._last >= self._seconds))
        return bool(self._steps) and step % self._steps == 0

    def save(self, run: Progress, state: Any, *, must: bool) -> None:
        if self._checkpoints is None:
            return
        try:
            if hosts.is_process_zero():
                self._checkpoints.save(run.step, run.tree(state))
        except CheckpointError as error:
            if self._failed is None or must:
                raise
            self._failed(error)
        self._last = time.monotonic()


__all__ = ["CALL_SECONDS", "Run", "train"]
