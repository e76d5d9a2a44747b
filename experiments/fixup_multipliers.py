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

Setting: ResNet-20, the rate falling to a tenth after one half of the steps, weight decay on the
weights only. `--scale laptop` takes minutes on two cores; its weight decay is 5e-3, since the
published 1e-4 has its effect within 33 times as many steps.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from nf_resnets import analysis
from nf_resnets.plotting.curves import Curve, Panel, curves_figure

from .experiment import Experiment, Results, Row
from .grid import grid, scheme_with
from .main import run
from .table import finished, grouped, mean_curves, spread_cell, text_table
from .untrained import forward, normalized

WITHOUT = scheme_with(
    "fixup", "fixup_without_multipliers", {"multiplier": False}, title="Fixup without multipliers"
)
LOOKED_AT = {
    "weight_norm": "norm of a weight",
    "multiplier": "multiplier",
    "cosine": "|cos(gradient, weight)|",
    "slope": "norm of the gradient / of the weight",
}
"""Of every look, means over the layers or the branches."""
MEASURED = ("cosine", "norm_ratio", "multiplier_ratio", "slope_ratio")

DIGITS = {
    "dataset": "digits", "model": "cifar-resnet-20", "steps": 2400, "batch_size": 64,
    "stem_channels": 8, "peak_lr": 0.1, "schedule": "step", "drops": "0.5", "weight_decay": 5e-3,
    "draw": "fan_out", "ghost_batch": 0, "evaluate_every": 0,
}  # fmt: skip
SMOKE = DIGITS | {"model": "cifar-resnet-8", "steps": 8, "stem_channels": 4}
SCHEMES = ("batchnorm", "fixup", WITHOUT.name)
SCALES = {
    "smoke": grid(SMOKE, scheme=SCHEMES, seed=[0]),
    "laptop": grid(DIGITS, scheme=SCHEMES, seed=[0, 1, 2]),
}


@functools.cache
def gradient_of(model: Any) -> Callable[..., Any]:
    """``of(params, variables, images, labels)``: the loss's gradient in training."""
    return jax.jit(
        lambda params, rest, *batch: analysis.loss_gradient(forward(model, rest), params, *batch)
    )


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
    measures = (
        norms,
        np.nan_to_num(analysis.multipliers(params), nan=1.0),
        abs(cosines),
        steepness[norms > 0] / norms[norms > 0],
    )
    return dict(zip(LOOKED_AT, (float(np.mean(values)) for values in measures), strict=True))


def probe(task: Any, program: Any, plan: Any, state: Any, step: int) -> dict[str, float]:
    """Looks at weights, multipliers and the gradient of one training batch."""
    dataset, count = task.dataset(plan.settings["dataset"]), plan.settings["batch_size"]
    look = step // plan.steps_per_epoch
    batch = (look * count + np.arange(count)) % len(dataset.train.labels)
    images = normalized(dataset, dataset.train.images[batch], dataset.train.images.shape[1])
    labels = dataset.train.labels[batch]
    variables = {"batch_stats": state.batch_stats}
    gradient = gradient_of(program.model)(state.params, variables, images, labels)
    return looked_at(state.params, gradient)


def lines(row: Row) -> list[Row]:
    """A line for each look; none where a run diverged before its step."""
    return [
        {"step": epoch["step"], **{name: epoch["measures"][name] for name in LOOKED_AT}}
        for epoch in row["history"]
        if epoch["measures"]
    ]


def columns(row: Row) -> Row:
    """The mean cosine after the start, and the last quarter's means over the second quarter's."""
    looks, steps = lines(row), row["resolved"]["num_steps"]

    def mean(name: str, first: float, last: float) -> float:
        within = [x[name] for x in looks if first * steps < x["step"] <= last * steps]
        return float(np.mean(within)) if within else float("nan")

    ratios = (
        mean(name, 0.75, 1) / mean(name, 0.25, 0.5)
        for name in ("weight_norm", "multiplier", "slope")
    )
    return dict(zip(MEASURED, (mean("cosine", 0, 1), *ratios), strict=True))


def table(results: Results) -> str:
    """Means over the seeds that finished; ratios are those after the drop to those before it."""
    cells = [["network", "|cos|", "norm", "multiplier", "gradient / norm", "test accuracy (%)"]]
    for (title,), rows in grouped(results.rows, "title").items():
        over = finished(rows)
        means = [np.mean([float(row[name]) for row in over]) for name in MEASURED if over]
        shown = [f"{mean:.3g}" for mean in means] or ["-"] * len(MEASURED)
        cells.append([title, *shown, spread_cell(rows)])
    return text_table(cells)


def curves(results: Results, name: str) -> list[Curve]:
    """A column's curves, without multipliers that stay 1 and gradients of zero at the start."""
    first = 1 if name == "slope" else 0
    return [
        dataclasses.replace(
            each, x=each.x[first:], y=each.y[first:], low=each.low[first:], high=each.high[first:]
        )
        for each in mean_curves(results, results.rows, name)
        if name != "multiplier" or set(each.y) != {1.0}
    ]


def figure(results: Results, path: Path) -> None:
    """Draws what was looked at over the steps, the mean over the seeds."""
    panels = [
        Panel("step", label, drawn, y_base=10 if name in ("weight_norm", "slope") else 0)
        for name, label in LOOKED_AT.items()
        if (drawn := curves(results, name))
    ]
    title = "Weights and multipliers in training, the rate a tenth from the middle on"
    curves_figure(panels, path, columns=2, title=title, subtitle=results.about)


EXPERIMENT = Experiment(
    "fixup_multipliers", SCALES, table, figure, schemes=[WITHOUT], columns=columns, lines=lines,
    history_steps={"smoke": 1, "laptop": 50}, probe=probe,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
