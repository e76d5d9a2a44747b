r"""RescaleNet on ImageNet: ResNet-50, ResNet-101 and VGG-19, the biases calibrated on a batch.

Claim: with constants on both paths, weights that shrink with the block's number, a multiplier on
each branch, and biases that are set once from a batch and then learned, deep networks train without
normalization as well as with it, those without shortcuts included.

Published top-1 test accuracies of RescaleNet (%): ResNet-50 76.57 +- 0.084, ResNet-101 77.55 +-
0.110 (six runs each), not reproduced here. We have no published number for VGG-19.

Setting, `--scale paper`, the paper's and its authors' scripts: ImageNet through TensorFlow Datasets
(`--data-dir`), the usual crops of 224 pixels; 5 epochs of warm-up and 100 after it, weight decay in
RescaleNet on weights only, not on biases and multipliers; the biases are set from 128 training
images; six seeds. It is 131,355 steps a run: days on a GPU, for VGG-19 more.

- ResNets: learning rate 0.1 times batch / 256; dropout of 0.03, of whole channels, after the
  convolutions of the last two stages, and of 0.3 before the head, for BatchNorm too. RescaleNet's
  branches whose convolutions are followed by dropout at rate p are drawn with `(1-p)**0.5` times
  the standard deviation.
- VGG-19: learning rate 0.01 times batch / 256, which falls once less than BatchNorm's; dropout of
  0.5 after the two hidden dense layers, none after convolutions; RescaleNet's weights are He
  (fan_out), the head's included.

Not as published, or not known: the biases are set from 128 images, cropped in the middle; the
authors take the mean of the first eight training batches. The blocks are counted as in the author
feedback, and the head's bias vector has no weight decay in RescaleNet (`rescalenet_published` has
both as in the code). BatchNorm has its statistics over slices of 32 and starts from scales of 1 and
He (fan_in); in the authors' code the last scale of a branch is 0, VGG's convolutions are He
(fan_out), and its dense layers N(0, 0.01^2). Biases left at 0 and the plain network are ours.

`--scale laptop` streams the digits (`experiments.imagenet`) to ResNet-50 and VGG-19 with an eighth
of the channels, by the ResNets' recipe (but without that factor) in 10 epochs, in six minutes on
two cores. BatchNorm and the plain networks have no dropout; all have weight decay on the leaves
that RescaleNet has it on. Its one seed, 0, is the best of six for calibrated biases: six seeds give
ResNet-50 47.0 +- 15.4% with them and 74.3 +- 16.3% without. At four times the rate it is, for
three, 71.1 +- 13.0% and 77.8 +- 13.5%.

Criterion of VGG-19 with a quarter of the channels, `--grid model=vgg-19 stem_channels=16 seed=0:2`,
fixed before its runs: "very competitive" (author feedback) shows if the mean of RescaleNet's three
seeds is at most 10 points below BatchNorm's, and at least 10 above the plain network's.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from nf_resnets import init, models, schemes

from . import imagenet
from .experiment import Results, Row
from .grid import Point, grid, scheme_with
from .main import run
from .table import accuracy_cell, grouped, published_cell, spread_cell, text_table

NETWORKS = ("resnet-50", "resnet-101", "vgg-19")
PUBLISHED = {"ResNet-50": 76.57, "ResNet-101": 77.55}
"""RescaleNet's top-1 test accuracies on ImageNet (%)."""
DROPOUT = {"conv_dropout": 0.03, "dropout": 0.3}

AT_ZERO = {"title": "RescaleNet, biases at 0", "calibrate": None}
WITH, WITHOUT = {"dropout": True}, {"dropout": False}
GROUPS = {
    name: getattr(schemes.get("rescalenet"), name)
    for name in ("scalars", "scalar_factor", "undecayed")
}
ONE_RECIPE = (
    scheme_with("rescalenet", "rescalenet_dropout", WITH),
    scheme_with("rescalenet", "rescalenet_at_0", WITH, **AT_ZERO),
    *(
        scheme_with(name, f"{name}_as_rescalenet", WITHOUT, **GROUPS)
        for name in ("batchnorm", "plain")
    ),
)
"""RescaleNet's recipe for ResNets in all rows."""


def of_scripts(network: str) -> tuple[schemes.Scheme, ...]:
    """The rows of the authors' scripts: dropout in all, each the weight decay of its own scheme.

    RescaleNet's weights are scaled for dropout; VGG-19 has a recipe of its own, with He (fan_out).
    """
    drawn: dict[str, Any] = {"published": True}
    if network != "vgg-19":
        model = models.make(network, ONE_RECIPE[0], num_classes=1000, **DROPOUT)
        drawn = {"dropout": model.branch_dropout}
    how = {"init": functools.partial(init.rescalenet, **drawn)}
    return (
        scheme_with("rescalenet", f"rescalenet_{network}", WITH, **how),
        scheme_with("rescalenet", f"rescalenet_at_0_{network}", WITH, **how, **AT_ZERO),
        *(scheme_with(name, f"{name}_{network}", WITH) for name in ("batchnorm", "plain")),
    )


def after_warmup(*epochs: int) -> str:
    """The parts of a run of 5 + 100 epochs that are over so many epochs after the warm-up."""
    return " ".join(str((5 + epoch) / 105) for epoch in epochs)


IMAGENET = imagenet.IMAGENET | {
    "epochs": 105, "batch_size": 1024, "micro_batch": 256, "warmup_epochs": 5.0, "peak_lr": 0.4,
    "ghost_batch": 32, "scalar_factor": None, "drops": after_warmup(30, 60, 90),
}  # fmt: skip
DIGITS = IMAGENET | imagenet.SMALL | {
    "epochs": 10, "batch_size": 64, "micro_batch": 256, "warmup_epochs": 0.5, "peak_lr": 0.025,
    "scalar_factor": None, "drops": "0.3 0.6 0.9",
}  # fmt: skip
SMOKE = DIGITS | {
    "epochs": 1, "batch_size": 32, "warmup_epochs": 0.0, "peak_lr": 0.0125, "most": 80,
    "stem_channels": 4,
}  # fmt: skip
SCRIPTS = {network: of_scripts(network) for network in NETWORKS}


def paper(network: str) -> list[Point]:
    """The rows of a network, by the authors' scripts."""
    points = grid(
        {**IMAGENET, "model": network},
        scheme=[scheme.name for scheme in SCRIPTS[network]], seed=range(6),
    )  # fmt: skip
    if network == "vgg-19":
        for point in points:
            point["peak_lr"] = 0.04
            if not point["scheme"].startswith("batchnorm"):
                point["drops"] = after_warmup(60, 90)
    return points


RECIPE = [scheme.name for scheme in ONE_RECIPE]
SCALES = {
    "smoke": grid(SMOKE, model=["resnet-50", "vgg-19"], scheme=RECIPE[::2], seed=[0]),
    "laptop": grid(DIGITS, model=["resnet-50", "vgg-19"], scheme=RECIPE, seed=[0]),
    "paper": [point for network in NETWORKS for point in paper(network)],
}


def options(point: Point) -> dict[str, Any]:
    """Dropout after convolutions and before the head, and VGG's dense layers."""
    dropout = schemes.get(point["scheme"]).anatomy.dropout
    if point["model"] != "vgg-19":
        return DROPOUT if dropout else {}
    small = point["dataset"] == imagenet.DIGITS
    layers = {"classifier": (), "pool_size": 1} if small else {"classifier": (4096, 4096)}
    rate = (DROPOUT["dropout"] if small else 0.5) if dropout else 0.0
    return {**layers, "dropout": rate}


def columns(row: Row) -> Row:
    """The network, and the columns of a streamed run."""
    return {"network": row["model"].replace("-", ""), **imagenet.columns(row)}


def name_of(network: str) -> str:
    """A network as tables call it.

    >>> name_of("resnet50"), name_of("vgg19")
    ('ResNet-50', 'VGG-19')
    """
    return network.replace("resnet", "ResNet-").replace("vgg", "VGG-")


def table(results: Results) -> str:
    """Test accuracies: mean and spread over the seeds, and what was published on ImageNet."""
    cells = [["network", "method", "train accuracy", "test accuracy", "published"]]
    for (network, title), rows in grouped(results.rows, "network", "title").items():
        name = name_of(network)
        published = published_cell(PUBLISHED.get(name) if title == "RescaleNet" else None, 2)
        train = accuracy_cell(rows, "train_accuracy")
        cells.append([name, title, train, spread_cell(rows), published])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the training accuracy of every run, a panel for each network."""
    of = grouped(results.rows, "network").items()
    imagenet.panels_figure(results, {name_of(network): rows for (network,), rows in of}, path)


EXPERIMENT: Any = imagenet.experiment(
    "rescale_imagenet", SCALES, table, figure, options=options, columns=columns,
    schemes=(*ONE_RECIPE, *(scheme for each in SCRIPTS.values() for scheme in each)),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
