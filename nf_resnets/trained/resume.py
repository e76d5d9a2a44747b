"""A command's training that goes on where it was cut off: its checkpoints lie beside the file."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from nf_resnets.trained.file import TrainedError
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.loop import Run, train
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.state import TrainState

ENDING = ".unfinished"
"""Of the folder's name, after the whole name of the file that the network is to be in."""

SECONDS = 60.0
"""Between two checkpoints: what a process that is killed without a signal loses, at most."""


class StoppedError(TrainedError):
    """A training that was told to stop; the sentence says how to go on.

    Attributes:
      exit_code: what a shell expects of a process so ended.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Unfinished:
    """The checkpoints of one training, in a folder beside the file that it is to end in.

    Left without an exception, the network is in its file, and the folder is removed.

    Args:
      out: the file.
      identity: all that the network depends on, as JSON values; the checkpoints of another
        identity are refused.
    """

    def __init__(self, out: Path, identity: Mapping[str, Any]) -> None:
        self.checkpoints = Checkpoints(out.with_name(out.name + ENDING), identity)

    def __enter__(self) -> Unfinished:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.checkpoints.delete()
        self.checkpoints.close()
        if isinstance(error, KeyboardInterrupt):
            raise self.stopped(130) from None

    def stopped(self, exit_code: int) -> StoppedError:
        """What to say of a training that ends here."""
        steps = self.checkpoints.steps()
        if not steps:
            return StoppedError("Stopped; nothing was written.", exit_code)
        return StoppedError(
            f"Stopped; step {steps[-1]:,} is kept in {self.checkpoints.folder}, and the same "
            "command goes on from there.",
            exit_code,
        )


def run_to_end(
    program: Program,
    start: Start | TrainState,
    *,
    learning_rate: float,
    on_step: Callable[[int, dict[str, float]], Any] | None,
    unfinished: Unfinished | None,
) -> Run:
    """As :func:`nf_resnets.training.train`, but until all steps are made.

    Args:
      program: with one slot.
      start: how the run begins, or the state with which it does.
      learning_rate: what to lower if the run diverges.
      on_step: called for each step with the number of steps made and its metrics.
      unfinished: where the run is saved and resumed, also by SIGINT and SIGTERM; None for neither.

    Raises:
      StoppedError: if a signal came; the run is saved.
      TrainedError: if the run diverges; its checkpoints are removed.
      CheckpointError: if the checkpoints that are there cannot be used, or the run cannot be saved
        when a signal came.
    """
    if unfinished is None:
        run, exit_code = train(program, start, on_step=on_step), 0
    else:
        checkpoints = unfinished.checkpoints
        if steps := checkpoints.steps():
            _say(
                f"Going on from {checkpoints.folder}, step {steps[-1]:,} of {program.num_steps:,}."
            )
        with Preemption() as stop, warnings.catch_warnings():
            # Damaged checkpoints that were passed over: a line, and not a warning of Python's.
            warnings.showwarning = lambda message, *_, **__: _say(str(message))
            run = train(
                program,
                start,
                checkpoints=checkpoints,
                save_every=SECONDS,
                save_failed=_say_failure,
                stop=stop,
                on_step=on_step,
            )
        exit_code = stop.exit_code
    if run.status == "stopped" and unfinished is not None:
        raise unfinished.stopped(exit_code)
    if run.status != "finished":
        where = f"at step {run.progress.step} of {program.num_steps}"
        raise diverged(where, learning_rate, unfinished)
    return run


def diverged(where: str, learning_rate: float, unfinished: Unfinished | None) -> TrainedError:
    """What to say of a run that diverged; its checkpoints, which help nobody, are removed."""
    if unfinished is not None:
        unfinished.checkpoints.delete()
    return TrainedError(
        f"the run diverged {where}, and no network is kept; lower learning_rate={learning_rate:g}."
    )


def digest(*arrays: Any) -> str:
    """The SHA-256 of arrays, texts or bytes, for an identity."""
    found = hashlib.sha256()
    for each in arrays:
        found.update(each.encode() if isinstance(each, str) else np.asarray(each).tobytes())
    return found.hexdigest()


def _say(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def _say_failure(error: CheckpointError) -> None:
    _say(f"{error} The training goes on without.")


__all__ = ["ENDING", "SECONDS", "StoppedError", "Unfinished", "digest", "diverged", "run_to_end"]
