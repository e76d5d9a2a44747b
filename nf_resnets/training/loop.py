"""Training one run on data in the device's memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax.sharding import Mesh

from nf_resnets.data.batch import DeviceData
from nf_resnets.data.order import epoch_order, steps_per_epoch
from nf_resnets.training.checkpoint import CheckpointError, Checkpoints
from nf_resnets.training.place import spread_runs
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.run import Advance, Run, run_steps
from nf_resnets.training.state import TrainState
from nf_resnets.training.step import StepFn


def train(
    step: StepFn,
    state: TrainState,
    data: DeviceData,
    mesh: Mesh,
    *,
    num_steps: int,
    batch_size: int,
    checkpoints: Checkpoints | None = None,
    save_every: int | Callable[[int], bool] = 0,
    save_failed: Callable[[CheckpointError], Any] | None = None,
    stop: Preemption | None = None,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made ``num_steps`` steps, or has to end.

    Order and augmentation follow from the seed and the number of steps made: a run that was killed
    and is started again with the same checkpoints ends with the parameters of one that was not.

    Args:
      step: the compiled step (:func:`nf_resnets.training.make_train_step`).
      state: where the run begins, unless there is a checkpoint; a state that has made ``t`` steps
        goes on with step ``t``.
      data: the training split on the mesh (:func:`nf_resnets.training.replicate`).
      mesh: the mesh that ``step`` was compiled for.
      num_steps: steps of the whole run.
      batch_size: the one that ``step`` was compiled for.
      checkpoints: where the run is saved and resumed; None for neither. Their identity has to hold
        all that the numbers depend on. They stay when the run is finished.
      save_every: steps between two checkpoints; 0 to save at the end, or when told to stop, only.
        A function says after which number of steps one is due.
      save_failed: called if a checkpoint cannot be saved, and the run goes on; by default, and when
        told to stop, that is an error.
      stop: when a signal has come, the run is saved and ends.
      on_step: called after each step with the number of steps made and the step's metrics.

    Returns:
      The :class:`Run`.

    Raises:
      ValueError: if ``num_steps`` or ``save_every`` is out of range, more steps were made already,
        the batch does not fit the split, or a label in it is no class.
      CheckpointError: if there are checkpoints and none can be used, or one cannot be saved.
    """
    count = data.labels.shape[0]
    per_epoch = steps_per_epoch(count, batch_size)

    def begin(state: TrainState) -> Advance:
        seed = int(state.seed)
        orders: tuple[int, Any] = (-1, None)

        def advance(states: TrainState, index: int) -> Any:
            nonlocal orders
            epoch = index // per_epoch
            if orders[0] != epoch:
                orders = (epoch, spread_runs(epoch_order(seed, epoch, count)[None], mesh))
            return *step(states, data, orders[1]), None

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
