r"""SkipInit on ImageNet: ResNet-50 version 2 at batch sizes from 256 to 4,096.

Claim: at small batches SkipInit trains ResNet-50 without normalisation as well as BatchNorm does,
and better with some dropout. At the largest batch BatchNorm keeps its accuracy and the others lose
it, since BatchNorm's benefit is that larger learning rates are stable.

Published top-1 test accuracies (%, batch 256 / 1,024 / 4,096; arXiv:2002.10444v1, table 3, best
learning rate of each), not reproduced here:

    BatchNorm              75.0 / 74.9 / 74.9      SkipInit with biases   74.9 / 74.6 / 70.8
    Fixup                  74.8 / 74.6 / 73.0      regularised SkipInit   75.6 / 75.5 / 72.7

Setting, `--scale paper`: ImageNet through TensorFlow Datasets (`--data-dir`), the usual crops of
224 pixels; ResNet-50 version 2 (pre-activation); three learning rates in proportion to the batch,
and the table takes the best by test accuracy; dropout of 0.2 before the head for regularised
SkipInit. It is 36 runs, each of them days on a GPU.

Not as published, or not known: the text at hand does not give the number of epochs, the schedule,
momentum and weight decay. Here momentum, schedule and slices are those of the same paper for CIFAR:
momentum 0.9, a rate that is constant for the first half, then halved in ten equal parts, and
BatchNorm's statistics over slices of 64. Epochs (90, the first 5 warm-up), weight decay (1e-4),
Fixup's scalars at a tenth of the rate, and the number of rates are ours.

`--scale laptop` writes the handwritten digits inside scikit-learn as JPEG files and streams them to
ResNet-26 version 2 with an eighth of the channels, at batches of 32 and 256, four rates and, where
the best is at an edge of them, one beyond, in about ten minutes on two cores. It shows that
regularised SkipInit trains without normalisation at the smaller batch, and which rates are too
large for each scheme: BatchNorm diverges at none, alpha = 1 at the most. It shows nothing about
accuracies on ImageNet. With `--variants fixup skipinit` SkipInit without dropout reaches 93.6% at
batch 32, and Fixup, which starts to learn later, 76.9%; at batch 256 the 40 steps are too few for
both (25.8% and 11.7%). `--scale smoke` takes seconds a run and shows nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nf_resnets import models, optim, schemes
from nf_resnets.plotting.sweep import PASSED
from nf_resnets.sweep.select import Rule
from nf_resnets.training import Start

from . import imagenet
from .experiment import Experiment, Point, Results, Setup
from .folder import Row
from .imagenet import OUTCOME, Images, Streamed
from .images import network
from .main import run
from .rates import best_rate, rows_at, widened
from .table import accuracy_cell, edge_mark, grouped, published_cell, rate_table

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
    best: Rule = "strict"
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
        dataclasses.replace(imagenet.SMALL_IMAGES, most=80), epochs=1, batches=(16, 64),
        rates=(0.1,), depth=26, stem_channels=4, warmup_epochs=0.0, slice_size=16,
    ),
    "laptop": Settings(
        imagenet.SMALL_IMAGES, epochs=8, batches=(32, 256), rates=(0.025, 0.1, 0.4, 1.6), extend=1,
        depth=26, variants=("batchnorm", "regularized_skipinit", "alpha_one"), stem_channels=8,
        warmup_epochs=0.5, slice_size=32,
    ),
    "paper": Settings(Images(), epochs=90, batches=(256, 1024, 4096), rates=(0.05, 0.1, 0.2)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(imagenet.Command):
    """The options of the table."""

    best: Rule = "strict"
    """How rates with diverged seeds are compared. strict: rates with more of them rank behind.
    trimmed: if half of the seeds finished, by the mean over those that did."""


def points(settings: Settings, streamed: Streamed, rows: Sequence[Row]) -> list[Point]:
    """The runs of the table; those of one variant and batch size share a program.

    A cell whose best rate lies at an edge of those that have run has one rate more.
    """
    found, there = [], grouped(rows, "variant", "batch")
    for batch, name in itertools.product(settings.batches, settings.variants):
        rates = widened(
            settings.rates,
            there.get((name, str(batch)), []),
            rate_of,
            extend=settings.extend,
            rule=settings.best,
        )
        scheme = schemes.get(name)
        for rate, seed in itertools.product(rates, settings.seeds):
            hyper = {"learning_rate": learning_rate(rate, batch)}
            found.append(
                Point(
                    key={"variant": name, "batch": batch, "rate": rate, "seed": seed},
                    title=scheme.title,
                    start=Start(scheme, seed, hyper),
                    program=(name, batch),
                    label=f"{scheme.title}, batch {batch}, rate {rate:g}, seed {seed}",
                    **imagenet.lengths(streamed, batch, settings.epochs, settings.steps),
                )
            )
    return found


def learning_rate(rate: float, batch: int) -> float:
    """The rate at a batch size: in proportion, by Goyal et al.'s rule."""
    return rate * batch / 256


def setup(settings: Settings, streamed: Streamed, point: Point) -> Setup:
    """Network, optimizer and steps of one variant and batch size."""
    batch, steps = point.batch_size, point.num_steps
    slices = max(1, batch // settings.slice_size)
    warmup = min(steps, round(settings.warmup_epochs * streamed.steps(batch)))
    return imagenet.streamed_setup(
        network(models.ResNet, settings, streamed, point, version=2, bn_groups=slices),
        settings,
        streamed,
        point,
        schedule=lambda rate: optim.warmup(optim.halving(rate, steps), warmup, steps),
        scalar_factor=settings.scalar_factor,
        micro_batch=settings.micro_batch,
    )


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The learning rate, the published accuracy, and the columns of a streamed run."""
    published = PUBLISHED.get(point.key["variant"], {}).get(point.batch_size, "")
    return {
        "learning_rate": point.start.hyper["learning_rate"],
        "published_accuracy": published,
        **imagenet.row(settings, point, run),
    }


def rate_of(row: Row) -> float:
    """The rate of a row, at batch 256."""
    return float(row["rate"])


def best(rows: Sequence[Row], rule: Rule) -> list[Row]:
    """The rows of a cell at the best rate by mean test accuracy; at the lowest if none finished."""
    chosen = best_rate(rows, rate_of, rule).best
    return rows_at(min(map(rate_of, rows)) if chosen is None else chosen, rows, rate_of)


def table(results: Results) -> str:
    """For each scheme and batch size the accuracy at the best rate, and what was published."""
    settings, of = results.settings, grouped(results.rows, "variant", "batch")
    cells = [["scheme", "batch", "test accuracy", "best rate", "diverged rates", "published"]]
    for name, batch in itertools.product(settings.variants, settings.batches):
        rows = of.get((name, str(batch)), [])
        if not rows:
            continue
        chosen, tried = best(rows, settings.best), set(map(rate_of, rows))
        found = best_rate(rows, rate_of, settings.best)
        rate = f"{float(chosen[0]['learning_rate']):g}" + edge_mark(rate_of(chosen[0]), tried)
        rate += PASSED if found.passed_over else ""
        rate = "-" if found.best is None else rate
        gone = {row["rate"] for row in rows if row["status"] == "diverged"}
        diverged = f"{len(gone)} of {len(tried)}"
        published = published_cell(PUBLISHED.get(name, {}).get(batch))
        which = (chosen[0]["title"], str(batch))
        cells.append([*which, accuracy_cell(chosen), rate, diverged, published])
    return rate_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws the training accuracy of every scheme at its best rate, a panel for each batch size."""
    settings, panels = results.settings, {}
    for (batch, _), rows in grouped(results.rows, "batch", "variant").items():
        panels.setdefault(f"batch {batch}", []).extend(best(rows, settings.best))
    imagenet.plot_panels(
        results,
        panels,
        path,
        at="at",
        subtitle=f"ResNet-{settings.depth} version 2, each scheme at its best learning rate",
    )


WHAT_IT_SHOWS = {
    "smoke": "These runs are too short to show anything.",
    "laptop": (
        "This shows which learning rates each scheme bears at a small and at a large batch, with "
        "and without normalisation.\nIt cannot show ImageNet's accuracies, nor what the batch of "
        "4,096 costs there (--scale paper)."
    ),
    "paper": "",
}


EXPERIMENT = Experiment(
    name="skipinit_imagenet",
    title="SkipInit on ImageNet",
    description="Train ResNet-50 without BatchNorm at large batches.",
    scales=SCALES, command=Command, load=imagenet.load,
    grid=("batches", "rates", "extend", "best", "variants", "seeds"),
    choices={"variants": VARIANTS},
    key=("variant", "batch", "rate", "seed"),
    columns=(
        "variant", "batch", "rate", "seed", "title", "learning_rate", "published_accuracy", *OUTCOME
    ),
    points=points, setup=setup, row=row, lines={"curves.csv": imagenet.CURVES},
    table=table, plot=plot, heading=imagenet.heading,
    note=functools.partial(imagenet.note, WHAT_IT_SHOWS),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
