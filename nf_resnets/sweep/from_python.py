"""A sweep in one call, of networks by name or of any other, with any optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import data, training
from nf_resnets.sweep import engine
from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.grid import make_sweep
from nf_resnets.sweep.overrides import Optimizer, named, overrides_of
from nf_resnets.sweep.rows import Rows
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.display import Display
from nf_resnets.training.preemption import Preemption


def run(
    grid: Mapping[str, Sequence[Any]],
    folder: str | Path,
    *,
    dataset: data.Dataset | str = "digits",
    network: Any = None,
    optimizer: Optimizer = None,
    name: str = "",
    show: bool = True,
    execution: Execution = Execution(),  # noqa: B008 (a frozen value)
    **settings: Any,
) -> list[dict[str, Any]]:
    """Trains every combination of some settings, and returns the rows of the runs.

    Called again with the same folder, it makes only what is missing or has failed. The folder knows
    a run by its settings, the data, and ``name``: give a changed network or optimizer another one.

    Args:
      grid: of each setting its values; see :class:`nf_resnets.sweep.RunSettings`.
      folder: where rows and checkpoints are.
      dataset: what the networks are trained and tested on, or its name.
      network: in place of the settings ``model`` and ``scheme``: a Flax module, or a pair of
        functions ``(init, apply)``, where ``init(key)`` draws the parameters and
        ``apply(params, images)`` gives logits ``[B, classes]`` for normalized images
        ``[B, H, W, C]``.
      optimizer: an optax transformation, or ``optimizer(settings)`` that gives one.
        ``settings["learning_rate"]`` is the schedule of the run's rate, a function of the step.
      name: of network and optimizer.
      show: whether progress is printed.
      execution: how the runs are made; it changes numbers by rounding only.
      **settings: the other settings, where they are not the defaults.

    Returns:
      A row for each run, those of one program together: its settings, ``state``, results, and
      ``history``, a row for each epoch.

    Raises:
      ValueError: if a setting is not in order, or does not fit the network or the data.
      OSError: if the folder cannot be written, or another process writes there.
      training.Stopped: if a signal came; the runs are saved.

    Example:
      >>> import jax, optax, tempfile
      >>> rows = run(
      ...     {"peak_lr": [0.1, 0.2], "seed": [0]}, tempfile.mkdtemp(), steps=22, show=False,
      ...     network=(lambda key: 0.01 * jax.random.normal(key, (64, 10)),
      ...              lambda params, images: images.reshape(len(images), -1) @ params),
      ...     optimizer=lambda settings: optax.adamw(settings["learning_rate"]))
      >>> [(row["peak_lr"], row["state"]) for row in rows]
      [(0.1, 'finished'), (0.2, 'finished')]
    """
    overrides = overrides_of(network, optimizer, settings={**grid, **settings}, name=name)
    settings["dataset"], load = named(dataset)
    follow = {name: value for name, value in overrides.settings.items() if name not in grid}
    sweep = make_sweep(grid, {**follow, **settings}, load=load, overrides=overrides)
    with Rows(Path(folder).expanduser()).open() as rows, Preemption() as stop:
        rows.retry()
        display = Display([plan for plan in sweep.plans if plan.key not in rows])
        callbacks: list[Callback] = [display] if show else []
        with display:
            outcome = engine.make(
                sweep.task, sweep.plans, rows, callback=Callbacks(*callbacks), execution=execution,
                stop=lambda: stop.requested,
            )  # fmt: skip
    if outcome.stopped:
        raise training.Stopped(f"stopped by {stop.signal}; the runs in {folder} are saved")
    return [outcome.rows[plan.key] for plan in sweep.plans]
