r"""RescaleNet's learned multipliers, and the weights that shrink while they grow.

Claim (author feedback): a trained RescaleNet-50 has the multipliers, from the shallow blocks to the
deep ones, "11.073, 10.339, 10.310, 14.467, 10.082, 13.121, 14.276, 16.991, 12.647, 15.192, 15.548,
17.261, 18.033, 27.445, 23.516, 27.258", for "the convolution weights shrink in the training due to
weight decay [...], thus the large scalars can compensate for the shrink to keep the output
variance", and the learned scalars give "deeper blocks" more weight. That network was trained on
ImageNet for 100 epochs, at batch 1024, with weight decay on the weights only.

"Experiments show that the variance of the last block output is always in a proper range in the
final model". The feedback has no numbers for this.

Expected here: all multipliers start at 1 and grow. The norm of every block's weights falls below
its start, with multipliers and without. The gain of a branch, `s_k * prod_j ||W_kj|| /
||W_kj(0)||`, falls less with multipliers than without. `Var` of the last block's sum (the channels'
variance over images and positions, before the ReLU, of 128 test images) stays within a factor of 10
of its start. Multipliers as large as the feedback's need its number of steps; larger ones in deeper
blocks may need its network.

Setting, `--scale paper`: ResNet-110 on CIFAR-10, 200 epochs, learning rate 0.1 B / 256 = 0.05. It
needs a GPU, and has not been run here. `--scale cifar` is a ResNet-32 for ten epochs, an hour on
two cores, `--scale laptop` a narrow one on the 8x8 digits, two to four minutes; both have ten times
the weight decay, since its effect grows with the number of steps.

Full trainings, whose criteria are fixed before them: the ResNet-20 of `fixup_table1_resnet110
--scale cifar`, 20 epochs, its rates, draw and order, a weight decay of 5e-4, seeds 2 and 3;
`--scale cifar --grid scheme=rescalenet_with_multipliers model=cifar-resnet-20 epochs=20
peak_lr=0.1 schedule=step draw=fan_out weight_decay=5e-4 seed=2,3` here, BatchNorm there. The
multipliers grow if all are above 1 at the end, deeper blocks get more weight if multiplier and
block have a rank correlation above 0.5, and the variance is in a proper range if the last block's
`Var` ends within a factor of 10 of its start, each in both seeds. RescaleNet matches BatchNorm if
their mean test errors differ by less than the larger standard deviation of the two, or by half a
point.

Not as published: CIFAR-10, and its usual weight decay instead of 1e-4; basic blocks of two layers
instead of bottlenecks of three; a constant rate, without warm-up; no dropout.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.stats import spearmanr

from nf_resnets import analysis
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, curves_of

from .experiment import Experiment, Results, Row
from .grid import grid, scheme_with
from .main import run
from .table import text_table
from .untrained import forward, normalized

SCHEMES = tuple(
    scheme_with(
        "rescalenet", f"rescalenet_{word}_multipliers", {"multiplier": word == "with"},
        title=f"{word} multipliers",
    )
    for word in ("with", "without")
)  # fmt: skip
MEASURED = (
    "mean_multiplier", "mean_norm_ratio", "mean_gain_ratio", "first_variance", "last_variance"
)  # fmt: skip
RANK = "rank_correlation"  # of multiplier and block, where the multipliers differ

CIFAR10 = {
    "dataset": "cifar10", "model": "cifar-resnet-32", "steps": 10 * 390, "batch_size": 128,
    "stem_channels": 16, "peak_lr": 0.05, "schedule": "constant", "weight_decay": 5e-3,
    "draw": "own", "padding": 4, "flip": True, "evaluate_every": 0,
}  # fmt: skip
DIGITS = CIFAR10 | {
    "dataset": "digits", "steps": 1200, "batch_size": 64, "stem_channels": 8, "padding": 0,
    "flip": False,
}  # fmt: skip
SMOKE = {"model": "cifar-resnet-8", "steps": 4, "weight_decay": 1e-2, "stem_channels": 4}
PAPER = {"model": "cifar-resnet-110", "steps": 200 * 390, "weight_decay": 5e-4}
NAMES = [scheme.name for scheme in SCHEMES]
SCALES = {
    "smoke": grid(DIGITS | SMOKE, scheme=NAMES, seed=[0]),
    "laptop": grid(DIGITS, scheme=NAMES, seed=[0]),
    "cifar": grid(CIFAR10, scheme=NAMES, seed=[0]),
    "paper": grid(CIFAR10 | PAPER, scheme=NAMES, seed=[0]),
}


def blocks_of(params: Any) -> list[dict[str, float]]:
    """Looks at every residual branch ``k = 1..L`` of a tree of this library's models.

    For each branch its ``multiplier``, 1 if it has none, its ``weight_norm``, the Frobenius norm of
    its weights together, and its ``gain``, the multiplier times the product of their norms.
    """
    multipliers = np.nan_to_num(analysis.multipliers(params), nan=1.0)
    pairs = zip(multipliers, analysis.weight_norms(params), strict=True)
    return [
        {
            "block": k,
            "multiplier": float(multiplier),
            "weight_norm": float(np.sqrt(np.nansum(norms**2))),
            "gain": float(multiplier * np.nanprod(norms)),
        }
        for k, (multiplier, norms) in enumerate(pairs, start=1)
    ]


@functools.cache
def last_variances(model: Any) -> Callable[[Any, jax.Array], jax.Array]:
    """``of(params, images)``: `Var` of every block's sum."""
    network = forward(model)
    return jax.jit(lambda params, images: analysis.signal(network, params, images).sum.variance)


def probe(task: Any, program: Any, plan: Any, state: Any, step: int) -> dict[str, Any]:
    """Looks at every block on the way: multiplier, norm of the weights, gain and variance."""
    dataset = task.dataset(plan.settings["dataset"])
    images = normalized(dataset, dataset.test.images[:128], dataset.test.images.shape[1])
    variances = np.asarray(last_variances(program.model)(state.params, images))
    blocks = zip(blocks_of(state.params), variances.tolist(), strict=True)
    return {"blocks": [{**block, "variance": variance} for block, variance in blocks]}


def lines(row: Row) -> list[Row]:
    """A line for each block at each step that was looked at."""
    return [
        {"step": epoch["step"], **block}
        for epoch in row["history"]
        for block in epoch["measures"].get("blocks", ())
    ]


def columns(row: Row) -> Row:
    """Means over the blocks, relative to the start, the last block's variance, and `RANK`."""
    looks = lines(row)
    count = max(line["block"] for line in looks)
    first, last = looks[:count], looks[-count:]

    def ratio(name: str) -> float:
        pairs = zip(first, last, strict=True)
        return float(np.mean([after[name] / before[name] for before, after in pairs]))

    means = map(ratio, ("multiplier", "weight_norm", "gain"))
    ends = (first[-1]["variance"], last[-1]["variance"])
    measured = dict(zip(MEASURED, (*means, *ends), strict=True))
    multipliers = [line["multiplier"] for line in last]
    if max(multipliers) > min(multipliers):
        measured[RANK] = float(spearmanr(range(count), multipliers).statistic)
    return measured


def over_steps(lines: list[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps looked at, and the mean over the blocks of a column relative to its start."""
    start = {line["block"]: float(line[name]) for line in lines if int(line["step"]) == 0}
    ratios: dict[int, list[float]] = {}
    for line in lines:
        ratios.setdefault(int(line["step"]), []).append(float(line[name]) / start[line["block"]])
    return list(ratios), [float(np.mean(values)) for values in ratios.values()]


def figure(results: Results, path: Path) -> None:
    """Draws multipliers against blocks at the end, and multipliers, norms and gains over steps."""
    ends: dict[str, list[Curve]] = {"multiplier": [], "variance": []}
    ways: dict[str, list[Curve]] = {"multiplier": [], "weight_norm": [], "gain": [], "variance": []}
    for row in results.rows:
        title, gone = f"RescaleNet {row['title']}", row["status"] == "diverged"
        looks = [{**line, "title": title} for line in results.curve(row)]
        first, last = ([x for x in looks if x["step"] == looks[at]["step"]] for at in (0, -1))
        before = [{**line, "title": f"{title}, before training"} for line in first]
        (multipliers,) = curves_of(last, "block", "multiplier")
        ends["multiplier"].append(dataclasses.replace(multipliers, marked=True))
        ends["variance"] += curves_of([*before, *last], "block", "variance")
        for name in ("multiplier", "weight_norm", "gain"):
            ways[name].append(Curve(title, *over_steps(looks, name), gone))
        deepest = [line for line in looks if int(line["block"]) == len(last)]
        ways["variance"] += curves_of(deepest, "step", "variance")
    along = "block k, from the input"
    panels = [
        Panel(along, "multiplier s at the end", ends["multiplier"]),
        Panel(along, "Var of each block's sum", ends["variance"], y_base=10),
        Panel("step", "multiplier, mean over blocks", ways["multiplier"]),
        Panel("step", "norm of the weights / its start", ways["weight_norm"]),
        Panel("step", "gain of a branch / its start", ways["gain"]),
        Panel("step", "Var of the last block's sum", ways["variance"], y_base=10),
    ]
    title = "RescaleNet's multipliers, weights and variances in training"
    curves_figure(panels, path, columns=3, title=title, subtitle=results.about)


def table(results: Results) -> str:
    """One line for each run: means over the blocks relative to the start, and the last's `Var`."""
    cells = [["variant", "seed", "multiplier", "weight norm", "gain", "Var, last block",
              "at the end", "test accuracy (%)"]]  # fmt: skip
    for row in results.rows:
        gone = row["status"] == "diverged"
        test = "diverged" if gone else f"{100 * float(row['test_accuracy']):.1f}"
        values = (f"{float(row[name]):.3g}" for name in MEASURED)
        cells.append([row["title"], str(row["seed"]), *values, test])
    return text_table(cells)


EXPERIMENT = Experiment(
    "rescale_multipliers", SCALES, table, figure, schemes=SCHEMES, columns=columns, lines=lines,
    history_steps={"smoke": 2, "laptop": 50, "cifar": 195, "paper": 390}, probe=probe,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
