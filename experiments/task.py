"""Runs on data that come from the host: streamed images and sentence pairs."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax

from nf_resnets import data, training, translation
from nf_resnets.training import Plan, Program, Start

from .grid import Point


class Setup(NamedTuple):
    """What the runs of one program share."""

    model: Any
    optimizer: Callable[[Mapping[str, Any]], Any]  # (hyper): the optax transformation
    training: training.StreamedTraining | translation.TokenTraining
    steps_per_epoch: int


@dataclasses.dataclass
class HostTask:
    """The runs of an experiment; see :class:`nf_resnets.sweep.programs.Task`.

    Attributes:
      source: what is trained on.
      given: what the experiment's own functions take besides.
      setup: ``setup(point, given)``; the rate is ``hyper["learning_rate"]``.
    """

    source: Any
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
        model, _, how, epoch = self.setup(point, self.given)
        return Plan(
            point,
            label="",
            num_steps=how.num_steps,
            steps_per_epoch=epoch,
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

    def build(
        self,
        plan: Plan,
        mesh: jax.sharding.Mesh,
        *,
        runs_per_device: int = 1,
        vectorize: Literal["auto", "vmap", "loop"] = "auto",
    ) -> Program:
        """Compiles the program of a run, which has one slot."""
        model, optimizer, how, _ = self.setup(plan.settings, self.given)
        start = self.start(plan)
        if isinstance(how, training.StreamedTraining):
            return training.streamed_program(model, self.source, optimizer, mesh, how, start)
        return translation.token_program(model, self.source, optimizer, mesh, how, start)

    def start(self, plan: Plan) -> Start:
        """The scheme, the seed and the rate of a run."""
        model = self.setup(plan.settings, self.given).model
        hyper = {"learning_rate": plan.settings["peak_lr"]}
        return Start(model.scheme, plan.settings["seed"], hyper)
