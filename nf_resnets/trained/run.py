"""One training, as a wave of one run; its checkpoints lie beside the file that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nf_resnets.places import held
from nf_resnets.trained.file import TrainedError
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.program import Program, Start
from nf_resnets.training.run import Plan
from nf_resnets.training.state import TrainState
from nf_resnets.training.wave import Hooks, Stopped, train


class StoppedError(TrainedError):
    """A training that a signal stopped; ``exit_code`` is that of a process so ended."""

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
    """The callbacks of a training, and where it is saved and resumed, if at all."""

    callbacks: tuple[Callback, ...] = ()
    checkpoints: Checkpoints | None = None


@contextlib.contextmanager
def unfinished(out: Path) -> Iterator[Checkpoints]:
    """Checkpoints beside the file ``out``, which are removed when the block ends without an error.

    Raises:
      TrainedError: if another process is training for this file.
      StoppedError: in place of a KeyboardInterrupt.
    """
    checkpoints = Checkpoints(out.with_name(f"{out.name}.unfinished"))
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
    finish: Callable[[Program, Plan, Any], Mapping[str, Any]] | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Trains one run to its end; returns the state after the last step, and the run's row.

    With checkpoints it is saved and resumed, also by a signal. ``finish(program, plan, state)``
    gives more measures of the finished run.

    Raises:
      StoppedError: if a signal came; the run is saved.
      TrainedError: if the run diverges; its checkpoints are removed.
    """
    rows: list[dict[str, Any]] = []

    def record(new: Any) -> Any:
        rows.extend(new)
        return new

    stop, saved = Preemption(), watch.checkpoints
    callback = Callbacks(*watch.callbacks, say=lambda text: print(f"  {text}", file=sys.stderr))
    hooks = Hooks(callback, record, stop=lambda: stop.requested, finish=finish)
    with contextlib.nullcontext() if saved is None else stop:
        try:
            (run,) = train(
                program, [start], [plan], checkpoints=saved, hooks=hooks, keep_states=True
            )
        except Stopped:
            assert saved is not None
            raise StoppedError(saved, stop.exit_code) from None
    if run.diverged:
        if saved is not None:
            saved.delete()
        raise TrainedError(
            f"the run diverged ({run.diverged} of {program.num_steps}), and no network is kept; "
            f"lower the learning rate, {float(start.hyper['learning_rate']):g}."
        )
    return run.state, rows[-1]
