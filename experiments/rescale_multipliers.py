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

Setting, `--scale paper`: ResNet-110 on CIFAR-10, 200 epochs, learning rate 0.1 B / 256 = 0.05,
weight decay 5e-4, crop and flip. It needs a GPU, and has not been run here. (On ImageNet, as in the
paper, `rescale_imagenet` trains the networks, without this figure.)

`--scale cifar` is a ResNet-32 on CIFAR-10 for ten epochs, a twentieth of the published 200, with a
weight decay of 5e-3, ten times as large: an hour on two cores. All else is as in `paper`. The
multipliers grow to 3.1 in the mean and stay between 1.5 and 7.3. The weights' norms fall to a
fifth, with multipliers and without. With multipliers the mean gain of the branches falls to 0.08 of
its start within two epochs and recovers to 0.35, through the blocks that begin stages. In 7 of 15
blocks, and in 11 on the digits, the gain ends below that without multipliers, whose mean is 0.06:
there what we expected does not show. `Var` of the last block starts at 0.014 and ends at 4.2 with
multipliers and at 0.85 without. The test accuracy is 67.2% with multipliers and 52.6% without, one
seed.

`--scale laptop` trains a narrow ResNet-32 on the 8x8 digits inside scikit-learn: 1,200 steps,
weight decay 5e-3, ten times as large, since its effect grows with the number of steps; two to four
minutes on two cores. The largest multipliers are those of the first blocks of stages 2 and 3, not
of the deepest blocks. `Var` of the last block starts at 0.003, grows 1,100-fold in the first 200
steps (550-fold without multipliers) and threefold more by the end, to 11 with multipliers and 5
without. The final model is in a proper range, but 3,500 and 1,600 times above its start; we
expected a factor of 10. `--scale smoke` takes seconds a run and shows nothing.

Not as published: CIFAR-10, and its usual weight decay instead of 1e-4; basic blocks of two layers
instead of bottlenecks of three; a constant rate, without warm-up; no dropout.
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

from nf_resnets import analysis, data, models, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure

from . import experiment
from .experiment import OUTCOME, Experiment, Lines, Point, Results, Setup
from .folder import Row
from .images import image_setup, lengths, network, variant_points
from .main import run
from .table import counted, data_title, text_table
from .untrained import normalized

# What a variant leaves out is what the figure shows.
warnings.filterwarnings("ignore", category=schemes.SchemeWarning)

RESCALENET = schemes.get("rescalenet")
VARIANTS = {
    "multipliers": dataclasses.replace(RESCALENET, name="multipliers", title="with multipliers"),
    "without": dataclasses.replace(
        RESCALENET,
        name="without",
        title="without multipliers",
        anatomy=dataclasses.replace(RESCALENET.anatomy, multiplier=False),
    ),
}


MEASURED = (
    "mean_multiplier", "mean_norm_ratio", "mean_gain_ratio", "first_variance", "last_variance"
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the figure's curves depend on."""

    dataset: str
    depth: int
    steps: int
    look_every: int  # steps
    learning_rate: float
    weight_decay: float
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 16
    batch_size: int = 128
    momentum: float = 0.9
    padding: int = 0
    flip: bool = False


SCALES = {
    "smoke": Settings("digits", 8, 4, 2, 0.05, 1e-2, stem_channels=4, batch_size=64),
    "laptop": Settings("digits", 32, 1200, 50, 0.05, 5e-3, stem_channels=8, batch_size=64),
    "cifar": Settings("cifar10", 32, 10 * 390, 195, 0.05, 5e-3, padding=4, flip=True),
    "paper": Settings("cifar10", 110, 200 * 390, 390, 0.05, 5e-4, padding=4, flip=True),
}


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the figure."""

    scale: Literal["smoke", "laptop", "cifar", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; cifar: a ResNet-32 for ten
    epochs, an hour on two cores; paper: as published."""


def blocks_of(params: Any) -> list[dict[str, float]]:
    """Looks at every residual branch ``k = 1..L`` of a tree of this library's models.

    For each branch its ``multiplier``, 1 if it has none, its ``weight_norm``, the Frobenius norm of
    its weights together, and its ``gain``, the multiplier times the product of their norms.
    """
    multipliers = np.nan_to_num(analysis.multipliers(params), nan=1.0)
    return [
        {
            "block": k,
            "multiplier": float(multiplier),
            "weight_norm": float(np.sqrt(np.nansum(norms**2))),
            "gain": float(multiplier * np.nanprod(norms)),
        }
        for k, (multiplier, norms) in enumerate(
            zip(multipliers, analysis.weight_norms(params), strict=True), start=1
        )
    ]


@functools.cache
def last_variances(model: Any) -> Callable[[Any, jax.Array], jax.Array]:
    """``of(params, images)``: `Var` of every block's sum."""
    observed = analysis.observe(model)
    return jax.jit(lambda params, images: analysis.signal(observed, params, images).sum.variance)


def probe(
    settings: Settings, dataset: data.Dataset, point: Point, program: Any, state: Any, step: int
) -> dict[str, Any]:
    """Looks at every block on the way: multiplier, norm of the weights, gain and variance."""
    images = normalized(dataset, dataset.test.images[:128], dataset.test.images.shape[1])
    variances = np.asarray(last_variances(program.model)(state.params, images))
    blocks = zip(blocks_of(state.params), variances.tolist(), strict=True)
    return {"blocks": [{**block, "variance": variance} for block, variance in blocks]}


def lines(settings: Settings, point: Point, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A line for each block at each step that was looked at."""
    return [
        {"step": epoch["step"], **block}
        for epoch in run["history"]
        for block in epoch["measures"].get("blocks", ())
    ]


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs of the figure."""
    every = lengths(dataset, settings.batch_size, settings.steps) | {
        "steps_per_epoch": settings.look_every
    }
    return variant_points(VARIANTS, settings, every)


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one variant."""
    model = network(models.CifarResNet, settings, dataset, point)
    return image_setup(model, dataset, settings, point, draw="own")


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """Means over the blocks, relative to the start, and the last block's variance."""
    seen = lines(settings, point, run)
    count = max(line["block"] for line in seen)
    first, last = seen[:count], seen[-count:]

    def ratio(name: str) -> float:
        pairs = zip(first, last, strict=True)
        return float(np.mean([after[name] / before[name] for before, after in pairs]))

    means = map(ratio, ("multiplier", "weight_norm", "gain"))
    ends = (first[-1]["variance"], last[-1]["variance"])
    return dict(zip(MEASURED, (*means, *ends), strict=True))


def over_steps(lines: list[Mapping[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """The steps looked at, and the mean over the blocks of a column relative to its start."""
    start = {line["block"]: float(line[name]) for line in lines if int(line["step"]) == 0}
    ratios: dict[int, list[float]] = {}
    for line in lines:
        ratios.setdefault(int(line["step"]), []).append(float(line[name]) / start[line["block"]])
    return list(ratios), [float(np.mean(values)) for values in ratios.values()]


def network_of(row: Row) -> str:
    """What the figure calls a run."""
    return f"RescaleNet {row['title']}"


def growth(rows: Sequence[Row]) -> str:
    """What becomes of the multipliers and of the weights of the runs that have multipliers."""
    own = [row for row in rows if row["variant"] == "multipliers" and row["status"] == "finished"]
    if not own:
        return "multipliers: no run finished"
    said = []
    for what, column in (("multipliers", "mean_multiplier"), ("weights' norms", "mean_norm_ratio")):
        ratio = float(np.mean([float(row[column]) for row in own]))
        said.append(f"{what} {'grow' if ratio > 1 else 'shrink'} to {ratio:.2g}")
    return f"{' and its '.join(said)} of their start"


def plot(results: Results, path: Path) -> None:
    """Draws multipliers against blocks at the end, and multipliers, norms and gains over steps."""
    rows, curves, settings = results.rows, results.curves["curves.csv"], results.settings
    panels, multipliers, variances = [], [], []
    for row in rows:
        lines = curves.of(row)
        first, last = (
            [line for line in lines if line["step"] == lines[at]["step"]] for at in (0, -1)
        )
        blocks = [int(line["block"]) for line in last]
        scalars = [float(line["multiplier"]) for line in last]
        multipliers.append(Curve(network_of(row), blocks, scalars, marked=True))
        for when, looked in ((", before training", first), ("", last)):
            sizes = [float(line["variance"]) for line in looked]
            variances.append(Curve(network_of(row) + when, blocks, sizes))
    along = "block k, from the input"
    panels.append(Panel(along, "multiplier s at the end", multipliers))
    panels.append(Panel(along, "Var of each block's sum", variances, y_base=10))
    for name, label in (
        ("multiplier", "multiplier, mean over blocks"),
        ("weight_norm", "norm of the weights / its start"),
        ("gain", "gain of a branch / its start"),
    ):
        drawn = [
            Curve(
                network_of(row),
                *over_steps(curves.of(row), name),
                row["status"] == "diverged",
            )
            for row in rows
        ]
        panels.append(Panel("step", label, drawn))
    drawn = []
    for row in rows:
        last = [line for line in curves.of(row) if line["block"] == row["branches"]]
        sizes = [float(line["variance"]) for line in last]
        drawn.append(Curve(network_of(row), [int(line["step"]) for line in last], sizes))
    panels.append(Panel("step", "Var of the last block's sum", drawn, y_base=10))
    curves_figure(
        panels,
        path,
        columns=3,
        title=f"In ResNet-{settings.depth} RescaleNet's {growth(rows)}",
        subtitle=(
            f"On {data_title(settings.dataset)}, {settings.stem_channels} channels, learning rate "
            f"{settings.learning_rate:g}, weight decay {settings.weight_decay:g}, batch "
            f"{settings.batch_size}, {counted(settings.seeds, 'seed')}"
        ),
    )


def table(results: Results) -> str:
    """One line for each run: means over the blocks relative to the start, and the last's `Var`."""
    cells = [
        ["variant", "seed", "multiplier", "weight norm", "gain", "Var, last block", "at the end",
         "test accuracy (%)"]
    ]  # fmt: skip
    for row in results.rows:
        gone = row["status"] == "diverged"
        test = "diverged" if gone else f"{100 * float(row['test_accuracy']):.1f}"
        values = (f"{float(row[name]):.3g}" for name in MEASURED)
        cells.append([row["title"], row["seed"], *values, test])
    return text_table(cells)


CURVES = Lines(("step", "block", "multiplier", "weight_norm", "gain", "variance"), lines)
EXPERIMENT = Experiment(
    name="rescale_multipliers",
    title="RescaleNet's multipliers",
    description="RescaleNet's multipliers and weights in training.",
    scales=SCALES, command=Command,
    grid=("variants", "seeds"),
    key=("variant", "seed"),
    columns=("variant", "title", "depth", "branches", "seed", *MEASURED, *OUTCOME),
    points=points, setup=setup, probe=probe, row=row, lines={"curves.csv": CURVES},
    table=table, plot=plot,
    heading=lambda results: "At the end, relative to the start, means over the blocks:",
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
