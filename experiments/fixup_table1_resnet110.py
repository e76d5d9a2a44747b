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

Setting, `--scale paper`: batch 128, 200 epochs, learning rate 0.1, a tenth of it from epoch 100
and a hundredth from 150, momentum 0.9, weight decay 1e-4, crop and flip, Fixup's scalars at a tenth
of the rate, five seeds. Xavier is trained at a tenth of the rate, where it failed, and at a
hundredth. Nobody here has run it yet; it needs a GPU. `--depth 20 --steps 7800` makes a smaller
network and a shorter run of it, in which the rate falls after the same parts of the run.

`--scale laptop` takes a ResNet-110 with half the channels to the 8x8 digits inside scikit-learn:
batch 64, 220 steps (ten epochs), three seeds, three minutes on two cores. It can show which
networks train and at which rate, the third column of the table, and no more: the errors on the
digits say nothing about those on CIFAR-10. `--scale smoke` takes seconds a run and shows nothing.

Tried besides, one seed: at fewer layers BatchNorm is ahead early. With `--depth 20 --seeds 0
--variants batchnorm fixup` it has 96% of the training batches of steps 46 to 50, Fixup 39%, and
test errors in the end are 0.83% and 1.94%; at `--depth 56` it is 69% and 40%, and in the end 4.17%
and 0.83%. That Fixup is the faster one is what 110 layers show.

Not as published: the pixels are divided by the standard deviation over all of the training images
(0.25), the published code by a smaller one (0.20); an epoch has 390 steps, and the 80 images left
over make none; the head's biases train at the full rate, there at a tenth as all biases. He et al.
trained BatchNorm's network for 64,000 steps, which are 164 epochs, and began with a hundredth of a
rate; Shang et al. do not say at what rate theirs was trained. `laptop` tests BatchNorm with the
statistics of four training batches at the final weights.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

import tyro

from experiments import grid
from experiments.command import (
    Command,
    first_words,
    keep_failures,
    last_words,
    load_data,
    open_folder,
    resolve,
    workers_of,
)
from experiments.curves import CurvesFile, thinned
from experiments.folder import Row
from experiments.program import Program
from experiments.recipe import Recipe, num_steps, recipe_program
from experiments.table import error_cells, text_table
from experiments.training_run import OUTCOME, OnStep, outcome, train_and_test
from nf_resnets import data, models, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure


@dataclasses.dataclass(frozen=True)
class Variant:
    """A row of the table.

    Attributes:
      title: how table and figure call it.
      scheme: its initialisation and anatomy.
      rate: what the recipe's learning rate is multiplied by.
      published: the test error in percent that was published for it, if any was.
    """

    title: str
    scheme: str
    rate: float = 1.0
    published: float | None = None


VARIANTS = {
    "batchnorm": Variant("BatchNorm", "batchnorm", published=6.61),
    "fixup": Variant("Fixup", "fixup", published=7.24),
    "xavier_tenth": Variant("Xavier, 0.1x rate", "xavier", rate=0.1),
    "xavier_hundredth": Variant("Xavier, 0.01x rate", "xavier", rate=0.01, published=7.78),
}
Name = Literal["batchnorm", "fixup", "xavier_tenth", "xavier_hundredth"]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    dataset: str
    depth: int = 110
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 16
    steps: int | None = None  # None: the recipe's epochs
    recipe: Recipe = Recipe()
    points: int = 200  # of a run's curve


SCALES = {
    "smoke": Settings("digits", 8, stem_channels=4, steps=8, recipe=Recipe(batch_size=64)),
    "laptop": Settings(
        "digits",
        seeds=(0, 1, 2),
        stem_channels=8,
        recipe=Recipe(batch_size=64, epochs=10, bn_estimate_batches=4),
        points=44,
    ),
    "paper": Settings("cifar10", seeds=(0, 1, 2, 3, 4), recipe=Recipe(padding=4, flip=True)),
}
GRID = ("variants", "seeds")
KEY = ("variant", "seed")
COLUMNS = ("variant", "title", "depth", "branches", "learning_rate", "seed", *OUTCOME)
CURVE_COLUMNS = (*KEY, "step", "loss", "accuracy")


@dataclasses.dataclass(frozen=True)
class Table1Command(Command):
    """The options of the table."""

    variants: tuple[Name, ...] = ()
    """Rows of the table, with spaces between; by default all."""
    depth: int = 0
    """Layers of the network, 6n + 2; 0 for the scale's."""


def settings_of(command: Table1Command) -> Settings:
    """The scale's settings with what the command line changes, checked."""
    settings: Settings = resolve(command, SCALES, GRID)
    if command.depth:
        settings = dataclasses.replace(settings, depth=command.depth)
    if settings.depth < 8 or settings.depth % 6 != 2:
        raise SystemExit(f"--depth {settings.depth} found; expected 6n + 2 layers, n >= 1.")
    return settings


def points(settings: Settings, steps: int) -> list[grid.Point]:
    """The runs of the table; those of schemes that compile alike share a program."""
    found = []
    for name in settings.variants:
        scheme = schemes.get(VARIANTS[name].scheme)
        for seed in settings.seeds:
            found.append(
                grid.Point(
                    key={"variant": name, "seed": seed},
                    label=f"{VARIANTS[name].title}, seed {seed}",
                    program=scheme.compiles_as,
                    cost=grid.cost(settings.depth, steps, norm=scheme.anatomy.normalized),
                )
            )
    return found


def make_program(settings: Settings, dataset: data.Dataset, variant: str, steps: int) -> Program:
    """Builds what the runs of one anatomy need."""
    model = models.CifarResNet(
        depth=settings.depth,
        scheme=VARIANTS[variant].scheme,
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
    )
    return recipe_program(model, dataset, settings.recipe, steps)


def run(
    settings: Settings, program: Program, point: grid.Point, curves: CurvesFile, on_step: OnStep
) -> Row:
    """Trains one network, keeps its curve, returns its row."""
    name, seed = point.key["variant"], point.key["seed"]
    variant = VARIANTS[name]
    rate = variant.rate * settings.recipe.learning_rate
    scheme = schemes.get(variant.scheme)
    made = train_and_test(program, scheme, seed, {"learning_rate": rate}, on_step)
    curves.put(point.key, thinned(made.curve, settings.points))
    return {
        "variant": name,
        "title": variant.title,
        "depth": settings.depth,
        "branches": program.model.num_branches,
        "learning_rate": f"{rate:g}",
        "seed": seed,
        **outcome(program, made),
    }


def rows_by_variant(rows: list[Row], settings: Settings) -> dict[str, list[Row]]:
    """Those rows of a folder that the settings ask for, of each variant that has some."""
    seeds = {str(seed) for seed in settings.seeds}
    found = {
        name: [row for row in rows if row["variant"] == name and row["seed"] in seeds]
        for name in settings.variants
    }
    return {name: of_variant for name, of_variant in found.items() if of_variant}


def table(rows: dict[str, list[Row]]) -> str:
    """Mean and median test error over the seeds, beside what was published on CIFAR-10."""
    cells = [["ResNet", "rate", "mean", "median", "runs", "diverged", "published"]]
    for name, of_variant in rows.items():
        published = VARIANTS[name].published
        diverged = sum(row["status"] == "diverged" for row in of_variant)
        cells.append(
            [
                VARIANTS[name].title,
                of_variant[0]["learning_rate"],
                *error_cells(of_variant),
                str(len(of_variant)),
                str(diverged),
                "-" if published is None else f"{published:.2f}",
            ]
        )
    return text_table(cells)


def plot(
    rows: dict[str, list[Row]], curves: CurvesFile, settings: Settings, path: Any, chance: float
) -> None:
    """Draws the mean training accuracy over the seeds, as far as all of them went."""
    drawn = []
    for name, of_variant in rows.items():
        steps, means = curves.mean(of_variant, "accuracy")
        gone = any(row["status"] == "diverged" for row in of_variant)
        percent = [100 * accuracy for accuracy in means]
        drawn.append(Curve(VARIANTS[name].title, steps, percent, diverged=gone))
    curves_figure(
        [
            Panel(
                "step",
                "training accuracy (%)",
                drawn,
                y_limits=(0, 100),
                level=(100 * chance, f"chance ({100 * chance:.0f}%)"),
            )
        ],
        path,
        title=f"ResNet-{settings.depth} with and without normalisation",
        subtitle=(
            f"{settings.dataset}, {settings.stem_channels} channels, batch "
            f"{settings.recipe.batch_size}, {len(settings.seeds)} "
            f"seed{'s' if len(settings.seeds) > 1 else ''}"
        ),
    )


def main(command: Table1Command) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    grid.stop_at_once()
    settings = settings_of(command)
    dataset = load_data(settings.dataset, command.data_dir)
    steps = settings.steps or num_steps(settings.recipe, dataset)
    folder = open_folder(
        "fixup_table1_resnet110", command, settings, grid=GRID, columns=COLUMNS, key=KEY
    )
    curves = CurvesFile(folder, columns=CURVE_COLUMNS, key=KEY)
    runs = f"{len(settings.variants)} variants x {len(settings.seeds)} seeds x {steps} steps"
    first_words("Fixup table 1", command, settings.dataset, runs, folder)
    start = time.monotonic()
    failures = grid.make_rows(
        points(settings, steps),
        folder,
        workers=workers_of(command),
        make_program=lambda point: make_program(settings, dataset, point.key["variant"], steps),
        run=lambda program, point, on_step: run(settings, program, point, curves, on_step),
    )
    keep_failures(folder, failures)

    rows = rows_by_variant(folder.rows, settings)
    text = table(rows)
    print(f"\nTest error (%) of ResNet-{settings.depth} on {settings.dataset}:\n\n{text}")
    print(f"\n{SHOWS[command.scale]}")
    folder.write_text("table.txt", text + "\n")
    if rows:
        folder.draw(
            "figure.png", lambda path: plot(rows, curves, settings, path, 1 / dataset.num_classes)
        )
    return last_words(folder, failures, start)


SHOWS = {
    "smoke": "This shows that the command works, and nothing else.",
    "laptop": (
        "This can show which networks train, and at which rate. The errors on the digits say "
        "nothing about those on CIFAR-10 that were published, nor about the gap between Fixup and "
        "BatchNorm."
    ),
    "paper": "Published are the means or medians of five runs on CIFAR-10.",
}


if __name__ == "__main__":
    raise SystemExit(
        main(
            tyro.cli(
                Table1Command, description="Redraw Fixup's table 1: ResNet-110 without BatchNorm."
            )
        )
    )
