"""Runs on data that come from the host: streamed images and sentence pairs."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from nf_resnets import data, training, translation
from nf_resnets.training import Plan, Program, Start

from .grid import Point


def shared(points: Sequence[Point], *names: str) -> Point:
    """The first point, which says what all runs are trained on; all must have its settings of it.

    >>> shared([{"dataset": "made", "seed": 0}, {"dataset": "made", "seed": 1}], "dataset")["seed"]
    0
    """
    for name in names:
        if len({point[name] for point in points}) > 1:
            raise ValueError(
                f"several values of {name} found; expected one, for all runs are trained on the "
                "same data."
            )
    return points[0]


class Setup(NamedTuple):
    """What the runs of one program share."""

    build: Callable[..., Program]  # training.streamed_program, or translation.token_program
    model: Any
    source: Any  # of the batches
    optimizer: Callable[[Mapping[str, Any]], Any]  # (hyper): the optax transformation
    training: training.ImageTraining | translation.TokenTraining
    steps_per_epoch: int


@dataclasses.dataclass
class HostTask:
    """The runs of an experiment; see :class:`nf_resnets.sweep.engine.Task`.

    Attributes:
      given: what is trained on, and what the experiment's own functions take besides.
      setup: ``setup(point, given)``; the rate is ``hyper["learning_rate"]``.
    """

    given: Any
    setup: Callable[[Any, Any], Setup]
    probe: Callable[..., Any] | None = None
    finish: Callable[..., Any] | None = None

    @functools.cached_property
    def fingerprint(self) -> str:
        """Of the data, part of each run's key."""
        return data.fingerprint(self.given)

    def plan(self, point: Point) -> Plan:
        """The plan of a run; those of one program differ in seed and rate only."""
        shared = {name: x for name, x in point.items() if name not in ("seed", "peak_lr")}
        setup = self.setup(point, self.given)
        return Plan(
            point,
            label="",
            num_steps=setup.training.num_steps,
            steps_per_epoch=setup.steps_per_epoch,
            program=json.dumps(shared, sort_keys=True),
            data=self.fingerprint,
            evaluate_every=point.get("evaluate_every", 0),
        )

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a batch that does not divide over the devices."""
        batch = plan.settings.get("batch_size", 0)
        if batch % devices_per_run:
            raise ValueError(
                f"batch_size={batch} does not divide over devices_per_run={devices_per_run} "
                "devices."
            )

    def build(self, plan: Plan, mesh: jax.sharding.Mesh, **devices: Any) -> Program:
        """Compiles the program of a run, which has one slot."""
        build, model, source, optimizer, how, _ = self.setup(plan.settings, self.given)
        return build(model, source, optimizer, mesh, how, self.start(plan))

    def start(self, plan: Plan) -> Start:
        """The scheme, the seed and the rate of a run."""
        model = self.setup(plan.settings, self.given).model
        hyper = {"learning_rate": plan.settings["peak_lr"]}
        return Start(model.scheme, plan.settings["seed"], hyper)
