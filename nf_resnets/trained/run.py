"""One training, as a wave of one run; its checkpoints lie beside the file that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nf_resnets.trained.file import TrainedError
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.checkpoint import Checkpoints, held
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan
from nf_resnets.training.state import TrainState
from nf_resnets.training.wave import Hooks, Stopped, train

ENDING = ".unfinished"
"""Of the folder's name, after the whole name of the file that the network is to be in."""


class StoppedError(TrainedError):
    """A training that was told to stop; the sentence says how to go on.

    Attributes:
      exit_code: what a shell expects of a process so ended.
    """

    def __init__(self, checkpoints: Checkpoints, exit_code: int) -> None:
        text = "nothing was written."
        if steps := checkpoints.steps():
            text = (
                f"step {steps[-1]:,} is kept in {checkpoints.folder}, and the same command goes on "
                "from there."
            )
        super().__init__(f"Stopped; {text}")
        self.exit_code = exit_code


@dataclasses.dataclass(frozen=True)
class Watch:
    """Who is told of a training, and where it is saved.

    Attributes:
      callbacks: receive its events.
      checkpoints: where it is saved and resumed; None for neither.
    """

    callbacks: tuple[Callback, ...] = ()
    checkpoints: Checkpoints | None = None


@contextlib.contextmanager
def unfinished(out: Path) -> Iterator[Checkpoints]:
    """The checkpoints of a training, which are removed once the block has ended without an error.

    They lie beside ``out``, the file that the network is to be in.

    Raises:
      TrainedError: if another process is training for this file.
      StoppedError: in place of a KeyboardInterrupt.
    """
    checkpoints = Checkpoints(out.with_name(out.name + ENDING))
    checkpoints.folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(checkpoints.folder / "lock"))
        except BlockingIOError:
            raise TrainedError(
                f"another process is training for {out}; wait for it, or choose another file with "
                "--out."
            ) from None
        try:
            yield checkpoints
        except KeyboardInterrupt:
            raise StoppedError(checkpoints, 130) from None
        finally:
            if not checkpoints.steps():
                checkpoints.delete()
        checkpoints.delete()


def train_one(
    program: Program,
    start: Start | TrainState,
    plan: Plan,
    watch: Watch,
    *,
    finish: Callable[[Any], Mapping[str, Any]] | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Trains one run to its end; with checkpoints it is saved and resumed, also by a signal.

    Args:
      program: with one slot.
      start: how the run begins.
      plan: what the run is.
      watch: who is told.
      finish: ``finish(state)`` gives more measures of the finished run.

    Returns:
      The state after the last step, and the run's row.

    Raises:
      StoppedError: if a signal came; the run is saved.
      TrainedError: if the run diverges; its checkpoints are removed.
      OSError: if the run cannot be saved when a signal came.
    """
    rows: list[dict[str, Any]] = []

    def record(new: Any) -> Any:
        rows.extend(new)
        return new

    def say(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)

    callback = Callbacks(*watch.callbacks, say=say)
    with contextlib.ExitStack() as stack:
        stop = Preemption()
        if watch.checkpoints is not None:
            stack.enter_context(stop)
            stack.enter_context(warnings.catch_warnings())
            # Damaged checkpoints are reported in a line, and not as a warning of Python's.
            warnings.showwarning = lambda message, *_, **__: say(str(message))
        hooks = Hooks(
            callback, record, stop=lambda: stop.requested,
            finish=None if finish is None else lambda program, plan, state: finish(state),
        )  # fmt: skip
        try:
            (run,) = train(
                program, [start], [plan],
                checkpoints=watch.checkpoints, hooks=hooks, keep_states=True,
            )  # fmt: skip
        except Stopped:
            assert watch.checkpoints is not None
            raise StoppedError(watch.checkpoints, stop.exit_code) from None
    if run.diverged:
        if watch.checkpoints is not None:
            watch.checkpoints.delete()
        raise TrainedError(
            f"the run diverged ({run.diverged} of {program.num_steps}), and no network is kept; "
            f"lower the learning rate, {float(start.hyper['learning_rate']):g}."
        )
    return run.state, rows[-1]


__all__ = ["ENDING", "StoppedError", "Watch", "train_one", "unfinished"]
