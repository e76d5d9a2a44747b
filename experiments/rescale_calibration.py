r"""RescaleNet's calibrated biases: how many images they take, and what they do to the training.

Claim (author feedback): "we tried to subtract the mean from more data, but find a batch size of 128
is all ready good enough: almost no neurons dies in the beginning of training".

Our own table on streamed digits (`rescale_imagenet`) has ResNet-50 at 75.8% with calibrated biases
and at 80.8% with biases left at 0. The second part asks whether the reason is the seed or the rate:
calibration removes the channels' means, which are most of a deep ReLU network's signal, and with
them most of the gradient.

Expected, if the claim holds: the fraction of dead units, which get no gradient from any test image,
falls with the number of images and is constant from 128 on. If the rate is the reason, the gradient
at the start is smaller with calibrated biases, and they are behind at the smallest rate only.

Setting: (1) ResNet-50 with an eighth of the channels, the digits inside scikit-learn at 32 pixels,
at initialisation: dead units among the stem's and the branches' layers that a ReLU follows, of 360
test images, `Var` of the last block's sum, the norm of the gradient of the first 128 training
images' loss. (2) A ResNet-32 on the 8x8 digits, 220 steps at batch 64 as in `rescale_imagenet`,
multipliers at the full rate, constant rates. `--scale laptop` takes four minutes on two cores,
`--scale smoke` seconds.

`--scale cifar` is a ResNet-32 of 16 channels on CIFAR-10 in both parts, its biases set from 128 and
from 1,024 images, one epoch at batch 128, crop and flip, two seeds: over an hour on two cores. Dead
units are counted on the first 360 test images, as many as the digits have.

Found on CIFAR-10: at the start 0.3% of the units are dead with biases at 0, and none with biases
set from two images or more. After an epoch biases set from 128 images are ahead, 39.5% against
35.5% at the rate 0.025 and 45.5% against 40.1% at 0.1, and those from 1,024 are within a point of
them. At 0.4 one of two seeds diverges with either.

Found on the digits: two images are enough, and the gradient is a fourth to a sixth of that with
biases at 0. In the second part calibrated biases are ahead even at the smallest rate; at 0.1 one of
three seeds diverges with them. So at a constant rate the smaller gradient is no disadvantage. In
`rescale_imagenet`, where the rate falls after 66 steps, it is part of the reason, and the seed is
not (its docstring has six seeds, and four times the rate).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import analysis, data, init, models, roles, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure
from nf_resnets.roles import Role
from nf_resnets.training import Start

from . import experiment
from .experiment import OUTCOME, Experiment, Point, Results, Setup
from .folder import ResultsFolder, Row
from .images import image_setup, network
from .main import run
from .table import counted, data_title, spread_cell, text_table
from .untrained import initial, normalized, quick_jit

RESCALENET = schemes.get("rescalenet")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    dataset: str = "digits"
    steps: int = 220
    start_network: str = "ResNet"
    start_depth: int = 50
    start_images: tuple[int, ...] = (0, 2, 8, 32, 128, 512)
    start_size: int = 32  # pixels
    depth: int = 32
    images: tuple[int, ...] = (0, 128)
    rates: tuple[float, ...] = (0.025, 0.1, 0.4)
    seeds: tuple[int, ...] = (0, 1, 2)
    stem_channels: int = 8
    batch_size: int = 64
    momentum: float = 0.9
    weight_decay: float = 1e-4
    padding: int = 0
    flip: bool = False


SCALES = {
    "smoke": Settings(
        steps=3, start_depth=26, start_images=(0, 2, 16), depth=8, images=(0, 2), rates=(0.1,),
        seeds=(0,), stem_channels=4,
    ),
    "laptop": Settings(),
    "cifar": Settings(
        "cifar10", steps=390, start_network="CifarResNet", start_depth=32,
        start_images=(0, 2, 8, 32, 128, 1024), images=(0, 128, 1024), seeds=(0, 1),
        stem_channels=16, batch_size=128, padding=4, flip=True,
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the experiment."""

    scale: Literal["smoke", "laptop", "cifar"] = "laptop"
    """smoke: seconds; laptop: digits, minutes on two cores; cifar: CIFAR-10, over an hour."""


@functools.cache
def calibrated_on(images: int) -> schemes.Scheme:
    """RescaleNet whose biases are set from the first of a batch's images; from none, left at 0."""

    def calibrate(apply_fn: Any, params: Any, batch: Any) -> Any:
        return init.rescale_biases(apply_fn, params, batch[:images])

    return dataclasses.replace(RESCALENET, calibrate=calibrate if images else None)


def dead_units(gradients: Any) -> tuple[int, int]:
    """How many units in front of a ReLU got no gradient, and how many there are.

    The gradients are of a number that all logits of a batch enter: a unit whose ReLU is 0 for all
    images and positions gives its weights none.
    """
    dead = total = 0
    leaves = roles.assign(gradients).leaves
    for leaf, value in zip(leaves, jax.tree.leaves(gradients), strict=True):
        inside = leaf.role is Role.BRANCH and leaf.layer < leaf.m
        if leaf.weight and (inside or leaf.role is Role.STEM):
            largest = np.abs(np.asarray(value)).max(
                axis=tuple(range(int(leaf.stacked), value.ndim - 1))
            )
            dead += int((largest == 0).sum())
            total += largest.size
    return dead, total


@functools.cache
def make_look(model: Any, dataset: data.Dataset, size: int) -> Callable[[Any], dict[str, float]]:
    """``look(params) -> {"dead", "variance", "gradient"}`` of a network on some images."""
    test = normalized(dataset, dataset.test.images[:360], size)
    train = normalized(dataset, dataset.train.images[:128], size)
    labels = jnp.asarray(dataset.train.labels[:128])
    observed = analysis.observe(model)

    def readout(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, test)
        return (jax.random.normal(jax.random.key(0), logits.shape) * logits).sum()

    def loss(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, train)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @quick_jit
    def found(params: Any) -> Any:
        _, taps = observed(params, test)
        last = analysis.signal_of(taps).sum.variance[-1]
        return jax.grad(readout)(params), last, optax.global_norm(jax.grad(loss)(params))

    def look(params: Any) -> dict[str, float]:
        gradients, variance, gradient = found(params)
        dead, total = dead_units(gradients)
        return {"dead": dead / total, "variance": float(variance), "gradient": float(gradient)}

    return look


def measure_start(settings: Settings, dataset: data.Dataset, folder: ResultsFolder) -> None:
    """The first part: ResNet-50 at its start, its biases set from more and more images."""
    points = [
        {"part": "start", "images": images, "rate": "", "seed": seed}
        for seed, images in itertools.product(settings.seeds, settings.start_images)
    ]
    missing = [point for point in points if not folder.has(**point)]
    if not missing:
        return
    model = getattr(models, settings.start_network)(
        settings.start_depth, RESCALENET, num_classes=10, stem_channels=settings.stem_channels
    )
    most = max(settings.start_images)
    train = normalized(dataset, dataset.train.images[:most], settings.start_size)
    look = make_look(model, dataset, settings.start_size)
    start = quick_jit(lambda key: initial(model, key, train)[0])
    for point in missing:
        scheme, params = calibrated_on(point["images"]), start(jax.random.key(point["seed"]))
        if scheme.calibrate is not None:
            params = scheme.calibrate(model.apply, params, train)
        nothing = dict.fromkeys(("dead_after", *OUTCOME), "")
        folder.add(point | nothing | look(params))


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs of the second part, which share one program."""
    return [
        Point(
            key={"part": "training", "images": images, "rate": rate, "seed": seed},
            title=f"biases of {images} images, rate {rate:g}",
            start=Start(calibrated_on(images), seed, {"learning_rate": rate}),
            program=None,
            num_steps=settings.steps,
            batch_size=settings.batch_size,
            steps_per_epoch=settings.steps,
        )
        for images, rate, seed in itertools.product(settings.images, settings.rates, settings.seeds)
    ]


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of all runs of the second part."""
    model = network(models.CifarResNet, settings, dataset, point, scheme=RESCALENET)
    made = image_setup(model, dataset, settings, point, draw="own")
    most = max(1, *settings.images)
    how = dataclasses.replace(made.training, calibration_examples=most)
    return made._replace(training=how)


def probe(
    settings: Settings, dataset: data.Dataset, point: Point, program: Any, state: Any, step: int
) -> dict[str, float]:
    """Dead units, variance and gradient of a network before and after its training."""
    return make_look(program.model, dataset, dataset.train.images.shape[1])(state.params)


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """What the probes found at the start, and the dead units at the end."""
    first, *rest = (epoch["measures"] for epoch in run["history"])
    after = [measures["dead"] for measures in rest if measures]
    return {**first, "dead_after": after[-1] if after else ""}


def of(rows: Sequence[Row], part: str, images: int, rate: float | str = "") -> list[Row]:
    """The rows of a part, a number of images and a rate."""
    wanted = (part, str(images), str(rate))
    return [row for row in rows if (row["part"], row["images"], row["rate"]) == wanted]


def mean(rows: Sequence[Row], column: str, factor: float = 1.0) -> tuple[float, float]:
    """Mean and sample standard deviation (0 of one) of a column, where it is not empty."""
    values = [factor * float(row[column]) for row in rows if row[column] not in ("", "nan")]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return (statistics.fmean(values), spread) if values else (float("nan"), 0.0)


def biases_of(images: int) -> str:
    return f"{images} images" if images else "nothing, 0"


def table(results: Results) -> str:
    """Both parts: what the biases do at the start, and to the training."""
    return f"{start_table(results)}\n\n{training_table(results)}"


def start_table(results: Results) -> str:
    """The first part."""
    rows, settings = results.rows, results.settings
    cells = [["biases set from", "dead units (%)", "Var of the last sum", "gradient"]]
    for images in settings.start_images:
        found = of(rows, "start", images)
        if found:
            dead, spread = mean(found, "dead", 100)
            sizes = (f"{mean(found, name)[0]:.3g}" for name in ("variance", "gradient"))
            cells.append([biases_of(images), f"{dead:.1f} ± {spread:.1f}", *sizes])
    return text_table(cells)


def training_table(results: Results) -> str:
    """The second part: mean and spread of the test accuracy at each rate; dead units, gradient."""
    rows, settings = results.rows, results.settings
    cells = [
        [
            "biases set from", *(f"rate {rate:g}" for rate in settings.rates),
            "gradient at the start", "dead (%)", f"after training at {settings.rates[0]:g}",
        ]
    ]  # fmt: skip
    for images in settings.images:
        by_rate = [of(rows, "training", images, rate) for rate in settings.rates]
        found = [row for own in by_rate for row in own]
        if found:
            gradient, dead = mean(found, "gradient")[0], mean(found, "dead", 100)[0]
            after = [row for row in by_rate[0] if row["status"] == "finished"]
            last = f"{mean(after, 'dead_after', 100)[0]:.1f}" if after else "-"
            shown = (f"{gradient:.3g}", f"{dead:.1f}", last)
            cells.append([biases_of(images), *map(spread_cell, by_rate), *shown])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws dead units against images, and test accuracy against the rate."""
    rows, settings = results.rows, results.settings
    at = [images for images in settings.start_images if images]
    dead = [mean(of(rows, "start", images), "dead", 100)[0] for images in [0, *at]]
    starts = [
        Curve("RescaleNet", at, dead[1:], marked=True),
        Curve("RescaleNet, biases at 0", at, dead[:1] * len(at)),
    ]
    trainings = []
    for images in settings.images:
        by_rate = {rate: of(rows, "training", images, rate) for rate in settings.rates}
        by_rate = {rate: own for rate, own in by_rate.items() if own}
        if not by_rate:
            continue
        title = "RescaleNet" if images else "RescaleNet, biases at 0"
        if images and images != max(settings.images):
            title = f"RescaleNet, {images} images"
        values = [
            [100 * float(row["test_accuracy"]) for row in own if row["status"] == "finished"]
            or [math.nan]
            for own in by_rate.values()
        ]
        ends = [list(map(end, values)) for end in (statistics.fmean, min, max)]
        gone = not math.isfinite(ends[0][-1])  # at the highest rate no run finished
        trainings.append(
            Curve(title, list(by_rate), ends[0], gone, marked=True, low=ends[1], high=ends[2])
        )
    most = max(dead[1:])
    with_biases = f"at most {most:.2g}%" if most else "none"
    of_start = f"images (ResNet-{settings.start_depth} at its start)"
    of_training = f"learning rate (ResNet-{settings.depth}, {settings.steps} steps)"
    panels = [
        Panel(of_start, "dead units (%)", starts, x_base=2),
        Panel(of_training, "test accuracy (%)", trainings, x_base=2),
    ]
    curves_figure(
        panels,
        path,
        title=(
            f"Of RescaleNet's units {dead[0]:.1f}% are dead with biases at 0, and {with_biases} "
            "with biases set from images"
        ),
        subtitle=(
            f"On {data_title(settings.dataset)}, {settings.stem_channels} channels, batch "
            f"{settings.batch_size}; of the runs that did not diverge, of "
            f"{counted(settings.seeds, 'seed')}, the mean and the range"
        ),
    )


EXPERIMENT = Experiment(
    name="rescale_calibration",
    title="RescaleNet's calibration",
    description="RescaleNet's biases from more and fewer images.",
    scales=SCALES, command=Command,
    grid=("images", "rates", "start_images", "seeds"),
    key=("part", "images", "rate", "seed"),
    columns=(
        "part", "images", "rate", "seed", "dead", "variance", "gradient", "dead_after", *OUTCOME
    ),
    measure=measure_start, points=points, setup=setup, probe=probe, row=row,
    table=table, plot=plot,
    heading=lambda results: "At the start, and the test accuracy (%) after training:",
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
