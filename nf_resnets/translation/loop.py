"""The loop over steps of one run: makes the batches, watches for divergence, keeps the curve."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from nf_resnets import training
from nf_resnets.training.state import TrainState
from nf_resnets.translation.batches import Corpus, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.step import StepFn


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
      status: ``"finished"``, or ``"diverged"`` if loss or gradient norm stopped being finite.
      state: the state after the last step; of a diverged run it is of no use.
      curve: the metrics of every step's batch, in order; of a diverged run the last entry is that
        of the step that diverged.
    """

    status: Literal["finished", "diverged"]
    state: TrainState
    curve: tuple[dict[str, float], ...]


def train(
    step: StepFn,
    state: TrainState,
    corpus: Corpus,
    mesh: Mesh,
    *,
    num_steps: int,
    max_tokens: int,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made ``num_steps`` steps, or has diverged.

    Args:
      step: the compiled step (:func:`nf_resnets.translation.make_train_step`).
      state: where the run stands; a state that has made ``t`` steps goes on with step ``t``.
      corpus: the training split.
      mesh: the mesh that ``step`` was compiled for.
      num_steps: steps of the whole run.
      max_tokens: of a batch; see :func:`batch_shapes`.
      on_step: called after each step with the number of steps made and the step's metrics.

    Raises:
      ValueError: if ``num_steps`` or ``max_tokens`` is below 1.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} found; expected at least 1.")
    shapes = batch_shapes(corpus, max_tokens=max_tokens, devices=mesh.shape[training.DATA])
    # On a CPU every step is waited for: steps dispatched ahead on several virtual devices can
    # deadlock. Elsewhere a few run ahead of the host, which makes the next batches meanwhile.
    lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8

    seed, first = int(state.seed), int(state.step)
    states = training.spread_runs(training.stack([state]), mesh)
    pending: collections.deque[Any] = collections.deque()
    curve: list[dict[str, float]] = []

    def diverged() -> bool:
        """Reads the oldest pending metrics; tells whether they say that the run has diverged."""
        metrics = {
            name: float(value[0]) for name, value in jax.device_get(pending.popleft()).items()
        }
        curve.append(metrics)
        if on_step is not None:
            on_step(first + len(curve), metrics)
        return not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]))

    places = epoch_batches(corpus, seed, 0, shapes)
    per_epoch, epoch = len(places), 0
    for index in range(first, num_steps):
        if index // per_epoch != epoch:
            epoch = index // per_epoch
            places = epoch_batches(corpus, seed, epoch, shapes)
        states, metrics = step(states, batch_of(corpus, places[index % per_epoch]))
        pending.append(metrics)
        if len(pending) > lag and diverged():
            return Run("diverged", training.unstack(states, 0), tuple(curve))
    while pending:
        if diverged():
            return Run("diverged", training.unstack(states, 0), tuple(curve))
    return Run("finished", training.unstack(states, 0), tuple(curve))


__all__ = ["Run", "train"]
