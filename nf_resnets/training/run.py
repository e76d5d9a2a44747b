"""A run: what it is to be (a plan), and how far it has come."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run's settings and data, and what follows from them before anything is compiled.

    Attributes:
      settings: JSON values; they and ``data`` are all that the run's numbers depend on.
      label: what displays and logs call the run.
      steps_per_epoch: after so many steps, and at the end, the run has a row of an epoch.
      program: runs of equal names share a compiled program.
      data: the fingerprint of the data.
      evaluate_every: epochs between two tests, 0 for none; the last step is always followed by one.
      curve_points: points of the curve in the run's row, at most.
    """

    settings: Mapping[str, Any]
    label: str
    num_steps: int
    steps_per_epoch: int
    program: str = ""
    data: str = ""
    evaluate_every: int = 1
    curve_points: int = 200

    @functools.cached_property
    def key(self) -> str:
        """SHA-256 of the canonical text of settings and data."""
        text = json.dumps(
            [dict(self.settings), self.data],
            sort_keys=True, separators=(",", ":"), allow_nan=False,
        )  # fmt: skip
        return hashlib.sha256(text.encode()).hexdigest()


@dataclasses.dataclass
class Run:
    """How far a run has come, besides its state.

    Attributes:
      metrics: the names of the curve's columns.
      curve: the metrics of every step, float32 ``[num_steps, M]``, NaN for steps to come.
      step: steps made.
      first_step: the step from which this process resumed the run.
      seconds: the time of the run, in earlier processes too.
      step_seconds: the time of the steps that this process made.
      input_seconds: how much of it was spent waiting for batches from the host; None where they do
        not come from there.
      diverged: why the run diverged; empty if it did not.
      history: a row for each epoch that is over, as JSON values.
      state: the state after the last step, as NumPy arrays, where it was asked for.
    """

    metrics: tuple[str, ...]
    curve: np.ndarray
    step: int = 0
    first_step: int = 0
    seconds: float = 0.0
    step_seconds: float = 0.0
    input_seconds: float | None = None
    diverged: str = ""
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    state: Any = None

    @property
    def status(self) -> str:
        """``finished``, ``diverged``, or ``stopped`` before the last step."""
        if self.diverged:
            return "diverged"
        return "finished" if self.step == len(self.curve) else "stopped"

    def column(self, name: str, start: int = 0) -> np.ndarray:
        """A metric of the steps made, from one on."""
        return self.curve[start : self.step, self.metrics.index(name)]

    def mean(self, name: str, start: int = 0) -> float:
        """The exact mean of a metric over the steps made here, however divided into calls."""
        values = [value for value in self.column(name, start).tolist() if not math.isnan(value)]
        return math.fsum(values) / len(values) if values else math.nan

    def measures(self, points: int) -> dict[str, Any]:
        """What a run's row has of its curve, :func:`thinned` to at most so many points."""
        made, losses = self.step - self.first_step, self.column("loss")
        columns = {name: self.column(name).tolist() for name in self.metrics}
        curve = {"step": [*range(1, self.step + 1)], **columns}
        return {
            "first_loss": float(losses[0]),
            "last_loss": float(losses[-1]),
            "last_grad_norm": float(self.column("grad_norm")[-1]),
            "seconds_per_step": self.step_seconds / made if made else math.nan,
            "resumed_at": self.first_step,
            "curve": thinned(curve, points, len(self.curve)),
            **self.input_wait(),
        }

    def input_wait(self) -> dict[str, float]:
        """How long the run has waited for batches from the host, where they come from there."""
        if self.input_seconds is None:
            return {}
        fraction = min(self.input_seconds / max(self.step_seconds, 1e-9), 1.0)
        return {"input_wait": self.input_seconds, "input_fraction": fraction}


def thinned(
    curve: Mapping[str, Sequence[Any]], points: int, num_steps: int
) -> dict[str, list[Any]]:
    """A curve with at most so many points, each the mean of as many up to its ``step``.

    ``num_steps`` are those of a run that finishes: one that diverged has points at the same steps.

    >>> thinned({"step": [1, 2, 3, 4, 5], "loss": [0.0, 1.0, 2.0, 3.0, 4.0]}, 3, num_steps=5)
    {'step': [2, 4, 5], 'loss': [0.5, 2.5, 4.0]}
    """
    # A point may be the mean of several steps already.
    whole = -(-num_steps // curve["step"][0]) if curve["step"] else 0
    length = max(1, -(-whole // points))
    means: dict[str, list[Any]] = {}
    for name, values in curve.items():
        parts = [values[start : start + length] for start in range(0, len(values), length)]
        if name == "step":
            means[name] = [part[-1] for part in parts]
        else:
            means[name] = [sum(math.nan if x is None else x for x in p) / len(p) for p in parts]
    return means


def refuse_labels(metrics: Mapping[str, float], where: str) -> None:
    """Tells labels that are no class from divergence: only they make the accuracy NaN."""
    if math.isnan(metrics.get("accuracy", 0.0)):
        raise ValueError(
            f"a label in {where} is no class of the network; expected 0 <= label < num_classes "
            "(was the data set changed after it was checked?)."
        )
