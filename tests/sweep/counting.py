"""A task without a network, for what a worker does with any: its runs count their steps."""

from __future__ import annotations

import time
from types import SimpleNamespace

import jax
import numpy as np

from nf_resnets.sweep.task import Resolved
from nf_resnets.training.program import Program, Steps
from nf_resnets.training.state import TrainState


def state(seed=0):
    return TrainState(
        step=np.int32(0), seed=np.uint32(seed), params={"w": np.float32(seed)},
        batch_stats={}, opt_state={}, hyper={},
    )  # fmt: skip


class Counting:
    """The loss of step t is 1 / (t + 1), and added to the weight, which begins as the seed.

    Args:
      num_steps: steps of a run.
      per_epoch: steps of an epoch.
      seconds: of a step.
      diverges_at: the step of which the loss is not a number.
      stop_at: the step after which the task asks to be stopped.
      waits: whether half of a step is spent waiting for its batch.
      evaluate_every: epochs between two tests.
    """

    finish = None
    probe = None

    def __init__(
        self, *, num_steps=10, per_epoch=4, seconds=0.0, diverges_at=None, stop_at=None,
        waits=False, evaluate_every=1,
    ):  # fmt: skip
        self.num_steps, self.per_epoch, self.evaluate_every = num_steps, per_epoch, evaluate_every
        self.seconds, self.diverges_at, self.stop_at = seconds, diverges_at, stop_at
        self.waits, self.waited = waits, 0.0
        self.stopped = False

    def check(self, run, devices_per_run):
        pass

    def resolve(self, settings):
        return Resolved(
            settings, f"seed {settings['seed']}", "counting", self.num_steps, self.per_epoch,
            evaluate_every=self.evaluate_every, curve_points=4,
        )  # fmt: skip

    def start(self, run):
        return SimpleNamespace(seed=run.settings["seed"])

    def build(self, run, mesh, *, runs_per_device=1, vectorize="auto"):
        slots = max(runs_per_device, 1)

        def put(states, slot, one):
            states = jax.tree.map(np.copy, states)
            for whole, leaf in zip(jax.tree.leaves(states), jax.tree.leaves(one), strict=True):
                whole[slot] = leaf
            return states

        return Program(
            model=None, mesh=mesh, slots=slots, num_steps=self.num_steps,
            steps_per_epoch=self.per_epoch, metrics=("loss", "accuracy", "grad_norm"),
            like=state(),
            empty=lambda: jax.tree.map(lambda leaf: np.repeat(leaf[None], slots, 0), state()),
            begin=lambda states, slot, start: put(states, slot, state(start.seed)),
            put=put,
            take=lambda states, slot: jax.tree.map(lambda leaf: leaf[slot], states),
            steps=self.steps,
            test=lambda states: {
                "loss": 1 / (1 + states.params["w"]), "accuracy": np.full(slots, 0.25)
            },
            compile_seconds=0.0,
            input_seconds=(lambda: self.waited) if self.waits else None,
        )  # fmt: skip

    def steps(self, states, counts):
        states, counts = jax.tree.map(np.copy, states), np.array(counts)
        ends = states.step + counts
        if self.diverges_at is not None:
            counts = np.where(counts, np.minimum(ends, self.diverges_at + 1) - states.step, 0)
        curve = {name: np.zeros((len(counts), counts.max())) for name in ("loss", "accuracy")}
        for slot, count in enumerate(counts):
            for made in range(count):
                loss = np.float32(1 / (states.step[slot] + 1))
                states.params["w"][slot] += loss
                curve["loss"][slot, made] = loss
                states.step[slot] += 1
            if self.diverges_at is not None and states.step[slot] == self.diverges_at + 1:
                curve["loss"][slot, count - 1] = np.nan
        begun = time.perf_counter()
        time.sleep(self.seconds * counts.max())
        self.waited += 0.5 * (time.perf_counter() - begun)
        self.stopped |= self.stop_at is not None and int(states.step.max()) >= self.stop_at
        gone = np.isnan(curve["loss"]).any(1)
        return Steps(states, {**curve, "grad_norm": curve["loss"] + 1}, counts, gone)
