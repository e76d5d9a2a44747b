r"""Fixup's section 3: what a multiplier in each branch does to the norms of the weights.

Claim: "as the stochastic gradient of a layer is typically almost orthogonal to its weight, learning
rate decay tends to cause the weight norm equilibrium to shrink when combined with L2 weight decay
[...]. In a branch with multipliers, this in turn causes the growth of the multipliers, increasing
the effective learning rate of other layers. In particular, we observe that inserting just one
scalar multiplier per residual branch mimics the weight norm dynamics of a network with
normalization, and spares us the search of a new learning rate schedule." The paper shows no numbers
for it.

Expected: `|cos|` of the angle between a layer's gradient and its weight is below 0.1 in the mean.
After the drop of the rate the norms fall, the multipliers grow, and so does the norm of a layer's
gradient divided by that of its weight, the size of a step at equal rates. The norms of Fixup with
multipliers fall by about as much as BatchNorm's, those of Fixup without by less.

Setting: ResNet-20, momentum 0.9, rate 0.1 and from one half of the steps on a tenth of it, weight
decay on the weights only. `--scale laptop` trains 8 channels at the stem on the 8x8 digits for
2,400 steps of 64 images, weight decay 5e-3, three seeds. The published 1e-4 has its effect within
200 epochs, which are 33 times as many steps. It takes minutes on two cores. The cosine is 0.005
with BatchNorm, whose loss does not depend on the size of a weight, and 0.19 with Fixup, with
multipliers or without; we expected less than 0.1. The norms of weights fall to 0.67 (BatchNorm),
0.76 (Fixup) and 0.80 (Fixup without multipliers) of those before the drop. So the multipliers bring
Fixup nearer to BatchNorm, but not near. They themselves grow by 1%. A gradient falls more than its
weight, to 0.14, 0.48 and 0.26 of the quotient before the drop, since by then the networks fit their
training images. `--scale smoke` takes seconds a run and shows nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from nf_resnets import analysis, data, models, optim, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure

from . import experiment
from .experiment import OUTCOME, Experiment, Lines, Point, Results, Setup, mean_curves
from .folder import Row
from .images import image_setup, lengths, network, variant_points
from .main import run
from .table import data_title, grouped, seeds_shown, spread_cell, text_table
from .untrained import normalized

# What a variant leaves out is what the figure shows.
warnings.filterwarnings("ignore", category=schemes.SchemeWarning)

FIXUP = schemes.get("fixup")
VARIANTS = {
    "batchnorm": schemes.get("batchnorm"),
    "fixup": FIXUP,
    "without": dataclasses.replace(
        FIXUP,
        name="without",
        title="Fixup without multipliers",
        anatomy=dataclasses.replace(FIXUP.anatomy, multiplier=False),
    ),
}

LOOKED_AT = {
    "weight_norm": "norm of a weight",
    "multiplier": "multiplier",
    "cosine": "|cos(gradient, weight)|",
    "slope": "norm of the gradient / of the weight",
}
"""Of every look, means over the layers or the branches."""

MEASURED = ("cosine", "norm_ratio", "multiplier_ratio", "slope_ratio")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the figure's curves depend on."""

    dataset: str
    depth: int
    steps: int
    look_every: int  # steps
    learning_rate: float = 0.1
    weight_decay: float = 5e-3
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 8
    batch_size: int = 64
    momentum: float = 0.9


SCALES = {
    "smoke": Settings("digits", 8, 8, 1, stem_channels=4),
    "laptop": Settings("digits", 20, 2400, 50, seeds=(0, 1, 2)),
}


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the figure."""

    scale: Literal["smoke", "laptop"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores."""


def check(settings: Settings, command: Command) -> Settings:
    """Refuses runs whose quarters have no look each."""
    least = 4 * settings.look_every
    if settings.steps < least:
        raise ValueError(
            f"steps={settings.steps} found; expected {least}, which are four looks, or more."
        )
    return settings


@functools.cache
def gradient_of(model: Any) -> Callable[..., Any]:
    """``of(params, batch_stats, images, labels)``: the loss's gradient in training."""

    def gradient(params: Any, batch_stats: Any, images: jax.Array, labels: jax.Array) -> Any:
        def logits_fn(at: Any, inputs: jax.Array) -> jax.Array:
            variables = {"params": at, "batch_stats": batch_stats}
            return model.apply(variables, inputs, train=True, mutable=["batch_stats"])[0]

        return analysis.loss_gradient(logits_fn, params, images, labels)

    return jax.jit(gradient)


def looked_at(params: Any, gradient: Any) -> dict[str, float]:
    """The columns of ``LOOKED_AT``; the cosine with a vector of zeros counts as 0."""
    weights, slopes = (
        jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree) for tree in (params, gradient)
    )
    norms, steepness = analysis.weight_norms(weights), analysis.weight_norms(slopes)
    # The polarisation identity gives the inner product of each layer from norms.
    above, below = (
        analysis.weight_norms(jax.tree.map(of, weights, slopes)) for of in (np.add, np.subtract)
    )
    products = norms * steepness
    cosines = np.zeros_like(norms)
    np.divide(above**2 - below**2, 4 * products, out=cosines, where=products > 0)
    found = (
        norms,
        np.nan_to_num(analysis.multipliers(params), nan=1.0),
        abs(cosines),
        steepness[norms > 0] / norms[norms > 0],
    )
    return dict(zip(LOOKED_AT, (float(np.mean(values)) for values in found), strict=True))


def probe(
    settings: Settings, dataset: data.Dataset, point: Point, program: Any, state: Any, step: int
) -> dict[str, Any]:
    """Looks at weights, multipliers and the gradient of one training batch."""
    count = settings.batch_size
    batch = (step // settings.look_every * count + np.arange(count)) % len(dataset.train.labels)
    images = normalized(dataset, dataset.train.images[batch], dataset.train.images.shape[1])
    labels = dataset.train.labels[batch]
    gradient = gradient_of(program.model)(state.params, state.batch_stats, images, labels)
    return looked_at(state.params, gradient)


def lines(settings: Settings, point: Point, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each look."""
    return [
        {"step": epoch["step"], **{name: epoch["measures"][name] for name in LOOKED_AT}}
        for epoch in run["history"]
        if epoch["measures"]  # none where a run diverged before the step of a look
    ]


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs of the figure."""
    every = lengths(dataset, settings.batch_size, settings.steps) | {
        "steps_per_epoch": settings.look_every
    }
    return variant_points(VARIANTS, settings, every)


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one variant."""

    def schedule(rate: Any) -> Any:
        return optim.step_decay(rate, (settings.steps // 2,), 0.1)

    model = network(models.CifarResNet, settings, dataset, point)
    return image_setup(model, dataset, settings, point, schedule=schedule, draw="fan_out")


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The mean cosine after the start, and the last quarter's means over the second quarter's."""
    seen = lines(settings, point, run)

    def mean(name: str, first: float, last: float) -> float:
        steps = (first * settings.steps, last * settings.steps)
        within = [line[name] for line in seen if steps[0] < line["step"] <= steps[1]]
        return float(np.mean(within)) if within else float("nan")

    ratios = (
        mean(name, 0.75, 1) / mean(name, 0.25, 0.5)
        for name in ("weight_norm", "multiplier", "slope")
    )
    return dict(zip(MEASURED, (mean("cosine", 0, 1), *ratios), strict=True))


def table(results: Results) -> str:
    """One line for each variant, means over the seeds that finished."""
    cells = [["network", "|cos|", "norm", "multiplier", "gradient / norm", "test accuracy (%)"]]
    for rows in grouped(results.rows, "variant").values():
        finished = [row for row in rows if row["status"] == "finished"]
        means = [np.mean([float(row[name]) for row in finished]) for name in MEASURED]
        shown = [f"{mean:.3g}" for mean in means] if finished else ["-"] * len(MEASURED)
        cells.append([rows[0]["title"], *shown, spread_cell(rows)])
    return text_table(cells)


def shown(results: Results, name: str) -> list[Curve]:
    """A column's curves, without multipliers that stay 1 and gradients of zero at the start."""
    first = 1 if name == "slope" else 0
    return [
        Curve(each.title, each.x[first:], each.y[first:], each.diverged,
              low=each.low[first:], high=each.high[first:])
        for each in mean_curves(results, "variant", of=name)
        if name != "multiplier" or set(each.y) != {1.0}
    ]  # fmt: skip


def plot(results: Results, path: Path) -> None:
    """Draws what was looked at over the steps, the mean over the seeds."""
    settings = results.settings
    panels = [
        Panel("step", label, curves, y_base=10 if name in ("weight_norm", "slope") else 0)
        for name, label in LOOKED_AT.items()
        if (curves := shown(results, name))
    ]
    fallen = []
    for rows in grouped(results.rows, "variant").values():
        ratios = [float(row["norm_ratio"]) for row in rows if row["status"] == "finished"]
        mean = f"{np.mean(ratios):.2f}" if ratios else "diverged"
        fallen.append(f"{mean} ({rows[0]['title']})")
    curves_figure(
        panels,
        path,
        columns=2,
        title="Norms of weights after the drop of the rate, relative to those before it: "
        + ", ".join(fallen),
        subtitle=(
            f"ResNet-{settings.depth} on {data_title(settings.dataset)}, {settings.stem_channels} "
            f"channels, learning rate {settings.learning_rate:g}, a tenth of it from step "
            f"{settings.steps // 2:,}, weight decay {settings.weight_decay:g}, batch "
            f"{settings.batch_size}, {seeds_shown(results.rows, 'variant')}"
        ),
    )


EXPERIMENT = Experiment(
    name="fixup_multipliers",
    title="Fixup's multipliers",
    description="Fixup's multipliers and the norms of weights, beside BatchNorm's.",
    scales=SCALES, command=Command, check=check,
    grid=("variants", "seeds"),
    key=("variant", "seed"),
    columns=("variant", "title", "depth", "branches", "seed", *MEASURED, *OUTCOME),
    points=points, setup=setup, probe=probe, row=row,
    lines={"curves.csv": Lines(("step", *LOOKED_AT), lines)},
    table=table, plot=plot,
    heading=lambda results: (
        "Means over the layers; norm, multiplier and gradient: after the drop over before it:"
    ),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
