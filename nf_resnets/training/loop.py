"""The loop over steps of one run: feeds the order, watches for divergence, keeps the curve."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from nf_resnets.data.batch import DeviceData
from nf_resnets.data.order import epoch_order, steps_per_epoch
from nf_resnets.training.place import spread_runs
from nf_resnets.training.state import TrainState
from nf_resnets.training.step import StepFn, stack, unstack


@dataclasses.dataclass(frozen=True)
class Run:
    """What came of a run.

    Attributes:
      status: ``"finished"``, or ``"diverged"`` if loss or gradient norm stopped being finite.
      state: the state after the last step; of a diverged run it is of no use.
      curve: ``loss``, ``accuracy`` and ``grad_norm`` of every step's batch, in order; of a diverged
        run the last entry is that of the step that diverged.
    """

    status: Literal["finished", "diverged"]
    state: TrainState
    curve: tuple[dict[str, float], ...]


def train(
    step: StepFn,
    state: TrainState,
    data: DeviceData,
    mesh: Mesh,
    *,
    num_steps: int,
    batch_size: int,
    on_step: Callable[[int, dict[str, float]], Any] | None = None,
) -> Run:
    """Trains one run until it has made ``num_steps`` steps, or has diverged.

    Args:
      step: the compiled step (:func:`nf_resnets.training.make_train_step`).
      state: where the run stands; a state that has made ``t`` steps goes on with step ``t``.
      data: the training split on the mesh (:func:`nf_resnets.training.replicate`).
      mesh: the mesh that ``step`` was compiled for.
      num_steps: steps of the whole run.
      batch_size: the one that ``step`` was compiled for.
      on_step: called after each step with the number of steps made and the step's metrics.

    Returns:
      The :class:`Run`.

    Raises:
      ValueError: if ``num_steps`` is below 1 or the batch does not fit the split.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps={num_steps} found; expected at least 1.")
    count = data.labels.shape[0]
    per_epoch = steps_per_epoch(count, batch_size)
    # On a CPU every step is waited for: steps dispatched ahead on several virtual devices can
    # deadlock. Elsewhere a few steps run ahead of the host, so that reading metrics costs nothing.
    lag = 0 if mesh.devices.flat[0].platform == "cpu" else 8

    seed = int(state.seed)
    first = int(state.step)
    states = spread_runs(stack([state]), mesh)
    pending: collections.deque[Any] = collections.deque()
    curve: list[dict[str, float]] = []
    orders: tuple[int, Any] = (-1, None)

    def diverged() -> bool:
        """Reads the oldest pending metrics; tells whether they say that the run has diverged."""
        metrics = {
            name: float(value[0]) for name, value in jax.device_get(pending.popleft()).items()
        }
        curve.append(metrics)
        if on_step is not None:
            on_step(first + len(curve), metrics)
        return not (math.isfinite(metrics["loss"]) and math.isfinite(metrics["grad_norm"]))

    for index in range(first, num_steps):
        epoch = index // per_epoch
        if orders[0] != epoch:
            orders = (epoch, spread_runs(epoch_order(seed, epoch, count)[None], mesh))
        states, metrics = step(states, data, orders[1])
        pending.append(metrics)
        if len(pending) > lag and diverged():
            return Run("diverged", unstack(states, 0), tuple(curve))
    while pending:
        if diverged():
            return Run("diverged", unstack(states, 0), tuple(curve))
    return Run("finished", unstack(states, 0), tuple(curve))


__all__ = ["Run", "train"]
