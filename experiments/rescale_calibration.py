r"""RescaleNet's calibrated biases: how many images they take, and what they do to the training.

Claim (author feedback): "we tried to subtract the mean from more data, but find a batch size of 128
is all ready good enough: almost no neurons dies in the beginning of training".

Expected, if the claim holds: the fraction of dead units, which get no gradient from any test image,
falls with the number of images and is constant from 128 on. The second part asks why biases at 0
are ahead in `rescale_imagenet`. If the rate is the reason, the gradient at the start is smaller
with calibrated biases, and they are behind at the smallest rate only.

Setting: (1) ResNet-50 with an eighth of the channels, the digits inside scikit-learn at 32 pixels,
at initialisation: dead units among the stem's and the branches' layers that a ReLU follows, of 360
test images, `Var` of the last block's sum, the norm of the gradient of the first 128 training
images' loss. (2) A ResNet-32 on the 8x8 digits, 220 steps at batch 64, multipliers at the full
rate, constant rates. `--scale laptop` takes four minutes on two cores. `--scale cifar` is a
ResNet-32 of 16 channels on CIFAR-10 in both parts, its biases set from 128 and from 1,024 images,
one epoch at batch 128, crop and flip, two seeds: over an hour on two cores.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import analysis, data, init, models, roles, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, mean_curve
from nf_resnets.roles import Role

from .experiment import Experiment, Results, Row
from .grid import Point, grid, scheme_with, variants
from .main import run
from .table import finished, grouped, spread_cell, text_table
from .untrained import forward, initial, normalized, quick_jit

RESCALENET = schemes.get("rescalenet")
AT_ZERO = scheme_with("rescalenet", "rescalenet_biases_at_0", calibrate=None)

DIGITS = {
    "dataset": "digits", "model": "cifar-resnet-32", "steps": 220, "batch_size": 64,
    "stem_channels": 8, "schedule": "constant", "weight_decay": 1e-4, "draw": "own",
    "evaluate_every": 0,
}  # fmt: skip
CIFAR10 = DIGITS | {
    "dataset": "cifar10", "steps": 390, "batch_size": 128, "stem_channels": 16, "padding": 4,
    "flip": True,
}  # fmt: skip
START = {"dataset": "digits", "network": "ResNet", "depth": 50, "stem_channels": 8, "size": 32}


def training(base: Point, images: Sequence[int], **axes: Sequence[Any]) -> list[Point]:
    """The second part: biases at 0, and set from so many images."""
    named: dict[str, Point] = {"nothing": {"scheme": AT_ZERO.name}}
    named |= {f"{n}": {"scheme": "rescalenet", "calibration_examples": n} for n in images}
    return variants(base, named, **axes)


SMOKE, RATES = [0], [0.025, 0.1, 0.4]
SCALES = {
    "smoke": grid(START | {"depth": 26, "stem_channels": 4}, images=[0, 2, 16], seed=SMOKE)
    + training(
        DIGITS | {"steps": 3, "model": "cifar-resnet-8", "stem_channels": 4}, [2],
        peak_lr=[0.1], seed=SMOKE,
    ),
    "laptop": grid(START, images=[0, 2, 8, 32, 128, 512], seed=[0, 1, 2])
    + training(DIGITS, [128], peak_lr=RATES, seed=[0, 1, 2]),
    "cifar": grid(
        START | {"dataset": "cifar10", "network": "CifarResNet", "depth": 32, "stem_channels": 16},
        images=[0, 2, 8, 32, 128, 1024], seed=[0, 1],
    )
    + training(CIFAR10, [128, 1024], peak_lr=RATES, seed=[0, 1]),
}  # fmt: skip


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
            axes = tuple(range(int(leaf.stacked), value.ndim - 1))
            largest = np.abs(np.asarray(value)).max(axis=axes)
            dead += int((largest == 0).sum())
            total += largest.size
    return dead, total


@functools.cache
def make_look(model: Any, dataset: data.Dataset, size: int) -> Callable[[Any], dict[str, float]]:
    """``look(params) -> {"dead", "variance", "gradient"}`` of a network on some images."""
    test = normalized(dataset, dataset.test.images[:360], size)
    train = normalized(dataset, dataset.train.images[:128], size)
    labels = jnp.asarray(dataset.train.labels[:128])
    network = forward(model)

    def readout(params: Any) -> jax.Array:
        logits = network(params, test)
        return (jax.random.normal(jax.random.key(0), logits.shape) * logits).sum()

    @quick_jit
    def measures(params: Any) -> Any:
        last = analysis.signal(network, params, test).sum.variance[-1]
        gradient = analysis.loss_gradient(network, params, train, labels)
        return jax.grad(readout)(params), last, optax.global_norm(gradient)

    def look(params: Any) -> dict[str, float]:
        gradients, variance, gradient = measures(params)
        dead, total = dead_units(gradients)
        return {"dead": dead / total, "variance": float(variance), "gradient": float(gradient)}

    return look


@functools.cache
def start_of(
    dataset: data.Dataset, network: str, depth: int, channels: int, size: int
) -> tuple[Any, Callable[[jax.Array], Any]]:
    """A network, and ``start(key)`` that draws its parameters."""
    model = getattr(models, network)(
        depth, RESCALENET, num_classes=dataset.num_classes, stem_channels=channels
    )
    image = normalized(dataset, dataset.train.images[:1], size)
    return model, quick_jit(lambda key: initial(model, key, image)[0])


load = functools.cache(data.load)


def measure(point: Point, data_dir: str | None) -> list[Row]:
    """The first part: a network at its start, its biases set from so many images."""
    dataset = load(point["dataset"], data_dir)
    sizes = (point[name] for name in ("network", "depth", "stem_channels", "size"))
    model, start = start_of(dataset, *sizes)
    params = start(jax.random.key(point["seed"]))
    if point["images"]:
        images = normalized(dataset, dataset.train.images[: point["images"]], point["size"])
        params = init.rescale_biases(params, network=forward(model), inputs=(images,))
    named = {"part": "start", "images": point["images"], "rate": "", "seed": point["seed"]}
    return [{**named, **make_look(model, dataset, point["size"])(params)}]


def probe(task: Any, program: Any, plan: Any, state: Any, step: int) -> dict[str, float]:
    """Dead units, variance and gradient of a network before and after its training."""
    dataset = task.dataset(plan.settings["dataset"])
    return make_look(program.model, dataset, dataset.train.images.shape[1])(state.params)


def columns(row: Row) -> Row:
    """What the probes found at the start, and the dead units at the end."""
    first, *rest = (epoch["measures"] for epoch in row["history"])
    after = [measures["dead"] for measures in rest if measures]
    images = 0 if row["scheme"] == AT_ZERO.name else row["calibration_examples"]
    named = {"part": "training", "images": images, "rate": row["peak_lr"]}
    return {**named, **first, "dead_after": after[-1] if after else ""}


def mean(rows: Sequence[Row], column: str, factor: float = 1.0) -> tuple[float, float]:
    """Mean and sample standard deviation (0 of one) of a column, where it is not empty."""
    values = [factor * float(row[column]) for row in rows if row[column] not in ("", "nan")]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return (statistics.fmean(values), spread) if values else (float("nan"), 0.0)


def biases_of(images: int) -> str:
    return f"{images} images" if images else "nothing, 0"


def start_table(rows: Sequence[Row]) -> str:
    """The first part."""
    cells = [["biases set from", "dead units (%)", "Var of the last sum", "gradient"]]
    for (images,), each in grouped(rows, "images").items():
        dead, spread = mean(each, "dead", 100)
        sizes = (f"{mean(each, name)[0]:.3g}" for name in ("variance", "gradient"))
        cells.append([biases_of(int(images)), f"{dead:.1f} ± {spread:.1f}", *sizes])
    return text_table(cells)


def of_training(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Row]]:
    """The second part by title, which rows of earlier versions lack, and images."""
    return grouped([{"title": RESCALENET.title, **row} for row in rows], "title", "images")


def training_table(rows: Sequence[Row]) -> str:
    """The second part: mean and spread of the test accuracy at each rate; dead units, gradient."""
    rates = sorted({float(row["rate"]) for row in rows})
    cells = [["biases set from", *(f"rate {rate:g}" for rate in rates), "gradient at the start",
              "dead (%)", f"after training at {rates[0]:g}"]]  # fmt: skip
    for (title, images), each in of_training(rows).items():
        by_rate = [[row for row in each if float(row["rate"]) == rate] for rate in rates]
        gradient, dead = mean(each, "gradient")[0], mean(each, "dead", 100)[0]
        after = finished(by_rate[0])
        last = f"{mean(after, 'dead_after', 100)[0]:.1f}" if after else "-"
        shown = (f"{gradient:.3g}", f"{dead:.1f}", last)
        told = biases_of(int(images)) + title.removeprefix(RESCALENET.title)
        cells.append([told, *map(spread_cell, by_rate), *shown])
    return text_table(cells)


def table(results: Results) -> str:
    """Both parts: what the biases do at the start, and to the training."""
    tables = {("start",): start_table, ("training",): training_table}
    parts = grouped(results.rows, "part")
    return "\n\n".join(tables[part](parts[part]) for part in tables if part in parts)


def figure(results: Results, path: Path) -> None:
    """Draws dead units against images, and test accuracy against the rate."""
    parts = grouped(results.rows, "part")
    by_images = grouped(parts.get(("start",), []), "images").items()
    dead = {int(images): mean(rows, "dead", 100)[0] for (images,), rows in by_images}
    at = [images for images in dead if images]
    starts = [Curve("RescaleNet", at, [dead[images] for images in at], marked=True)]
    starts += [Curve("RescaleNet, biases at 0", at, [dead[0]] * len(at))] if 0 in dead else []
    trainings = []
    trained = of_training(parts.get(("training",), []))
    for (title, images), rows in trained.items():
        last = images == list(trained)[-1][1]
        title += "" if last else f", {images} images" if int(images) else ", biases at 0"
        by_rate = {
            float(rate): [100 * float(row["test_accuracy"]) for row in finished(each)]
            for (rate,), each in grouped(rows, "rate").items()
        }
        gone = not by_rate[max(by_rate)]  # at the highest rate no run finished
        trainings.append(mean_curve(title, by_rate, lost=[max(by_rate)] * gone, marked=True))
    panels = [Panel("images", "dead units at the start (%)", starts, x_base=2)] if at else []
    if trainings:
        panels.append(Panel("learning rate", "test accuracy (%)", trainings, x_base=2))
    title = "RescaleNet's biases from more and fewer images"
    curves_figure(panels, path, title=title, subtitle=results.about)


EXPERIMENT = Experiment(
    "rescale_calibration", SCALES, table, figure, schemes=[AT_ZERO], columns=columns, probe=probe,
    history_steps={"smoke": 3, "laptop": 220, "cifar": 390}, measure=measure,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
