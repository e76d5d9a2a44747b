r"""Fixup's table 1: the test error of ResNet-110 on CIFAR-10 with and without normalisation.

Claim (section 4.2): "Fixup obtains 7% relative improvement in test error compared with standard
initialization", "is trained with the same learning rate and converge[s] as fast as network with
batch normalization", while "we fail to train a Xavier initialized ResNet-110 with 0.1x maximal
learning rate". The gap to BatchNorm "is likely due to the regularization effect of BatchNorm".

Published, test error in percent, mean or median of five runs:

    ResNet-110             normalised   large rate   test error
    BatchNorm              yes          yes          6.61 (He et al. 2016)
    Xavier                 no           no           7.78 (Shang et al. 2017)
    Fixup                  no           yes          7.24

Setting, `--scale paper`: batch 128, 200 epochs, learning rate 0.1, a tenth of it from epoch 100 and
a hundredth from 150, momentum 0.9, weight decay 1e-4, crop and flip, Fixup's scalars at a tenth of
the rate (the authors' code always, the paper only with mixup). Xavier is trained at a tenth of the
rate, where it failed, and at a hundredth. It needs a GPU, and has not been run here.

`--scale cifar` is a ResNet-20 on CIFAR-10 for 20 epochs, a tenth of the published 200. The rate
falls after the same parts of the run, 10 and 15 epochs; all else is as published. SkipInit,
RescaleNet and Fixup with mixup (alpha 1) train by the same recipe. He et al. publish 8.75% for
BatchNorm after 64,000 steps, 8.2 times as many. Three seeds; a run takes 0.6 to 3.3 hours on one
core. Of two seeds the test errors are 12.64% (BatchNorm), 13.00% (RescaleNet), 14.45% (Fixup),
16.23% (Fixup with mixup) and 18.68% (SkipInit, which was tried at this one rate, its alpha at it,
too).

`--scale laptop` trains a ResNet-110 with half the channels on the 8x8 digits inside scikit-learn:
220 steps (ten epochs), three seeds, three minutes on two cores. It can show only which networks
train, and at which rate (the third column of the table): errors on the digits say nothing about
those on CIFAR-10. `--scale smoke` takes seconds a run and shows nothing.

Tried besides, one seed: with fewer layers BatchNorm is ahead early. With `--depth 20 --seeds 0
--variants batchnorm fixup` it classifies 96% of the training batches of steps 46 to 50, Fixup 39%;
the test errors at the end are 0.83% and 1.94%. At `--depth 56` it is 69% and 40%, at the end 4.17%
and 0.83%. Fixup is the faster one at 110 layers only.

Not as published: the pixels are divided by the standard deviation over all training images (0.25),
the published code has a smaller one (0.20); an epoch has 390 steps, without the last 80 images; the
head's biases train at the full rate, in the published code all biases at a tenth. He et al. trained
BatchNorm's network for 64,000 steps, which are 164 epochs, and warmed up at a tenth of the rate;
Shang et al. do not say at what rate theirs was trained. `laptop` tests BatchNorm with the
statistics of four training batches at the final weights.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nf_resnets import data, models, optim, schemes
from nf_resnets.plotting.curves import Panel, curves_figure
from nf_resnets.training import Start

from . import experiment
from .experiment import (
    OUTCOME,
    Experiment,
    Point,
    Results,
    Setup,
    curve_lines,
    mean_curves,
)
from .findings import RULE, who_trains
from .folder import Row
from .images import image_setup, lengths, network
from .main import run
from .table import data_title, error_cells, grouped, published_cell, seeds_shown, text_table


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A published recipe of training: SGD whose rate falls in steps, on augmented images."""

    learning_rate: float = 0.1
    batch_size: int = 128
    epochs: int = 200
    drops: tuple[float, ...] = (0.5, 0.75)  # of the run, after which the rate falls
    factor: float = 0.1  # what the rate is multiplied by each time
    momentum: float = 0.9
    weight_decay: float = 1e-4  # the coefficient of L2, which goes through the momentum
    scalar_factor: float = 0.1  # of the rate, for what the scheme trains slowly
    padding: int = 0  # pixels of zeros on each side before the random crop; 0 for no crop
    flip: bool = False
    mixup: float = 0.0  # alpha; 0 for none
    cutout: int = 0  # pixels on each side of the square; 0 for none
    bn_estimate_batches: int = 0  # 0: test with the running statistics


def run_lengths(recipe: Recipe, dataset: data.Dataset, steps: int | None) -> dict[str, int]:
    """The lengths of a run, by default of the recipe's epochs."""
    epoch = lengths(dataset, recipe.batch_size)["steps_per_epoch"]
    return lengths(dataset, recipe.batch_size, steps or recipe.epochs * epoch)


def boundaries(recipe: Recipe, steps: int) -> tuple[int, ...]:
    """The steps from which on the rate is lower.

    >>> boundaries(Recipe(drops=(0.3, 0.6, 0.8)), 200 * 390)
    (23400, 46800, 62400)
    """
    return tuple(max(1, round(part * steps)) for part in recipe.drops)


def recipe_setup(model: Any, recipe: Recipe, dataset: data.Dataset, point: Point) -> Setup:
    """A network that is trained by a recipe."""

    def schedule(rate: Any) -> Any:
        return optim.step_decay(rate, boundaries(recipe, point.num_steps), recipe.factor)

    more = {"draw": "fan_out", "scalar_factor": recipe.scalar_factor}
    return image_setup(model, dataset, recipe, point, schedule=schedule, **more)


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of the table: its scheme, and the published test errors in percent."""

    title: str
    scheme: str
    rate: float = 1.0  # times the recipe's learning rate
    mixup: float = 0.0  # alpha; 0 for none
    published: dict[int, float] = dataclasses.field(default_factory=dict)  # by depth


VARIANTS = {
    "batchnorm": Variant("BatchNorm", "batchnorm", published={20: 8.75, 110: 6.61}),
    "fixup": Variant("Fixup", "fixup", published={110: 7.24}),
    "xavier_tenth": Variant("Xavier, 0.1x rate", "xavier", rate=0.1),
    "xavier_hundredth": Variant("Xavier, 0.01x rate", "xavier", rate=0.01, published={110: 7.78}),
    "skipinit": Variant("SkipInit", "skipinit"),
    "rescalenet": Variant("RescaleNet", "rescalenet"),
    "fixup_mixup": Variant("Fixup + mixup", "fixup", mixup=1.0),
}

TABLE = ("batchnorm", "fixup", "xavier_tenth", "xavier_hundredth")
"""The rows of the paper's table."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    dataset: str
    depth: int = 110
    variants: tuple[str, ...] = TABLE
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 16
    steps: int | None = None  # None: the recipe's epochs
    recipe: Recipe = Recipe()
    points: int = 200  # of a run's curve


SCALES = {
    "smoke": Settings("digits", 8, stem_channels=4, steps=8, recipe=Recipe(batch_size=64)),
    "laptop": Settings(
        "digits", seeds=(0, 1, 2), stem_channels=8,
        recipe=Recipe(batch_size=64, epochs=10, bn_estimate_batches=4), points=44,
    ),
    "cifar": Settings(
        "cifar10", 20, ("batchnorm", "fixup", "skipinit", "rescalenet", "fixup_mixup"),
        seeds=(0, 1, 2), recipe=Recipe(epochs=20, padding=4, flip=True),
    ),
    "paper": Settings("cifar10", seeds=(0, 1, 2, 3, 4), recipe=Recipe(padding=4, flip=True)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the table."""

    scale: Literal["smoke", "laptop", "cifar", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; cifar: a ResNet-20 for a tenth of
    the epochs, hours on two cores; paper: as published."""
    variants: tuple[str, ...] = ()
    """Rows of the table, with spaces between; by default those of the scale."""
    depth: int | None = None
    """Layers of the network, 6n + 2; by default the scale's."""


def check(settings: Settings, command: Command) -> Settings:
    """Refuses a depth without a network."""
    if settings.depth < 8 or settings.depth % 6 != 2:
        raise ValueError(f"--depth {settings.depth} found; expected 6n + 2 layers, n >= 1.")
    return settings


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs of the table; those of schemes that compile alike share a program."""
    found = []
    for name, seed in itertools.product(settings.variants, settings.seeds):
        variant = VARIANTS[name]
        scheme, rate = schemes.get(variant.scheme), variant.rate * settings.recipe.learning_rate
        found.append(
            Point(
                key={"variant": name, "seed": seed},
                title=variant.title,
                start=Start(scheme, seed, {"learning_rate": rate}),
                program=(scheme.compiles_as, variant.mixup),
                **run_lengths(settings.recipe, dataset, settings.steps),
            )
        )
    return found


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one anatomy."""
    model = network(models.CifarResNet, settings, dataset, point)
    mixup = VARIANTS[point.key["variant"]].mixup
    recipe = dataclasses.replace(settings.recipe, mixup=mixup)
    return recipe_setup(model, recipe, dataset, point)


CURVES = curve_lines(lambda settings: settings.points)


def table(results: Results) -> str:
    """Mean and median test error over the seeds, beside what was published on CIFAR-10."""
    cells = [["ResNet", "rate", "mean", "median", "runs", "diverged", "published"]]
    for (name,), rows in grouped(results.rows, "variant").items():
        variant, rate = VARIANTS[name], rows[0]["learning_rate"]
        published = published_cell(variant.published.get(results.settings.depth), 2)
        cells.append([variant.title, rate, *error_cells(rows), published])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws the mean training accuracy over the seeds, as far as all of them went."""
    settings, chance = results.settings, 100 * results.chance
    panel = Panel(
        "step",
        "training accuracy (%)",
        mean_curves(results, "variant"),
        y_limits=(0, 100),
        level=(chance, f"chance ({chance:.0f}%)"),
    )
    curves_figure(
        [panel],
        path,
        title=who_trains(results.rows, results.chance, where=f" as ResNet-{settings.depth}"),
        subtitle=(
            f"ResNet-{settings.depth} on {data_title(settings.dataset)}, "
            f"{settings.stem_channels} channels, batch "
            f"{settings.recipe.batch_size}, {seeds_shown(results.rows, 'variant')}. "
            + RULE.format(what="test accuracy")
        ),
    )


SHOWS = {
    "smoke": "This shows that the command works, and nothing else.",
    "laptop": (
        "This can show which networks train, and at which rate. The errors on the digits say "
        "nothing about those on CIFAR-10 that were published, nor about the gap between Fixup and "
        "BatchNorm."
    ),
    "cifar": (
        "Published is the mean of runs that are 8.2 times as long. What is compared here is how "
        "close networks without BatchNorm come to it in the same short time."
    ),
    "paper": "Published are the means or medians of five runs on CIFAR-10.",
}

EXPERIMENT = Experiment(
    name="fixup_table1_resnet110",
    title="Fixup table 1",
    description="Redraw Fixup's table 1: ResNet-110 without BatchNorm.",
    scales=SCALES, command=Command, check=check,
    grid=("variants", "seeds"),
    choices={"variants": tuple(VARIANTS)},
    key=("variant", "seed"),
    columns=("variant", "title", "depth", "branches", "learning_rate", "seed", *OUTCOME),
    points=points, setup=setup, table=table, plot=plot,
    row=lambda settings, point, run: {"learning_rate": f"{point.start.hyper['learning_rate']:g}"},
    lines={"curves.csv": CURVES},
    heading=lambda results: (
        f"Test error (%) of ResNet-{results.settings.depth} on "
        f"{data_title(results.settings.dataset)}:"
    ),
    note=lambda results: SHOWS[results.command.scale],
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
