"""A command's training that goes on after an interruption: its checkpoints lie beside the file."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nf_resnets.trained.file import TrainedError
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.loop import train
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.progress import Progress, refuse_labels
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

    def __init__(self, checkpoints: Checkpoints, exit_code: int) -> None:
        text = "nothing was written."
        if steps := checkpoints.steps():
            text = (
                f"step {steps[-1]:,} is kept in {checkpoints.folder}, and the same command goes on "
                "from there."
            )
        super().__init__(f"Stopped; {text}")
        self.exit_code = exit_code


@contextlib.contextmanager
def unfinished(out: Path, identity: Mapping[str, Any]) -> Iterator[Checkpoints]:
    """The checkpoints of a training, which are removed once the block has ended without an error.

    They lie beside ``out``, the file that the network is to be in. ``identity`` is all that the
    network depends on, as JSON values; the checkpoints of another identity are refused.

    Raises:
      StoppedError: in place of a KeyboardInterrupt.
    """
    checkpoints = Checkpoints(out.with_name(out.name + ENDING), identity)
    try:
        yield checkpoints
        checkpoints.delete()
    except KeyboardInterrupt:
        raise StoppedError(checkpoints, 130) from None
    finally:
        checkpoints.close()


def run_to_end(
    program: Program,
    start: Start | TrainState,
    *,
    on_begin: Callable[[Progress], Any] | None,
    on_step: Callable[[int, dict[str, float]], Any] | None,
    checkpoints: Checkpoints | None,
) -> tuple[TrainState, dict[str, float]]:
    """As :func:`nf_resnets.training.train`, but until all steps are made; then the run is tested.

    With ``checkpoints`` the run is saved and resumed, also by SIGINT and SIGTERM.

    Returns:
      The state after the last step, and what the program's test says of it.

    Raises:
      StoppedError: if a signal came; the run is saved.
      TrainedError: if the run diverges; its checkpoints are removed.
      CheckpointError: if the checkpoints that are there cannot be used, or the run cannot be saved
        when a signal came.
    """
    if checkpoints is None:
        run = train(program, start, on_begin=on_begin, on_step=on_step)
    else:
        if steps := checkpoints.steps():
            _print(
                f"Going on from {checkpoints.folder}, step {steps[-1]:,} of {program.num_steps:,}."
            )
        with Preemption() as stop, warnings.catch_warnings():
            # Damaged checkpoints are reported in a line, and not as a warning of Python's.
            warnings.showwarning = lambda message, *_, **__: _print(str(message))
            run = train(
                program,
                start,
                checkpoints=checkpoints,
                save_every=SECONDS,
                save_failed=lambda error: _print(f"{error} The training goes on without."),
                stop=stop,
                on_begin=on_begin,
                on_step=on_step,
            )
        if run.status == "stopped":
            raise StoppedError(checkpoints, stop.exit_code)
    if run.status == "finished":
        found = program.test(program.put(program.empty(), 0, run.state))
        tested = {name: float(value[0]) for name, value in found.items()}
        refuse_labels(tested, "the test split")
        if math.isfinite(tested.get("loss", 0.0)):
            return run.state, tested
    if checkpoints is not None:
        checkpoints.delete()
    raise TrainedError(
        f"the run diverged at step {run.progress.step} of {program.num_steps}, and no network is "
        f"kept; lower learning_rate={float(start.hyper['learning_rate']):g}."
    )


def _print(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


__all__ = ["ENDING", "SECONDS", "StoppedError", "run_to_end", "unfinished"]
