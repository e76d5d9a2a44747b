"""One run on streamed images: a network's compiled program, and its training and test as a row."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from nf_resnets.training.feed import Feed, local_rows
from nf_resnets.training.run import refuse_labels
from nf_resnets.training.streamed_loop import train_streamed

from experiments.curves import CurvesFile, GrowingCurve
from experiments.folder import Row
from experiments.imagenet import Images, steps_of
from experiments.training_run import OnStep
from nf_resnets import data, schemes, training
from nf_resnets.data import imagenet, stream
from nf_resnets.data.crop import RandomCrop
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.streamed import make_streamed_evaluate, make_streamed_step

CALIBRATION_IMAGES = 128  # RescaleNet's authors found that many to be enough
CURVE_POINTS = 200  # of a run, at most


@dataclasses.dataclass(frozen=True)
class StreamedProgram:
    """What the runs of one network share: the compiled functions, and what they are fed with.

    Attributes:
      model: the network.
      mesh: the devices.
      dataset: the images on disk.
      images: how they are cut.
      reading: how they are read ahead.
      batch_size: examples in a step.
      steps: steps of a run.
      steps_per_epoch: steps of one pass through the training split.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      initial: ``initial(scheme, key)`` gives the variables of a network before its first step.
      step: the training step.
      evaluate: loss and accuracy on a stream.
    """

    model: Any
    mesh: jax.sharding.Mesh
    dataset: imagenet.EncodedDataset
    images: Images
    reading: stream.Reading
    batch_size: int
    steps: int
    steps_per_epoch: int
    optimizer: Callable[[dict[str, Any]], Any]
    initial: Callable[[schemes.Scheme, jax.Array], Any]
    step: Any
    evaluate: Any


def build_program(
    model: Any,
    dataset: imagenet.EncodedDataset,
    images: Images,
    reading: stream.Reading,
    optimizer: Callable[[dict[str, Any]], Any],
    *,
    batch_size: int,
    steps: int,
    mixup: float = 0.0,
    micro_batches: int = 1,
) -> StreamedProgram:
    """Builds what the runs of one network need; everything is compiled at its first call.

    Args:
      model: a network of :mod:`nf_resnets.models`, whose scheme gives the anatomy.
      dataset: what it is trained and tested on.
      images: how the images are cut.
      reading: how they are read ahead.
      optimizer: ``optimizer(hyper)`` gives the optax transformation.
      batch_size: examples in a step.
      steps: steps of a run.
      mixup: ``alpha`` of the Beta distribution of the shares; 0 for no mixing.
      micro_batches: into how many parts a device cuts its share of the batch.
    """
    batch_norm = schemes.get(model.scheme).anatomy.has_batch_norm
    # As many devices as divide the batch, and, for BatchNorm, the batch's slices.
    slices = (model.bn_groups if batch_norm else batch_size) // micro_batches
    devices = math.gcd(slices, batch_size // micro_batches, len(jax.devices()))
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    colours = {"mean": imagenet.IMAGENET_MEAN, "std": imagenet.IMAGENET_STD}
    return StreamedProgram(
        model=model,
        mesh=mesh,
        dataset=dataset,
        images=images,
        reading=reading,
        batch_size=batch_size,
        steps=steps,
        steps_per_epoch=steps_of(dataset, batch_size, 1),
        optimizer=optimizer,
        initial=_make_initial(model, dataset, images, reading),
        step=make_streamed_step(
            training.train_apply(model, shards=devices * micro_batches),
            optimizer,
            mesh,
            batch_size=batch_size,
            mixup=mixup,
            micro_batches=micro_batches,
            **colours,
        ),
        evaluate=make_streamed_evaluate(training.eval_apply(model), mesh, **colours),
    )


def _make_initial(
    model: Any, dataset: imagenet.EncodedDataset, images: Images, reading: stream.Reading
) -> Callable[[schemes.Scheme, jax.Array], Any]:
    # It runs once a run, for milliseconds: what counts is how long it takes to compile.
    on_cpu = jax.default_backend() == "cpu"
    quickly = {"xla_backend_optimization_level": 0} if on_cpu else None

    @functools.partial(jax.jit, static_argnums=0, compiler_options=quickly)
    def drawn(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = model.init(key, jnp.zeros((1, images.size, images.size, 3)))
        params = scheme.init(variables["params"], model.num_branches, key=key)
        return {**variables, "params": params}

    def initial(scheme: schemes.Scheme, key: jax.Array) -> Any:
        variables = drawn(scheme, key)
        if scheme.calibrate is None:
            return variables
        split = dataset.split("train")
        count = min(CALIBRATION_IMAGES, split.num_examples)
        # Central crops of the first training images: the channel means need no random ones.
        first = next(
            stream.evaluation_stream(
                split,
                batch_size=count,
                size=images.size,
                short_side=images.short_side,
                reading=dataclasses.replace(reading, workers=0),
            )
        )
        pixels = data.normalize(first["image"], imagenet.IMAGENET_MEAN, imagenet.IMAGENET_STD)
        return {**variables, "params": scheme.calibrate(model.apply, variables["params"], pixels)}

    return initial


OUTCOME = (
    "status", "steps", "first_step", "batch_size", "test_accuracy", "test_loss", "train_accuracy",
    "train_loss", "input_wait", "input_share", "seconds", "seconds_per_step",
)  # fmt: skip
"""The columns that :func:`make_run` fills. Steps, times and waits are those since the run was last
resumed, at ``first_step``; ``train_*`` are means over the last tenth of these steps;
``input_share`` and ``seconds_per_step`` leave out the first, which contains the compilation."""


def make_run(
    program: StreamedProgram,
    scheme: schemes.Scheme,
    seed: int,
    hyper: dict[str, float],
    on_step: OnStep,
    *,
    checkpoints: Checkpoints,
    curves: CurvesFile,
    key: Mapping[str, Any],
    save_every: int = 1_000,
    tests: CurvesFile | None = None,
) -> Row:
    """Trains one network of a program, from its checkpoint if there is one, and tests it once.

    Args:
      program: what the runs of its network share.
      scheme: how it is initialised; of the anatomy that the program was made for.
      seed: from which weights, data order and crops follow.
      hyper: the numbers that the program's optimizer takes.
      on_step: called after each step with the number of steps made and the step's metrics.
      checkpoints: where it is saved.
      curves: where its curve goes.
      key: the columns that name the run.
      save_every: steps between two checkpoints, at least 1; the curve is kept as often.
      tests: where the test after every epoch goes, if there is to be one.

    Returns:
      The columns of ``OUTCOME``.
    """
    start = time.perf_counter()
    variables = program.initial(scheme, jax.random.key(seed))
    state = training.create_state(
        variables["params"],
        program.optimizer,
        hyper,
        batch_stats=variables.get("batch_stats"),
        seed=seed,
    )
    crop = RandomCrop(
        program.images.size, area=(program.images.lowest_area, 1.0), flip=program.images.flip
    )
    batches = functools.partial(
        stream.training_stream,
        program.dataset.split("train"),
        seed=seed,
        batch_size=program.batch_size,
        num_steps=program.steps,
        crop=crop,
        reading=program.reading,
    )
    curve = GrowingCurve(curves, key, CURVE_POINTS)
    times: list[float] = []
    share = math.nan

    def tick(step: int, metrics: dict[str, float]) -> None:
        nonlocal share
        share = metrics["input_share"]
        times[1:] = [time.perf_counter()]  # the first and the latest
        curve.add(step, metrics)
        if step % save_every == 0 or step == program.steps:
            curve.keep()  # ahead of the checkpoint, so that a resumed run finds all of it
        on_step(step, metrics)

    def test_epoch(states: training.TrainState) -> None:
        made = int(states.step[0])
        if tests is not None and made % program.steps_per_epoch == 0:
            # A run that was cut makes again the tests behind its checkpoint.
            earlier = [line for line in tests.found(key) if int(line["step"]) < made]
            found = {f"test_{name}": of for name, of in _test(program, states).items()}
            tests.put(key, [*earlier, {"step": made, **found}])

    def step(states: training.TrainState, batch: Any) -> Any:
        states, metrics = program.step(states, batch)
        if tests is not None:
            test_epoch(states)
        return states, metrics

    if tests is not None and not tests.found(key):
        test_epoch(_stacked(program, state))
    made = train_streamed(
        step,
        state,
        lambda first_step, rows: batches(first_step=first_step, rows=rows),
        program.mesh,
        num_steps=program.steps,
        batch_size=program.batch_size,
        checkpoints=checkpoints,
        save_every=save_every,
        on_step=tick,
    )
    if made.status == "diverged":
        curve.keep()
    test = {"accuracy": math.nan, "loss": math.nan}
    status = made.status
    if status == "finished":
        test = _test(program, _stacked(program, made.state))
        # The last update itself may have been the one too many.
        if not math.isfinite(test["loss"]):
            status, test["accuracy"] = "diverged", math.nan
    last = made.curve[-max(1, len(made.curve) // 10) :] or _last_tenth(curves.found(key))
    per_step = (times[-1] - times[0]) / (len(made.curve) - 1) if len(times) > 1 else math.nan
    return {
        "status": status,
        "steps": len(made.curve),
        "first_step": made.first_step,
        "batch_size": program.batch_size,
        "test_accuracy": test["accuracy"],
        "test_loss": test["loss"],
        "train_accuracy": _mean([metrics["accuracy"] for metrics in last]),
        "train_loss": _mean([metrics["loss"] for metrics in last]),
        "input_wait": round(made.waited, 3),
        "input_share": round(share, 4),
        "seconds": round(time.perf_counter() - start, 2),
        "seconds_per_step": round(per_step, 5),
    }


def _stacked(program: StreamedProgram, state: training.TrainState) -> training.TrainState:
    return training.spread_runs(training.stack([state]), program.mesh)


def _test(program: StreamedProgram, states: training.TrainState) -> dict[str, float]:
    """Tests the one run that is stacked in ``states``."""
    split = program.dataset.split("validation")
    devices = program.mesh.shape[training.DATA]
    size = -(-min(program.batch_size, split.num_examples) // devices) * devices
    batches = stream.evaluation_stream(
        split,
        batch_size=size,
        size=program.images.size,
        short_side=program.images.short_side,
        rows=local_rows(program.mesh, size),
        reading=program.reading,
    )
    feed = Feed(batches, program.mesh, size)
    try:
        found = program.evaluate(states.params, states.batch_stats, feed)
    finally:
        feed.close()
    test = {name: float(value[0]) for name, value in found.items()}
    refuse_labels(test, "the test split")
    return test


def _last_tenth(lines: Sequence[Row]) -> list[dict[str, float]]:
    """Of a run whose steps were all made by an earlier process, which was cut off in the test."""
    last = max((int(line["step"]) for line in lines), default=0)
    return [
        {name: float(line[name]) for name in ("loss", "accuracy")}
        for line in lines
        if int(line["step"]) > 0.9 * last
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


__all__ = [
    "CALIBRATION_IMAGES",
    "CURVE_POINTS",
    "OUTCOME",
    "StreamedProgram",
    "build_program",
    "make_run",
]
