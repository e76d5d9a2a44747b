r"""Fixup's table 2: ImageNet with BatchNorm, GroupNorm, Xavier and Fixup, with and without mixup.

Claim (section 4.2): "training with Fixup is fast and stable with the default hyperparameters",
"Fixup alone significantly improves the test error of standard initialization", "there is a large
test error gap between Fixup and BatchNorm" by overfitting, and "with better regularization, the
performance of Fixup is on par with GroupNorm".

Published test errors (%), ResNet-50 / ResNet-101; nobody here has reproduced them:

    BatchNorm           23.6 / 22.0      Xavier              31.5 / -
    BatchNorm + mixup   23.3 / 20.8      Fixup               27.6 / -
    GroupNorm + mixup   23.9 / 21.4      Fixup + mixup       24.0 / 21.4

(BatchNorm's are quoted from others in the paper.) Its figures 5 and 6 (appendix C.3) have the
errors over the epochs: "without additional regularization Fixup fits the training set very well,
but overfits significantly", and with mixup it "closely matches the final results yielded by the use
of GroupNorm". `--tests` tests every run after each epoch and draws them. On the digits, with
`--tests --depths 26 --epochs 8 --variants batchnorm fixup fixup_mixup`, neither shows: after so few
steps Fixup is still learning.

Setting, `--scale paper`: ImageNet through TensorFlow Datasets (`--data-dir`), the usual crops of
224 pixels; mixup of alpha 0.2 with BatchNorm, 0.1 with GroupNorm and 0.7 with Fixup, Fixup's
scalars at a tenth of the rate, BatchNorm's statistics over slices of 32 (Goyal et al.'s batch on a
GPU). ResNet-50: 100 epochs, the rate divided by 10 after 30, 60 and 90. ResNet-101: 200 epochs; the
paper names no boundaries, here twice those. A run of ResNet-50 is 500,000 steps, days on a GPU.
Runs are saved every minute, and the same command continues those that were interrupted.

Not as published, or not known: whether Fixup without mixup had its scalars at a tenth of the rate,
too (the paper found that "beneficial [...] when additional large regularization is used"); the
groups of GroupNorm in layers of 64 channels, here 16.

`--scale laptop` writes the handwritten digits inside scikit-learn as JPEG files and streams them to
ResNet-50 with an eighth of the channels: 15 epochs, the rate falling after 70 and 90% of the steps,
seven minutes on two cores. It shows whether this bottleneck network trains without normalisation at
BatchNorm's learning rate, with and without mixup. At batch 64 the rate of 0.05 is twice the
published one. These images are too easy to separate Xavier's initialisation from the others; a gap
due to overfitting, which mixup closes, needs ImageNet. `--scale smoke` takes seconds a run and
shows nothing.

Tried first, and changed because Fixup did not learn. `--rate 0.1`, four times the published rate at
this batch: after 130 steps Fixup fell back to chance, 92.5% test error, while BatchNorm had 5.8%,
Xavier 9.2% and Fixup with mixup 11.1%. Before that `--rate 0.1 --epochs 10 --drops 0.3 0.6 0.9`:
Fixup 73.6% and, with mixup, 89.7%, BatchNorm 25.0%, Xavier 11.7%. Rate, epochs and drops were
chosen so that Fixup learns, and for no other row.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nf_resnets import models, optim, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, smoothed
from nf_resnets.training import Start

from . import imagenet
from .experiment import Experiment, Lines, Point, Results, Setup
from .folder import Row
from .imagenet import OUTCOME, Images, Streamed
from .images import network
from .main import run
from .table import accuracy_cell, grouped, published_cell, text_table


class Variant(NamedTuple):
    """A row of the table, with the published test errors (%) by the number of layers."""

    title: str
    scheme: str
    mixup: float  # alpha; 0 for none
    published: dict[int, float]


VARIANTS = {
    "batchnorm": Variant("BatchNorm", "batchnorm", 0.0, {50: 23.6, 101: 22.0}),
    "batchnorm_mixup": Variant("BatchNorm + mixup", "batchnorm", 0.2, {50: 23.3, 101: 20.8}),
    "groupnorm_mixup": Variant("GroupNorm + mixup", "groupnorm", 0.1, {50: 23.9, 101: 21.4}),
    "xavier": Variant("Xavier", "xavier", 0.0, {50: 31.5}),
    "fixup": Variant("Fixup", "fixup", 0.0, {50: 27.6}),
    "fixup_mixup": Variant("Fixup + mixup", "fixup", 0.7, {50: 24.0, 101: 21.4}),
}
MORE_EPOCHS = {101: 2}
"""How many times the epochs of ResNet-50 a network is trained for."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the table's rows depend on."""

    images: Images
    epochs: int
    depths: tuple[int, ...] = (50,)
    variants: tuple[str, ...] = tuple(VARIANTS)
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 64
    batch_size: int = 256
    steps: int | None = None  # None: those of the epochs
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    scalar_factor: float = 0.1
    slice_size: int = 32  # of BatchNorm's statistics
    drops: tuple[float, ...] = (0.3, 0.6, 0.9)  # of the run, where the rate is divided by 10
    tests: bool = False  # after every epoch


SCALES = {
    "smoke": Settings(
        dataclasses.replace(imagenet.SMALL_IMAGES, most=80), epochs=1, depths=(26,),
        stem_channels=4, batch_size=32,
    ),
    "laptop": Settings(
        imagenet.SMALL_IMAGES, epochs=15, stem_channels=8, batch_size=64, learning_rate=0.05,
        drops=(0.7, 0.9),
    ),
    "paper": Settings(Images(), epochs=100, depths=(50, 101)),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(imagenet.Command):
    """The options of the table."""

    rate: float | None = None
    """The learning rate; by default the scale's."""
    epochs: int | None = None
    """Epochs of ResNet-50; by default the scale's."""
    drops: tuple[float, ...] = ()
    """The parts of a run after which the rate is divided by 10; by default those of the scale."""
    depths: tuple[int, ...] = ()
    """Layers, with spaces between; by default those of the scale."""
    tests: bool = False
    """Test after every epoch, and draw the paper's figures 5 and 6."""


def check(settings: Settings, command: Command) -> Settings:
    """The settings with the learning rate of the command line; epochs and drops are checked."""
    if command.rate is not None and not 0 < command.rate < float("inf"):
        raise ValueError(f"--rate {command.rate:g} found; expected a finite number above 0.")
    if any(not 0 < drop < 1 for drop in command.drops):
        drops = " ".join(f"{drop:g}" for drop in command.drops)
        raise ValueError(f"--drops {drops} found; expected parts of a run, between 0 and 1.")
    rate = settings.learning_rate if command.rate is None else command.rate
    return dataclasses.replace(settings, learning_rate=rate)


def points(settings: Settings, streamed: Streamed, rows: Sequence[Row]) -> list[Point]:
    """The runs of the table: of the deeper networks, those that were published."""
    found = []
    for depth, name, seed in itertools.product(settings.depths, settings.variants, settings.seeds):
        variant = VARIANTS[name]
        epochs = settings.epochs * MORE_EPOCHS.get(depth, 1)
        if depth <= 50 or depth in variant.published:
            rate = {"learning_rate": settings.learning_rate}
            found.append(
                Point(
                    key={"variant": name, "depth": depth, "seed": seed},
                    title=variant.title,
                    start=Start(schemes.get(variant.scheme), seed, rate),
                    program=(name, depth),
                    label=f"{variant.title}, ResNet-{depth}, seed {seed}",
                    **imagenet.lengths(streamed, settings.batch_size, epochs, settings.steps),
                )
            )
    return found


def setup(settings: Settings, streamed: Streamed, point: Point) -> Setup:
    """Network, optimizer and steps of one variant and depth."""
    slices = max(1, settings.batch_size // settings.slice_size)
    boundaries = imagenet.drops_at(settings.drops, point.num_steps)
    return imagenet.streamed_setup(
        network(models.ResNet, settings, streamed, point, bn_groups=slices),
        settings,
        streamed,
        point,
        schedule=lambda rate: optim.step_decay(rate, boundaries, 0.1),
        mixup=VARIANTS[point.key["variant"]].mixup,
        scalar_factor=settings.scalar_factor,
    )


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The columns of the variant, and those of a streamed run."""
    variant = VARIANTS[point.key["variant"]]
    published = variant.published.get(point.key["depth"])
    return {
        "mixup": variant.mixup,
        "published_accuracy": "" if published is None else round(100 - published, 1),
        **imagenet.row(settings, point, run),
    }


def probe(
    settings: Settings, streamed: Streamed, point: Point, program: Any, state: Any, step: int
) -> dict[str, float]:
    """The test before the first step."""
    if step:
        return {}
    found = program.test(program.put(program.empty(), 0, state))
    return {f"test_{name}": float(value[0]) for name, value in found.items()}


def tests(settings: Settings, point: Point, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tests after every epoch, and the one before the first."""
    at_epochs = ({**epoch, **epoch["measures"]} for epoch in run["history"])
    return [line for line in at_epochs if line.get("test_loss") is not None]


def table(results: Results) -> str:
    """Test errors: the mean over the seeds, and what was published on ImageNet."""
    cells = [["network", "method", "mixup", "train accuracy", "test error", "published"]]
    for (depth, name), rows in grouped(results.rows, "depth", "variant").items():
        variant = VARIANTS[name]
        train, test = accuracy_cell(rows, "train_accuracy"), accuracy_cell(rows, error=True)
        published = published_cell(variant.published.get(int(depth)))
        method = (f"ResNet-{depth}", variant.title, f"{variant.mixup:g}")
        cells.append([*method, train, test, published])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws the training accuracy of every run, a panel for each depth."""
    settings = results.settings
    of_depth = grouped(results.rows, "depth").items()
    imagenet.plot_panels(
        results,
        {f"ResNet-{depth}": rows for (depth,), rows in of_depth},
        path,
        at="as",
        subtitle=f"batch {settings.batch_size}, learning rate {settings.learning_rate:g}",
    )


def gaps(rows: Sequence[Row]) -> str:
    """The last errors without mixup, in training and in the test, from the means of the seeds."""
    said = []
    plain = [row for row in rows if not float(row["mixup"])]
    depths = grouped(plain, "depth")
    for (depth, title), own in grouped(plain, "depth", "title").items():
        title += f" (ResNet-{depth})" * (len(depths) > 1)
        if any(row["status"] == "diverged" for row in own):
            said.append(f"{title} diverges")
            continue
        train, test = (
            100 - 100 * statistics.fmean(float(row[f"{of}_accuracy"]) for row in own)
            for of in ("train", "test")
        )
        said.append(f"{title} ends at {train:.1f}% training and {test:.1f}% test error")
    return "; ".join(said) or "Test errors with mixup"


def plot_tests(results: Results, path: Path) -> None:
    """Draws the paper's figures 5 and 6, the errors after every epoch; diverged runs as they went.

    Figure 5 has training and test errors without mixup, figure 6 the test errors with it.
    """

    def curve(row: Row, what: str) -> Curve:
        file, column = ("tests", "test_accuracy") if what == "test" else ("curves", "accuracy")
        lines = results.curves[f"{file}.csv"].of(row)
        steps = [int(line["step"]) for line in lines]
        errors = [100 - 100 * float(line[column]) for line in lines]
        title = f"{row['title']}, {what}"
        drawn = Curve(title, steps, errors, diverged=row["status"] == "diverged")
        return drawn if what == "test" else smoothed(drawn, -(-len(steps) // 20))

    panels = []
    for (depth,), rows in grouped(results.rows, "depth").items():
        plain = [row for row in rows if not float(row["mixup"])]
        mixed = [row for row in rows if float(row["mixup"])]
        for how, own, whats in (
            ("without", plain, ("training", "test")), ("with", mixed, ("test",))
        ):  # fmt: skip
            drawn = [curve(row, what) for row in own for what in whats]
            if drawn:
                heading = f"ResNet-{depth}, {how} mixup"
                panels.append(Panel("step", "error (%)", drawn, y_limits=(0, 100), heading=heading))
    curves_figure(
        panels,
        path,
        title=gaps(results.rows),
        subtitle=(
            "Training errors are means of a twentieth of the run, test errors those after every "
            f"epoch; learning rate {results.settings.learning_rate:g}."
        ),
    )


WHAT_IT_SHOWS = {
    "smoke": "These runs are too short to show anything.",
    "laptop": (
        "This shows whether Fixup trains a bottleneck network at BatchNorm's learning rate without "
        "normalisation.\nIt cannot show the gap by overfitting, nor that mixup closes it: that "
        "takes ImageNet (--scale paper).\nThe published errors are ImageNet's, not those of these "
        "images."
    ),
    "paper": "",
}


WITH_TESTS = {
    "test_every_epoch": True,
    "probe": probe,
    "lines": {
        "curves.csv": imagenet.CURVES,
        "tests.csv": Lines(("step", "test_accuracy", "test_loss"), tests),
    },
    "figures": {"tests.png": plot_tests},
}
EXPERIMENT = Experiment(
    name="fixup_table2_imagenet",
    title="Fixup table 2",
    description="Make Fixup's table 2: ImageNet without BatchNorm.",
    scales=SCALES, command=Command, check=check, load=imagenet.load,
    adapt=lambda settings: WITH_TESTS if settings.tests else {},
    grid=("depths", "variants", "seeds"),
    choices={"variants": tuple(VARIANTS)},
    key=("variant", "depth", "seed"),
    columns=("variant", "depth", "seed", "title", "mixup", "published_accuracy", *OUTCOME),
    points=points, setup=setup, row=row, lines={"curves.csv": imagenet.CURVES},
    table=table, plot=plot, heading=imagenet.heading,
    note=functools.partial(imagenet.note, WHAT_IT_SHOWS),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
