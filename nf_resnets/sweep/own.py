"""A sweep of a network, an optimizer and data of one's own."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
from jax.sharding import Mesh

from nf_resnets import data, training
from nf_resnets.sweep import engine
from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.rows import Rows
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.display import Display
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.run import Plan


@dataclasses.dataclass(frozen=True)
class OwnTask:
    """The runs of :func:`run`; see :class:`nf_resnets.sweep.task.Task`."""

    name: str
    network: Callable[[Any, Any], Any]
    params: Callable[[Any], Any]
    optimizer: Callable[[Mapping[str, Any]], Any]
    dataset: data.Dataset
    how: training.ImageTraining
    fingerprint: str

    probe = None
    finish = None

    def plan(self, point: Mapping[str, Any]) -> Plan:
        """The plan of a run. Runs of one program differ in numbers only."""
        how = self.how
        settings = {
            "network": self.name, "batch_size": how.batch_size, "steps": how.num_steps, **point
        }  # fmt: skip
        texts = {name: x for name, x in settings.items() if not isinstance(x, int | float)}
        return Plan(
            settings,
            label=", ".join(f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
                            for name, value in point.items()),
            num_steps=how.num_steps,
            steps_per_epoch=data.steps_per_epoch(len(self.dataset.train.labels), how.batch_size),
            program=json.dumps(texts, sort_keys=True),
            data=self.fingerprint,
        )  # fmt: skip

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a batch that does not divide over the devices."""
        if plan.settings["batch_size"] % devices_per_run:
            raise ValueError(
                f"batch_size={plan.settings['batch_size']} does not divide over "
                f"devices_per_run={devices_per_run} devices."
            )

    def build(
        self,
        plan: Plan,
        mesh: Mesh,
        *,
        runs_per_device: int = 1,
        vectorize: Literal["auto", "vmap", "loop"] = "auto",
    ) -> training.Program:
        """Compiles the program of a run."""

        def apply(params: Any, batch_stats: Any, images: Any, keys: Any) -> tuple[Any, Any]:
            return self.network(params, images), batch_stats

        return training.image_program(
            apply, self.dataset, self._optimizer(plan), mesh, self.how, self.start(plan),
            runs_per_device=runs_per_device, vectorize=vectorize,
        )  # fmt: skip

    def _optimizer(self, plan: Plan) -> Callable[[Mapping[str, Any]], Any]:
        return lambda hyper: self.optimizer({**plan.settings, **hyper})

    def start(self, plan: Plan) -> Any:
        """The state of a run before its first step."""
        seed = plan.settings.get("seed", 0)
        hyper = {
            name: float(value)
            for name, value in plan.settings.items()
            if isinstance(value, int | float) and name != "seed"
        }
        params = self.params(jax.random.key(seed))
        return training.create_state(params, self._optimizer(plan), hyper, seed=seed)


def run(
    grid: Mapping[str, Sequence[Any]],
    folder: str | Path,
    *,
    network: Callable[[Any, Any], Any],
    params: Callable[[Any], Any],
    optimizer: Callable[[Mapping[str, Any]], Any],
    dataset: data.Dataset,
    steps: int,
    batch_size: int = 64,
    augmentation: data.Augmentation = data.Augmentation(),  # noqa: B008 (a frozen value)
    name: str = "network",
    show: bool = True,
    execution: Execution = Execution(),  # noqa: B008 (a frozen value)
) -> list[dict[str, Any]]:
    """Trains every combination of some settings, and returns the rows of the runs.

    Called again with the same folder, it makes only what is missing. The folder knows a run by its
    settings, the data, and ``name``: give a changed network another one.

    Args:
      grid: of each setting its values, numbers or texts. ``seed`` decides parameters, order and
        augmentation.
      folder: where rows and checkpoints are.
      network: ``network(params, images)`` gives logits ``[B, classes]`` for normalised images
        ``[B, H, W, C]``.
      params: ``params(key)`` draws the parameters.
      optimizer: ``optimizer(settings)`` gives an optax transformation for the settings of a run.
      dataset: what the network is trained and tested on.
      steps: of each run.
      batch_size: examples in a step.
      augmentation: what is done to the training images.
      name: of the network.
      show: whether progress is printed.
      execution: how the runs are made; no number depends on it.

    Returns:
      A row for each run, in the order of the grid: its settings, ``state``, ``test_accuracy``,
      ``test_loss``, ``train_loss``, ..., and ``history``, a row for each epoch.

    Raises:
      ValueError: if batch and data do not fit.
      OSError: if the folder cannot be written, or another process writes there.
      training.Stopped: if a signal came; the runs are saved.

    Example:
      >>> import jax.numpy as jnp, optax, tempfile
      >>> rows = run(
      ...     {"learning_rate": [0.1, 0.2], "seed": [0]}, tempfile.mkdtemp(),
      ...     network=lambda params, images: images.reshape(len(images), -1) @ params,
      ...     params=lambda key: 0.01 * jax.random.normal(key, (64, 10)),
      ...     optimizer=lambda settings: optax.adamw(settings["learning_rate"]),
      ...     dataset=data.load("digits"), steps=22, show=False)
      >>> [(row["learning_rate"], row["state"]) for row in rows]
      [(0.1, 'finished'), (0.2, 'finished')]
    """
    how = training.ImageTraining(batch_size, steps, augmentation)
    task = OwnTask(name, network, params, optimizer, dataset, how, data.fingerprint(dataset))
    points = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    plans = [task.plan(point) for point in points]
    callbacks: list[Callback] = []
    with Rows(Path(folder)).open() as rows, Preemption() as stop:
        display = Display([plan for plan in plans if plan.key not in rows])
        callbacks += [display] if show else []
        with display:
            outcome = engine.make(
                task, plans, rows, callback=Callbacks(*callbacks), execution=execution,
                stop=lambda: stop.requested,
            )  # fmt: skip
    if outcome.stopped:
        raise training.Stopped(f"stopped by {stop.signal}; the runs in {folder} are saved")
    return [outcome.rows[plan.key] for plan in plans]


__all__ = ["OwnTask", "run"]
