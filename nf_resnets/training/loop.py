"""Training one run of a program, without a ledger: it resumes, saves, stops, sees divergence."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any, Literal

from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.progress import Progress, advance, checkpoint_like, restore, steps_for
from nf_resnets.training.state import TrainState

CALL_SECONDS = 1.0
"""About so long are the calls between which a signal is noticed."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
      status: ``"finished"``; ``"diverged"`` if a metric (loss, gradient, update) is not finite;
        ``"stopped"`` if the process was told to stop, after the state was saved.
      state: the state after the last step, as NumPy arrays; of a diverged run it is of no use.
      progress: its steps and their metrics, those of earlier processes included.
    """

    status: Literal["finished", "diverged", "stopped"]
    state: TrainState
    progress: Progress

    @property
    def curve(self) -> tuple[dict[str, float], ...]:
        """The metrics of every step that this process made."""
        rows = self.progress.curve[self.progress.first_step : self.progress.step].tolist()
        return tuple(dict(zip(self.progress.metrics, row, strict=True)) for row in rows)


def train(
    program: Program,
    start: Start | TrainState,
    *,
    checkpoints: Checkpoints | None = None,
    save_every: int | float = 0,
    save_failed: Callable[[CheckpointError], Any] | None = None,
    stop: Preemption | None = None,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made the program's steps, or has to end.

    Order and augmentation follow from the seed and the number of steps made: a run that was killed
    and is started again with the same checkpoints ends with the parameters of one that was not.

    Args:
      program: with one slot.
      start: how the run begins, or the state with which it does, unless there is a checkpoint.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They stay when the run is finished.
      save_every: steps (int) or seconds (float) between two checkpoints; 0 to save at the end, or
        when told to stop, only.
      save_failed: called if a checkpoint cannot be saved, and the run goes on; by default, and when
        told to stop, that is an error.
      stop: when a signal has come, the run is saved and ends.
      on_step: called for each step with the number of steps made and the step's metrics.

    Raises:
      ValueError: if the program has several slots, ``save_every`` is negative, or a label in a
        batch is no class.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.

    Example:
      >>> from nf_resnets import data, models, optim, schemes, training
      >>> model = models.WideResNet(depth=10, scheme="fixup", stem_channels=2)
      >>> begin = training.Start(schemes.get("fixup"), seed=0, hyper={"learning_rate": 0.1})
      >>> program = training.image_program(
      ...     model, data.load("digits"),
      ...     lambda hyper: optim.sgd(hyper["learning_rate"], scheme="fixup"),
      ...     training.make_mesh(devices=jax.devices()[:1]),
      ...     training.ImageTraining(batch_size=64, num_steps=2), begin)
      >>> run = train(program, begin)
      >>> run.status, len(run.curve)
      ('finished', 2)
    """
    if program.slots != 1:
        raise ValueError(f"a program of {program.slots} slots found; expected one of 1.")
    if save_every < 0:
        raise ValueError(f"save_every={save_every} found; expected at least 0.")
    found = None if checkpoints is None else restore(checkpoints, checkpoint_like(program))
    run = Progress.begin(program) if found is None else Progress.resume(program, *found)
    states = program.empty()
    if found is not None:
        states = program.put(states, 0, found[1]["state"])
    elif isinstance(start, Start):
        states = program.begin(states, 0, start)
    else:
        states = program.put(states, 0, start)
        run.step = run.first_step = int(start.step)
    saver = _Saver(checkpoints, save_every, save_failed)
    chunk, status = 1, "finished"
    while run.step < run.num_steps:
        before = run.step
        count = min(chunk, run.num_steps - run.step, saver.steps_left(run.step))
        states, elapsed = advance(program, states, [run], [count])
        chunk = hosts.broadcast(steps_for(CALL_SECONDS, run.step - before, elapsed))
        if on_step is not None:
            for made in range(before, run.step):
                on_step(made + 1, dict(zip(run.metrics, run.curve[made].tolist(), strict=True)))
        if run.diverged:
            status = "diverged"
            break
        over = run.step == run.num_steps
        stopping = not over and hosts.any_process(stop is not None and stop.requested)
        if checkpoints is not None and (over or stopping or saver.is_due(run.step)):
            saver.save(run, program.take(states, 0), must=stopping)
        if stopping:
            status = "stopped"
            break
    return Run(status, program.take(states, 0), run)  # type: ignore[arg-type]


class _Saver:
    """When a run is saved, and how."""

    def __init__(self, checkpoints: Any, every: int | float, failed: Any) -> None:
        self._checkpoints, self._failed = checkpoints, failed
        self._steps = every if isinstance(every, int) and every else None
        self._seconds = every if isinstance(every, float) and every else None
        self._last = time.monotonic()

    def steps_left(self, step: int) -> int:
        """Steps until the next checkpoint that is due by steps."""
        return self._steps - step % self._steps if self._steps else 2**31 - 1

    def is_due(self, step: int) -> bool:
        if self._steps is not None:
            return step % self._steps == 0
        late = self._seconds is not None and time.monotonic() - self._last >= self._seconds
        return bool(hosts.broadcast(late)) if self._seconds is not None else False

    def save(self, run: Progress, state: Any, *, must: bool) -> None:
        try:
            if hosts.is_process_zero():
                self._checkpoints.save(run.step, run.tree(state))
        except CheckpointError as error:
            if self._failed is None or must:
                raise
            self._failed(error)
        self._last = time.monotonic()


__all__ = ["CALL_SECONDS", "Run", "train"]
