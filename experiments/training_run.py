"""One run of a program: a network trained from its initialisation and tested once, as a row."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
from nf_resnets.training.run import refuse_labels

from experiments.program import Program
from nf_resnets import data, schemes, training

OnStep = Callable[[int, dict[str, float]], Any]

OUTCOME = (
    "status", "steps", "batch_size", "test_accuracy", "test_loss", "first_loss", "last_loss",
    "last_grad_norm", "seconds", "seconds_per_step",
)  # fmt: skip
"""The columns that :func:`outcome` fills."""


@dataclasses.dataclass(frozen=True)
class TrainingRun:
    """What came of a run.

    Attributes:
      status: ``"finished"`` or ``"diverged"``.
      curve: loss, accuracy and gradient norm of every step's batch.
      test: ``accuracy`` and ``loss`` on the test split; NaN of a diverged run.
      seconds: from before the initialisation to after the test, compilation included.
      seconds_per_step: without the first step, which contains the compilation.
    """

    status: str
    curve: tuple[dict[str, float], ...]
    test: Mapping[str, float]
    seconds: float
    seconds_per_step: float


def train_and_test(
    program: Program,
    scheme: schemes.Scheme,
    seed: int,
    hyper: dict[str, float],
    on_step: OnStep,
    *,
    look: Callable[[int, training.TrainState], Any] | None = None,
    look_every: int = 0,
) -> TrainingRun:
    """Trains one network of a program and tests it.

    Args:
      program: what the runs of its architecture share.
      scheme: how it is initialised; of the anatomy that the program was made for.
      seed: from which weights, data order and augmentation follow.
      hyper: the numbers that the program's optimizer takes.
      on_step: called after each step with the number of steps made and the step's metrics.
      look: called with the number of steps made and the state: before the first step, after every
        ``look_every``-th and after the last, unless the run diverges on the way.
      look_every: how many steps lie between two looks.
    """
    start = time.perf_counter()
    variables = program.initial(scheme, jax.random.key(seed))
    state = training.create_state(
        variables["params"],
        program.optimizer,
        hyper,
        batch_stats=variables.get("batch_stats"),
        seed=seed,
        average_decay=program.average_decay,
    )
    times = [time.perf_counter()]

    def tick(made: int, metrics: dict[str, float]) -> None:
        times.append(time.perf_counter())
        on_step(made, metrics)

    if look is not None:
        look(0, state)
    stops = [*range(look_every, program.steps, look_every)] if look is not None else []
    status, curve = "finished", ()
    for stop in [*stops, program.steps]:
        part = training.train(
            program.step,
            state,
            program.train_data,
            program.mesh,
            num_steps=stop,
            batch_size=program.batch_size,
            on_step=tick,
        )
        status, state, curve = part.status, part.state, curve + part.curve
        if status != "finished":
            break
        if look is not None:
            look(stop, state)

    test = {"accuracy": math.nan, "loss": math.nan}
    if status == "finished":
        test = _test(program, state, seed)
        # The last update itself may have been the one too many.
        if not math.isfinite(test["loss"]):
            status, test["accuracy"] = "diverged", math.nan
    per_step = (times[-1] - times[1]) / (len(times) - 2) if len(times) > 2 else math.nan
    return TrainingRun(status, curve, test, time.perf_counter() - start, per_step)


def _test(program: Program, state: training.TrainState, seed: int) -> dict[str, float]:
    stacked = training.stack([dataclasses.replace(state, params=state.tested_params)])
    if program.estimate is not None:
        count = program.train_data.labels.shape[0]
        order = training.spread_runs(data.epoch_order(seed, 0, count)[None], program.mesh)
        batch_stats = program.estimate(stacked, program.train_data, order)
        stacked = stacked.replace(batch_stats=batch_stats)
    found = program.evaluate(stacked.params, stacked.batch_stats, program.test_data)
    test = {name: float(value[0]) for name, value in found.items()}
    refuse_labels(test, "the test split")
    return test


def outcome(program: Program, made: TrainingRun) -> dict[str, Any]:
    """The columns of a row that every run fills, those of ``OUTCOME``."""
    return {
        "status": made.status,
        "steps": len(made.curve),
        "batch_size": program.batch_size,
        "test_accuracy": made.test["accuracy"],
        "test_loss": made.test["loss"],
        "first_loss": made.curve[0]["loss"],
        "last_loss": made.curve[-1]["loss"],
        "last_grad_norm": made.curve[-1]["grad_norm"],
        "seconds": round(made.seconds, 2),
        "seconds_per_step": round(made.seconds_per_step, 5),
    }


def describe(row: Mapping[str, Any]) -> str:
    """What came of a run, in a few words."""
    if row["status"] == "diverged":
        return f"diverged at step {row['steps']}, {row['seconds']:.0f} s"
    return f"{100 * row['test_accuracy']:.1f}% test accuracy, {row['seconds']:.0f} s"


__all__ = ["OUTCOME", "OnStep", "TrainingRun", "describe", "outcome", "train_and_test"]
