r"""RescaleNet on ImageNet: ResNet-50, ResNet-101 and VGG-19, the biases calibrated on a batch.

Claim: with constants on both paths, weights that shrink with the block's number, a multiplier on
each branch, and biases that are set once from a batch and then learned, deep networks train without
normalisation as well as with it, those without shortcuts included.

Published top-1 test accuracies of RescaleNet (%): ResNet-50 76.57 +- 0.084, ResNet-101 77.55 +-
0.110 (six runs each), not reproduced here. We have no published number for VGG-19.

Setting, `--scale paper`, the paper's and its authors' scripts: ImageNet through TensorFlow Datasets
(`--data-dir`), the usual crops of 224 pixels; 5 epochs of warm-up and 100 after it, weight decay in
RescaleNet on weights only, not on biases and multipliers; the biases are set from 128 training
images; six seeds. It is 131,355 steps a run: days on a GPU, for VGG-19 more.

- ResNets: learning rate 0.1 times batch / 256, divided by 10 when 30, 60 and 90 of the 100 epochs
  are over; dropout of 0.03, of whole channels, after the convolutions of the last two stages, and
  of 0.3 before the head, for BatchNorm too. RescaleNet's branches whose convolutions are followed
  by dropout at rate p are drawn with `(1-p)**0.5` times the standard deviation.
- VGG-19: learning rate 0.01 times batch / 256, divided by 10 when 60 and 90 of the 100 epochs are
  over (30, 60 and 90 with BatchNorm); dropout of 0.5 after the two hidden dense layers, none after
  convolutions; RescaleNet's weights are He (fan_out), the head's included.

Not as published, or not known: the biases are set from 128 images, cropped in the middle; the
authors take the mean of the first eight training batches. The blocks are counted as in the author
feedback, and the head's bias vector has no weight decay in RescaleNet (`rescalenet_published` has
both as in the code). BatchNorm has its statistics over slices of 32 and starts from scales of 1 and
He (fan_in); in the authors' code the last scale of a branch is 0, VGG's convolutions are He
(fan_out), and its dense layers N(0, 0.01^2). Two rows are ours (the same network with the biases
left at 0; the plain one with He's weights); they have the recipe of the network without
normalisation.

`--scale laptop` writes the handwritten digits inside scikit-learn as JPEG files and streams them to
ResNet-50 and VGG-19 with an eighth of the channels, in six minutes on two cores. Both networks have
the ResNets' recipe in 10 epochs, without the factor for dropout. BatchNorm and the plain networks
have no dropout; all have weight decay on the leaves that RescaleNet has it on. It can show that
RescaleNet trains both networks without normalisation while the plain ones do not train, and the
effect of the calibration on the first steps, but nothing about accuracies on ImageNet. Its one
seed, 0, is the best of six for calibrated biases: `--networks resnet50 --variants rescalenet
uncalibrated --seeds 0 1 2 3 4 5` gives 47.0 +- 15.4% with them and 74.3 +- 16.3% without. With
`--rate 0.4 --seeds 0 1 2` it is 71.1 +- 13.0% and 77.8 +- 13.5%: calibrated biases have a fourth of
the gradient at the start, and the rate falls after 66 steps. `--scale smoke` takes seconds a run
and shows nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import init, models, optim, schemes
from nf_resnets.plotting.answers import listed
from nf_resnets.training import Start

from . import imagenet
from .experiment import Experiment, Point, Results, Setup
from .folder import Row
from .imagenet import OUTCOME, Images, Streamed
from .main import run
from .table import accuracy_cell, grouped, published_cell, spread_cell, text_table

NETWORKS = {"resnet50": "ResNet-50", "resnet101": "ResNet-101", "vgg19": "VGG-19"}
PUBLISHED = {"resnet50": 76.57, "resnet101": 77.55}
"""RescaleNet's top-1 test accuracies on ImageNet (%)."""

RESCALENET = schemes.get("rescalenet")
REGULARIZED = dataclasses.replace(
    RESCALENET, anatomy=dataclasses.replace(RESCALENET.anatomy, dropout=True)
)
VARIANTS = {
    "rescalenet": REGULARIZED,
    "uncalibrated": dataclasses.replace(
        REGULARIZED, name="uncalibrated", title="RescaleNet, biases at 0", calibrate=None
    ),
    "batchnorm": schemes.get("batchnorm"),
    "plain": schemes.get("plain"),
}


def after_warmup(*epochs: int) -> tuple[float, ...]:
    """The fraction of a run of 5 + 100 epochs that is over so many epochs after the warm-up."""
    return tuple((5 + epoch) / 105 for epoch in epochs)


@dataclasses.dataclass(frozen=True)
class Published:
    """What the authors' scripts have beyond RescaleNet's recipe for ResNets.

    All rows have dropout, each the weight decay of its own scheme; RescaleNet's weights are scaled
    for dropout; and VGG-19 has a recipe of its own, with He (fan_out).
    """

    vgg_rate: float = 0.01  # at batch 256; in proportion to the batch
    vgg_drops: tuple[float, ...] = after_warmup(60, 90)  # with BatchNorm those of the ResNets
    vgg_dropout: float = 0.5  # after the hidden dense layers


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    images: Images
    epochs: int
    networks: tuple[str, ...] = tuple(NETWORKS)
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 64
    classifier: tuple[int, ...] = (4096, 4096)  # VGG's dense layers
    pool_size: int = 7  # of VGG's last feature map
    batch_size: int = 1024
    micro_batch: int = 256  # examples of a step in memory at a time, at most
    steps: int | None = None  # None: those of the epochs
    rate: float = 0.1  # at batch 256; in proportion to the batch
    warmup_epochs: float = 5.0
    drops: tuple[float, ...] = (0.3, 0.6, 0.9)  # of the run, where the rate is divided by 10
    momentum: float = 0.9
    weight_decay: float = 1e-4
    conv_dropout: float = 0.03
    dropout: float = 0.3
    slice_size: int = 32  # of BatchNorm's statistics
    published: Published | None = None  # None: RescaleNet's recipe for ResNets in all rows


SCALES = {
    "smoke": Settings(
        dataclasses.replace(imagenet.SMALL_IMAGES, most=80), epochs=1,
        networks=("resnet50", "vgg19"), variants=("rescalenet", "batchnorm"), stem_channels=4,
        classifier=(), pool_size=1, batch_size=32, warmup_epochs=0.0,
    ),
    "laptop": Settings(
        imagenet.SMALL_IMAGES, epochs=10, networks=("resnet50", "vgg19"), stem_channels=8,
        classifier=(), pool_size=1, batch_size=64, warmup_epochs=0.5,
    ),
    "paper": Settings(
        Images(), epochs=105, seeds=(0, 1, 2, 3, 4, 5), drops=after_warmup(30, 60, 90),
        published=Published(),
    ),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(imagenet.Command):
    """The options of the table."""

    networks: tuple[str, ...] = ()
    """Networks, with spaces between; by default those of the scale."""
    rate: float | None = None
    """The learning rate of the ResNets at batch 256; by default the scale's."""


def check(settings: Settings, command: Command) -> Settings:
    """Refuses a rate that is none."""
    if command.rate is not None and not 0 < command.rate < float("inf"):
        raise ValueError(f"--rate {command.rate:g} found; expected a finite number above 0.")
    return settings


def points(settings: Settings, streamed: Streamed, rows: Sequence[Row]) -> list[Point]:
    """The runs of the table."""
    grid = itertools.product(settings.networks, settings.variants, settings.seeds)
    rates = {each: {"learning_rate": rate_of(settings, each)} for each in settings.networks}
    return [
        Point(
            key={"network": network, "variant": name, "seed": seed},
            title=VARIANTS[name].title,
            start=Start(scheme_of(settings, network, name), seed, rates[network]),
            program=(network, name),
            label=f"{NETWORKS[network]}, {VARIANTS[name].title}, seed {seed}",
            **imagenet.lengths(streamed, settings.batch_size, settings.epochs, settings.steps),
        )
        for network, name, seed in grid
    ]


@functools.cache
def scheme_of(settings: Settings, network: str, name: str) -> schemes.Scheme:
    """The scheme of a row: the variant's, drawn as the settings have it."""
    model = make_model(settings, network, name, num_classes=1000)
    scheme: schemes.Scheme = model.scheme
    if settings.published is None or scheme.init is not init.rescalenet:
        return scheme
    own = {"published": True} if network == "vgg19" else {"dropout": model.branch_dropout}
    return dataclasses.replace(scheme, init=functools.partial(init.rescalenet, **own))


def dropout_of(settings: Settings, network: str, name: str) -> tuple[float, float]:
    """The rates of dropout of a row: after convolutions, and before the head or VGG's layers."""
    if settings.published is None:
        regularized = VARIANTS[name].anatomy.dropout
        return (settings.conv_dropout, settings.dropout) if regularized else (0.0, 0.0)
    if network == "vgg19":
        return 0.0, settings.published.vgg_dropout
    return settings.conv_dropout, settings.dropout


def rate_of(settings: Settings, network: str) -> float:
    """The learning rate of a network after the warm-up."""
    rate = settings.rate
    if settings.published is not None and network == "vgg19":
        rate = settings.published.vgg_rate
    return rate * settings.batch_size / 256


def drops_of(settings: Settings, network: str, name: str) -> tuple[float, ...]:
    """The shares of the run after which the rate of a row is divided by 10."""
    if settings.published is None or network != "vgg19" or VARIANTS[name].anatomy.normalized:
        return settings.drops
    return settings.published.vgg_drops


def make_model(settings: Settings, network: str, name: str, num_classes: int) -> Any:
    """Makes one of the three networks."""
    conv_dropout, dropout = dropout_of(settings, network, name)
    anatomy = VARIANTS[name].anatomy
    common = {
        "scheme": dataclasses.replace(
            VARIANTS[name], anatomy=dataclasses.replace(anatomy, dropout=dropout > 0)
        ),
        "num_classes": num_classes,
        "stem_channels": settings.stem_channels,
        "dropout": dropout,
        "bn_groups": max(1, settings.batch_size // settings.slice_size),
    }
    if network == "vgg19":
        return models.VGG(
            depth=19, classifier=settings.classifier, pool_size=settings.pool_size, **common
        )
    return models.ResNet(
        depth=int(network.removeprefix("resnet")), conv_dropout=conv_dropout, **common
    )


def setup(settings: Settings, streamed: Streamed, point: Point) -> Setup:
    """Network, optimizer and steps of one network and variant."""
    network, name = point.key["network"], point.key["variant"]
    model = make_model(settings, network, name, streamed.num_classes)
    boundaries = imagenet.drops_at(drops_of(settings, network, name), point.num_steps)
    warmup = round(settings.warmup_epochs * streamed.steps(settings.batch_size))

    def schedule(rate: Any) -> Any:
        decayed = optim.step_decay(rate, boundaries, 0.1)
        return optim.warmup(decayed, min(point.num_steps, warmup), point.num_steps)

    return imagenet.streamed_setup(
        model,
        settings,
        streamed,
        point,
        schedule=schedule,
        micro_batch=settings.micro_batch,
        scheme=RESCALENET if settings.published is None else None,
    )


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The published accuracy, and the columns of a streamed run."""
    known = published(point.key["network"], point.key["variant"])
    return {"published_accuracy": known or "", **imagenet.row(settings, point, run)}


def published(network: str, name: str) -> float | None:
    """What the paper has for a row, if anything is at hand."""
    return PUBLISHED.get(network) if name == "rescalenet" else None


def table(results: Results) -> str:
    """Test accuracies: mean and spread over the seeds, and what was published on ImageNet."""
    cells = [["network", "method", "train accuracy", "test accuracy", "published"]]
    for (network, name), rows in grouped(results.rows, "network", "variant").items():
        train, known = accuracy_cell(rows, "train_accuracy"), published(network, name)
        which = (NETWORKS[network], VARIANTS[name].title)
        cells.append([*which, train, spread_cell(rows), published_cell(known, 2)])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws the training accuracy of every run, a panel for each network."""
    settings = results.settings
    rates: dict[float, list[str]] = {}
    for network in settings.networks:
        rates.setdefault(rate_of(settings, network), []).append(NETWORKS[network])
    words = [
        f"{rate:g}" + f" ({listed(names)})" * (len(rates) > 1) for rate, names in rates.items()
    ]
    of_network = grouped(results.rows, "network").items()
    imagenet.plot_panels(
        results,
        {NETWORKS[network]: rows for (network,), rows in of_network},
        path,
        at="as",
        subtitle=f"batch {settings.batch_size}, learning rate {', '.join(words)}",
    )


WHAT_IT_SHOWS = {
    "smoke": "These runs are too short to show anything.",
    "laptop": (
        "This shows whether RescaleNet trains networks with and without shortcuts without "
        "normalisation, and what its calibrated biases do.\nIt cannot show ImageNet's accuracies "
        "(--scale paper)."
    ),
    "paper": "",
}


EXPERIMENT = Experiment(
    name="rescale_imagenet",
    title="RescaleNet on ImageNet",
    description="Train RescaleNet on ImageNet, its biases calibrated.",
    scales=SCALES, command=Command, check=check, load=imagenet.load,
    grid=("networks", "variants", "seeds"),
    choices={"networks": tuple(NETWORKS), "variants": tuple(VARIANTS)},
    key=("network", "variant", "seed"),
    columns=("network", "variant", "seed", "title", "published_accuracy", *OUTCOME),
    points=points, setup=setup, row=row, lines={"curves.csv": imagenet.CURVES},
    table=table, plot=plot, heading=imagenet.heading,
    note=functools.partial(imagenet.note, WHAT_IT_SHOWS),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
