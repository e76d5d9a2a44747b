"""Runs logged with Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nf_resnets.machine import needed
from nf_resnets.training.tensorboard import MOST_POINTS, epoch_values, step_values


class WandB:
    """Logs runs with Weights & Biases; a callback and a context manager.

    The names of what is logged are those of :class:`TensorBoard <nf_resnets.sweep.TensorBoard>`,
    the settings are the run's ``config``. Unless the environment's ``WANDB_MODE`` is
    ``online``, runs are kept on this machine, for ``wandb sync FOLDER/wandb/offline-run-*``.

    Args:
      folder: the logs lie in it, in a folder ``wandb``; made where missing.

    Raises:
      ImportError: if wandb is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        self._wandb = needed("wandb", "wandb")
        self._folder = Path(folder).expanduser()
        self._mode = os.environ.get("WANDB_MODE", "offline")
        self._runs: dict[str, tuple[Any, int]] = {}  # of those in slots; every n-th step is logged

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """Begins a run, or resumes it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        run = self._wandb.init(
            dir=str(self._folder), project="nf_resnets", mode=self._mode, id=key[:20], name=label,
            config=dict(settings), resume="allow", reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off"),
        )  # fmt: skip
        self._runs[key] = run, -(-num_steps // MOST_POINTS)

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """Logs those of the new steps that are due."""
        if key in self._runs:
            run, every = self._runs[key]
            for at, values in step_values(step, curve, every):
                run.log(values, step=at)

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """Logs an epoch."""
        if key in self._runs:
            self._runs[key][0].log(epoch_values(row), step=step)

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """Ends a run; its summary says in which state."""
        if key in self._runs:
            run, _ = self._runs.pop(key)
            run.summary["state"] = state
            run.finish(exit_code=int(state in ("diverged", "failed", "oom")))

    def __enter__(self) -> WandB:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._runs):
            self.on_run_end(key, "waiting", {})
