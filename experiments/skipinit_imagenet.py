r"""SkipInit on ImageNet: ResNet-50 version 2 at batch sizes from 256 to 4,096.

Claim: SkipInit trains ResNet-50 without normalisation as well as BatchNorm does at small batches,
with some dropout better; at the largest batch BatchNorm keeps its accuracy and the others lose it,
for what BatchNorm brings is that larger learning rates are stable.

Published top-1 test accuracies (%, batch 256 / 1,024 / 4,096; the paper's first version, best
learning rate of each); nobody here has reproduced them:

    BatchNorm              75.0 / 74.9 / 74.9      SkipInit with biases   74.9 / 74.6 / 70.8
    Fixup                  74.8 / 74.6 / 73.0      regularised SkipInit   75.6 / 75.5 / 72.7

Setting, `--scale paper`: ImageNet through TensorFlow Datasets (`--data-dir`), random resized crops
of 224 pixels and flips, the central crop of 224 from a shorter side of 256 in the test; ResNet-50
version 2 (pre-activation); learning rates 0.05, 0.1 and 0.2 at batch 256, in
proportion to the batch, of which the table takes the best by test accuracy; dropout of 0.2 before
the head where SkipInit is regularised. It is 36 runs, each of them days on a GPU.

Not as published, or not known: how long the networks were trained, with which schedule, momentum
and weight decay, the text at hand does not say. Here it is what the same paper has for CIFAR:
momentum 0.9, BatchNorm's statistics over slices of 64, and over 90 epochs a rate that is constant
for the first half, then halved in ten equal parts, after 5 epochs of warm-up; weight decay 1e-4;
Fixup's scalars at a tenth of the rate; and three rates are tried.

`--scale laptop` writes the handwritten digits inside scikit-learn as JPEG files and streams them to
ResNet-26 version 2 with an eighth of the channels, at batches of 32 and 256, four rates and, where
the best is at an edge of them, one beyond, in five to eight minutes on two cores. It shows that
regularised SkipInit trains without normalisation at the smaller batch, and which rates are too
large for whom: BatchNorm bears all of them, alpha = 1 the fewest; accuracies of ImageNet it cannot
show. With `--variants fixup skipinit` SkipInit without dropout reaches 93.6% at batch 32, and
Fixup, which begins to learn later, 76.9%; at batch 256 the 40 steps are too few for both (25.8% and
11.7%). `--scale smoke` takes seconds a run and shows nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tyro

from experiments import grid, imagenet
from experiments.best_rate import best_rate, widened
from experiments.command import resolve
from experiments.folder import Row
from experiments.imagenet import Command, Images
from experiments.streamed_run import OUTCOME, StreamedProgram, build_program
from experiments.streamed_table import Train, make_table, show_table
from experiments.table import accuracy_cell, edge_mark, rate_table
from nf_resnets import models, optim, schemes
from nf_resnets.plotting.sweep import PASSED
from nf_resnets.sweep.select import Rule

PUBLISHED = {
    "batchnorm": {256: 75.0, 1024: 74.9, 4096: 74.9},
    "fixup": {256: 74.8, 1024: 74.6, 4096: 73.0},
    "skipinit": {256: 74.9, 1024: 74.6, 4096: 70.8},
    "regularized_skipinit": {256: 75.6, 1024: 75.5, 4096: 72.7},
}
"""Top-1 test accuracies on ImageNet (%), by the batch size."""

VARIANTS = (*PUBLISHED, "alpha_one")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    images: Images
    epochs: int
    batches: tuple[int, ...]
    rates: tuple[float, ...]  # at batch 256; in proportion to the batch
    extend: int = 0  # times that a cell's rates go on beyond an edge at which its best lies
    depth: int = 50
    variants: tuple[str, ...] = tuple(PUBLISHED)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 64
    steps: int | None = None  # None: those of the epochs
    warmup_epochs: float = 5.0
    momentum: float = 0.9
    weight_decay: float = 1e-4
    scalar_factor: float = 0.1
    slice_size: int = 64  # of BatchNorm's statistics
    micro_batch: int = 1024  # examples of a step in memory at a time, at most


SCALES = {
    "smoke": Settings(
        dataclasses.replace(imagenet.SMALL_IMAGES, most=80),
        epochs=1,
        batches=(16, 64),
        rates=(0.1,),
        depth=26,
        stem_channels=4,
        warmup_epochs=0.0,
        slice_size=16,
    ),
    "laptop": Settings(
        imagenet.SMALL_IMAGES,
        epochs=8,
        batches=(32, 256),
        rates=(0.025, 0.1, 0.4, 1.6),
        extend=1,
        depth=26,
        variants=("batchnorm", "regularized_skipinit", "alpha_one"),
        stem_channels=8,
        warmup_epochs=0.5,
        slice_size=32,
    ),
    "paper": Settings(Images(), epochs=90, batches=(256, 1024, 4096), rates=(0.05, 0.1, 0.2)),
}


@dataclasses.dataclass(frozen=True)
class SkipInitCommand(Command):
    """The options of the table."""

    best: Rule = "strict"
    """How rates are compared of which some seeds diverged. strict: the more diverged, the further
    behind. trimmed: as long as half of them finished, by the mean over those that did."""


GRID = ("batches", "rates", "extend", "variants", "seeds")
KEY = ("variant", "batch", "rate", "seed")
COLUMNS = (*KEY, "title", "learning_rate", "published_accuracy", *OUTCOME)


def points(
    settings: Settings, steps: dict[int, int], rows: Sequence[Row] = (), rule: Rule = "strict"
) -> list[grid.Point]:
    """The runs of the table; those of one variant and batch size share a program.

    Args:
      settings: what they depend on.
      steps: of a run, by the batch size.
      rows: those that there are; a cell whose best rate lies at an edge of them has one rate more.
      rule: by which the best rate is chosen.
    """
    found = []
    for batch in settings.batches:
        for name in settings.variants:
            scheme = schemes.get(name)
            here = of_cell(rows, name, batch)
            for rate in widened(settings.rates, here, rate_of, extend=settings.extend, rule=rule):
                for seed in settings.seeds:
                    found.append(
                        grid.Point(
                            key={"variant": name, "batch": batch, "rate": rate, "seed": seed},
                            label=f"{scheme.title}, batch {batch}, rate {rate:g}, seed {seed}",
                            program=(name, batch),
                            cost=grid.cost(
                                settings.depth,
                                steps[batch] * batch // 64,
                                norm=scheme.anatomy.normalized,
                            ),
                        )
                    )
    return found


def learning_rate(rate: float, batch: int) -> float:
    """The rate at a batch size: in proportion, by Goyal et al.'s rule."""
    return rate * batch / 256


def make_program(
    settings: Settings, dataset: Any, reading: Any, point: grid.Point, steps: dict[int, int]
) -> StreamedProgram:
    """Builds what the runs of one variant and batch size need."""
    batch = point.key["batch"]
    micro_batches = -(-batch // settings.micro_batch)
    model = models.ResNet(
        depth=settings.depth,
        scheme=point.key["variant"],
        version=2,
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
        bn_groups=max(1, batch // settings.slice_size),
    )
    warmup = min(
        steps[batch],
        round(settings.warmup_epochs * imagenet.steps_of(dataset, batch, 1)),
    )

    def optimizer(hyper: dict[str, Any]) -> Any:
        schedule = optim.halving(hyper["learning_rate"], steps[batch])
        return optim.sgd(
            optim.warmup(schedule, warmup, steps[batch]),
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            scheme=point.key["variant"],
            scalar_factor=settings.scalar_factor,
        )

    return build_program(
        model,
        dataset,
        settings.images,
        reading,
        optimizer,
        batch_size=batch,
        steps=steps[batch],
        micro_batches=micro_batches,
    )


def make_row(point: grid.Point, train: Train) -> Row:
    """Trains and tests one network, and returns its row."""
    name, batch = point.key["variant"], point.key["batch"]
    scheme = schemes.get(name)
    rate = learning_rate(point.key["rate"], batch)
    return {
        "title": scheme.title,
        "learning_rate": rate,
        "published_accuracy": PUBLISHED.get(name, {}).get(batch, ""),
        **train(scheme, {"learning_rate": rate}),
    }


def of_cell(rows: Sequence[Row], name: str, batch: int) -> list[Row]:
    """The runs of one scheme and batch size, those of the lowest rate first."""
    found = [row for row in rows if (row["variant"], row["batch"]) == (name, str(batch))]
    return sorted(found, key=rate_of)


def best(rows: list[Row], name: str, batch: int, rule: Rule = "strict") -> list[Row]:
    """The runs at the best rate by mean test accuracy; at the lowest if none finished."""
    found = of_cell(rows, name, batch)
    chosen = best_rate(found, rate_of, rule).best
    if chosen is None:
        return [row for row in found if row["rate"] == found[0]["rate"]]
    return [row for row in found if rate_of(row) == chosen]


def rate_of(row: Row) -> float:
    """The rate of a row, at batch 256."""
    return float(row["rate"])


def table(rows: list[Row], settings: Settings, rule: Rule = "strict") -> str:
    """For each scheme and batch size the accuracy at the best rate, and what was published."""
    cells = [["scheme", "batch", "test accuracy", "best rate", "diverged rates", "published"]]
    for name in settings.variants:
        for batch in settings.batches:
            chosen, of_all = best(rows, name, batch, rule), of_cell(rows, name, batch)
            if not chosen:
                continue
            passed = best_rate(of_all, rate_of, rule).passed_over
            gone = {row["rate"] for row in of_all if row["status"] == "diverged"}
            tried = set(map(rate_of, of_all))
            published = PUBLISHED.get(name, {}).get(batch)
            cells.append(
                [
                    chosen[0]["title"],
                    str(batch),
                    accuracy_cell(chosen, "test_accuracy"),
                    f"{float(chosen[0]['learning_rate']):g}"
                    + edge_mark(rate_of(chosen[0]), tried)
                    + (PASSED if passed else ""),
                    f"{len(gone)} of {len(tried)}",
                    "-" if published is None else f"{published:.1f}",
                ]
            )
    return rate_table(cells)


WHAT_IT_SHOWS = {
    "smoke": "These runs are too short to show anything.",
    "laptop": (
        "This shows which learning rates each scheme bears at a small and at a large batch, with "
        "and without normalisation.\nIt cannot show ImageNet's accuracies, nor what the batch of "
        "4,096 costs there (--scale paper)."
    ),
    "paper": "",
}


def main(command: SkipInitCommand) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    grid.stop_at_once()
    imagenet.check_options(command, VARIANTS)
    settings: Settings = resolve(command, SCALES, ("variants", "seeds"))
    dataset = imagenet.open_images(settings.images, command.data_dir)
    steps = {
        batch: settings.steps or imagenet.steps_of(dataset, batch, settings.epochs)
        for batch in settings.batches
    }
    reading = imagenet.reading_of(command)
    made = make_table(
        "skipinit_imagenet",
        "SkipInit on ImageNet",
        command,
        settings,
        points(settings, steps, rule=command.best),
        lambda point: make_program(settings, dataset, reading, point, steps),
        make_row,
        dataset=dataset,
        grid_settings=GRID,
        key=KEY,
        columns=COLUMNS,
        more=lambda rows: points(settings, steps, rows, command.best),
    )
    return show_table(
        made,
        table(made.rows, settings, command.best),
        {
            f"batch {batch}": [
                row
                for name in settings.variants
                for row in best(made.rows, name, batch, command.best)
            ]
            for batch in settings.batches
        },
        dataset=dataset,
        shows=WHAT_IT_SHOWS[command.scale],
        title=f"ResNet-{settings.depth} version 2, each scheme at its best learning rate",
        subtitle=dataset.name,
    )


if __name__ == "__main__":
    raise SystemExit(
        main(
            tyro.cli(
                SkipInitCommand, description="Train ResNet-50 without BatchNorm at large batches."
            )
        )
    )
