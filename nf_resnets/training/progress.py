"""The progress of a run: its steps, its curve, and what a checkpoint holds of it."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from nf_resnets.training import hosts
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.program import Program
from nf_resnets.training.state import TrainState


@dataclasses.dataclass
class Progress:
    """A run in a slot of a program.

    Attributes:
      metrics: the names of the curve's columns.
      num_steps: steps of the whole run.
      step: steps made.
      first_step: the step from which this process resumed the run.
      curve: the metrics of every step, float32 ``[num_steps, M]``, NaN for those to come.
      seconds: the time of the run, in earlier processes too.
      step_seconds: the time of the steps of this process.
      diverged: whether a metric of the last step is not finite.
    """

    metrics: tuple[str, ...]
    num_steps: int
    step: int
    curve: np.ndarray
    seconds: float = 0.0
    first_step: int = 0
    step_seconds: float = 0.0
    diverged: bool = False

    @classmethod
    def begin(cls, program: Program) -> Progress:
        """A run before its first step."""
        shape = program.num_steps, len(program.metrics)
        return cls(program.metrics, program.num_steps, 0, np.full(shape, np.nan, np.float32))

    @classmethod
    def resume(cls, program: Program, step: int, saved: Mapping[str, Any]) -> Progress:
        """A run as a checkpoint holds it."""
        return cls(
            program.metrics,
            program.num_steps,
            step,
            np.array(saved["curve"]),
            seconds=float(saved["seconds"]),
            first_step=step,
        )

    def tree(self, state: Any) -> dict[str, Any]:
        """What a checkpoint holds: the state, the curve so far, the time."""
        return {"state": state, "curve": self.curve.copy(), "seconds": np.float32(self.seconds)}

    def column(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """A metric of the steps made, from one to before another."""
        stop = self.step if stop is None else stop
        return self.curve[start:stop, self.metrics.index(name)]

    def mean(self, name: str, start: int, stop: int | None = None) -> float:
        """The exact mean of a metric over steps, however they were divided into calls."""
        values = self.column(name, start, stop)
        return math.fsum(values.tolist()) / len(values) if len(values) else math.nan

    def row(self, step: int) -> dict[str, float]:
        """The metrics of a step, counted from 0."""
        return dict(zip(self.metrics, self.curve[step].tolist(), strict=True))

    def last(self) -> dict[str, float]:
        """The metrics of the last step."""
        return self.row(self.step - 1)

    def thinned(self, points: int) -> dict[str, list[float]]:
        """The curve with at most that many points, each the mean of as many steps.

        Args:
          points: how many a run that finishes has, at most.

        Returns:
          ``step``, the last of the steps that a point is the mean of, and each metric.
        """
        # By the steps of the whole run, so that the points of runs that diverged are at the same
        # steps as those of the others.
        length = max(1, -(-self.num_steps // points))
        starts = range(0, self.step, length)
        found: dict[str, list[float]] = {
            "step": [min(start + length, self.step) for start in starts]
        }
        for name in self.metrics:
            values = self.column(name).tolist()
            parts = [values[start : start + length] for start in starts]
            found[name] = [sum(part) / len(part) for part in parts]
        return found

    def measures(self, points: int) -> dict[str, Any]:
        """What the ledger keeps of the curve when the run has ended."""
        steps = self.step - self.first_step
        return {
            "first_loss": float(self.column("loss")[0]),
            "last_loss": float(self.column("loss")[-1]),
            "last_grad_norm": float(self.column("grad_norm")[-1]),
            "seconds_per_step": self.step_seconds / steps if steps else math.nan,
            "resumed_at": self.first_step,
            "curve": self.thinned(points),
        }


def checkpoint_like(program: Program) -> dict[str, Any]:
    """Shapes and dtypes of a checkpoint's tree."""
    shape = program.num_steps, len(program.metrics)
    return {
        "state": program.like,
        "curve": jax.ShapeDtypeStruct(shape, np.float32),
        "seconds": jax.ShapeDtypeStruct((), np.float32),
    }


def restore(checkpoints: Checkpoints | None, like: Any) -> tuple[int, Any] | None:
    """A run's newest checkpoint on every process, None if it has none.

    Args:
      checkpoints: of the run; None on all but process 0.
      like: shapes and dtypes of its tree.

    Raises:
      CheckpointError: if there are some, and none can be used.
    """
    found = None
    # Most runs are new: looking for their folder is all that they should cost.
    if checkpoints is not None and hosts.is_process_zero() and os.path.lexists(checkpoints.folder):
        found = checkpoints.restore(like)
    step = hosts.broadcast(None if found is None else found[0])
    tree = hosts.broadcast_tree(None if found is None else found[1], like)
    return None if step is None else (step, tree)


def advance(
    program: Program, states: TrainState, runs: Sequence[Progress | None], counts: Sequence[int]
) -> tuple[TrainState, float]:
    """Makes steps with the runs of a program.

    Args:
      program: of the runs.
      states: of all slots; they are donated.
      runs: the progress of each, None for an empty slot; changed in place.
      counts: the most steps to make, for each slot.

    Returns:
      The states after the steps, and the seconds that they took.

    Raises:
      ValueError: if a batch has a label that is no class.
    """
    start = time.perf_counter()
    found = program.steps(states, np.asarray(counts, np.int32))
    curve, steps, diverged = hosts.gather((dict(found.curve), found.counts, found.diverged))
    elapsed = time.perf_counter() - start
    running = [(slot, run) for slot, run in enumerate(runs) if run is not None]
    for slot, run in running:
        count = int(steps[slot])
        for column, name in enumerate(run.metrics):
            run.curve[run.step : run.step + count, column] = curve[name][slot, :count]
        run.step += count
        run.seconds += elapsed / len(running)
        run.step_seconds += elapsed / len(running)
        run.diverged = bool(diverged[slot])
        if run.diverged:
            refuse_labels(run.last(), f"the batch of step {run.step}")
    return found.states, elapsed


def refuse_labels(metrics: Mapping[str, float], where: str) -> None:
    """Tells labels that are no class from divergence: only they make the accuracy NaN.

    Args:
      metrics: of a step or a test.
      where: the batch or split, for the message.

    Raises:
      ValueError: if the accuracy is NaN.
    """
    if math.isnan(metrics.get("accuracy", 0.0)):
        raise ValueError(
            f"a label in {where} is no class of the network; expected 0 <= label < num_classes "
            "(was the data set changed after it was checked?)."
        )


def steps_for(seconds: float, steps: int, elapsed: float) -> int:
    """How many steps take about ``seconds``, if ``steps`` took ``elapsed``."""
    return max(1, min(int(seconds * steps / max(elapsed, 1e-6)), 1_000_000))


__all__ = [
    "Progress", "advance", "checkpoint_like", "refuse_labels", "restore", "steps_for",
]  # fmt: skip
