"""Training one run on sentence pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from nf_resnets import training
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.run import Advance, Run, run_steps
from nf_resnets.training.state import TrainState
from nf_resnets.translation.batches import Corpus, batch_of, batch_shapes, epoch_batches
from nf_resnets.translation.step import StepFn


def train(
    step: StepFn,
    state: TrainState,
    corpus: Corpus,
    mesh: Mesh,
    *,
    num_steps: int,
    max_tokens: int,
    checkpoints: Checkpoints | None = None,
    save_every: int | Callable[[int], bool] = 0,
    save_failed: Callable[[CheckpointError], Any] | None = None,
    stop: Preemption | None = None,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made ``num_steps`` steps, or has to end.

    Args:
      step: the compiled step (:func:`nf_resnets.translation.make_train_step`).
      state: where the run begins, unless there is a checkpoint; a state that has made ``t`` steps
        goes on with step ``t``.
      corpus: the training split.
      mesh: the mesh that ``step`` was compiled for.
      num_steps: steps of the whole run.
      max_tokens: of a batch; see :func:`batch_shapes`.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They stay when the run is finished.
      save_every: steps between two checkpoints; 0 to save at the end, or when told to stop, only.
        A function says after which number of steps one is due.
      save_failed: called if a checkpoint cannot be saved, and the run goes on; by default, and when
        told to stop, that is an error.
      stop: when a signal has come, the run is saved and ends.
      on_step: called after each step with the number of steps made and the step's metrics.

    Raises:
      ValueError: if a number is out of its range, or more steps were made already.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.
    """
    shapes = batch_shapes(corpus, max_tokens=max_tokens, devices=mesh.shape[training.DATA])

    def begin(state: TrainState) -> Advance:
        seed = int(state.seed)
        places = epoch_batches(corpus, seed, 0, shapes)
        per_epoch, epoch = len(places), 0

        def advance(states: TrainState, index: int) -> Any:
            nonlocal places, epoch
            if index // per_epoch != epoch:
                epoch = index // per_epoch
                places = epoch_batches(corpus, seed, epoch, shapes)
            return *step(states, batch_of(corpus, places[index % per_epoch])), None

        return advance

    def told(made: int, metrics: dict[str, float], _: Any) -> None:
        if on_step is not None:
            on_step(made, metrics)

    return run_steps(
        begin,
        state,
        mesh,
        num_steps=num_steps,
        on_step=told,
        checkpoints=checkpoints,
        save_every=save_every,
        save_failed=save_failed,
        stop=stop,
    )


__all__ = ["train"]
