r"""Fixup's figure 3: depth of residual networks against test accuracy after the first epoch.

Claim (section 4.1): Fixup trains networks of up to 10,000 layers with the learning rate of batch
normalisation, while LSUV and scaling each block by sqrt(1/2) fail past 100 layers. The SkipInit
paper (table 1) adds that `alpha = 0` trains at 1,000 layers and `alpha = 1` does not.

Setting: WRN-n-1, momentum 0.9, weight decay 5e-4. `--scale paper` is CIFAR-10, one epoch, with crop
and flip, for a GPU. It is one reading of the published settings: scalars train at a tenth of the
rate, which the authors' code has always and the paper only with mixup, and the momentum is plain,
where the default of Wide ResNets is Nesterov's. Expected (read off the figure): Fixup and BatchNorm
near 50% at every depth (a user found about 40% for Fixup with a ResNet-32: issue 10 of
hongyi-zhang/Fixup); LSUV and sqrt(1/2) near chance past 100 layers. `--scale cifar` is the same to
304 layers, with three seeds at 10 and 34, and to 1,000 for Fixup and SkipInit: about 15 hours on
two idle cores, which may be interrupted. In both, SkipInit's alpha trains at the full rate, as in
its paper, and at a tenth, as Fixup's scalars do. BatchNorm is tested with its running statistics,
and with those of eight training batches at the final weights.

`--scale laptop` trains the same networks on the 8x8 digits inside scikit-learn: 44 steps (two
epochs), two to six minutes on two cores. Expected at 1,000 layers: Fixup and SkipInit above 70%,
BatchNorm above 50%; `alpha = 1`, LSUV and sqrt(1/2) diverged or at chance, 10%, as from 34 layers
on here. `--scale demo` leaves out the runs of 34 layers, of LSUV, and of sqrt(1/2) at 1,000.
`--scale smoke` takes seconds a run and shows nothing.

Not as published: SkipInit and `alpha = 1` are added. All schemes but LSUV start from one draw, He
(fan_in); with one grey input channel fan_in keeps the stem's signal four times as large as fan_out
would. Crop and flip are the usual ones. No bias stands before the convolution of a block's
shortcut, where rule 3 asks for one. In `laptop` and `smoke` SkipInit's alpha trains at a tenth of
the rate, as Fixup's scalars do. Its paper uses the full rate, and the best one for each depth; here
all schemes share one. That was chosen after runs, not kept, in which some seeds with 150 branches
or more diverged at the full 0.1. `laptop` tests BatchNorm with the statistics of four training
batches at the final weights, since the running averages are out of date after 44 steps.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nf_resnets import data, models, plotting, schemes
from nf_resnets.roles import Group, Role
from nf_resnets.training import Program, Start, image_test

from . import experiment
from .experiment import OUTCOME, Experiment, Point, Results, Setup, number
from .findings import RULE, how_deep, who_trains
from .folder import Row
from .images import image_setup, lengths, network
from .main import run
from .table import data_title, grouped, seeds_counted, spread_cell, text_table


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the figure's rows depend on."""

    dataset: str
    depths: tuple[int, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    width: int = 1
    stem_channels: int = 16
    batch_size: int = 128
    batch_size_from_10000_layers: int = 64
    steps: int | None = None  # None: one epoch
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    scalar_factor: float = 0.1
    slow_alpha: bool = True  # SkipInit's alpha, too, at scalar_factor times the rate
    bn_groups: int = 1
    bn_estimate_batches: int = 0  # 0: test with the running statistics
    padding: int = 0
    flip: bool = False
    remat_from: int = 5_000  # layers
    eval_batch_size: int = 500
    second_test_batches: int | None = None  # estimate BatchNorm's statistics for a second test
    one_seed_from: int | None = None  # layers; from there on only the first of the seeds
    deepest: tuple[str, ...] | None = None  # the only schemes from 1,000 layers on


SKIPINIT = schemes.get("skipinit")
SLOW = dataclasses.replace(
    SKIPINIT,
    name="skipinit_slow",
    title=f"{SKIPINIT.title}, slow α",
    scalars=SKIPINIT.scalars | Group((Role.ALPHA,)),
)


def scheme_of(name: str) -> schemes.Scheme:
    """A scheme of the library, or SkipInit whose alpha trains at a tenth of the rate."""
    return SLOW if name == SLOW.name else schemes.fitting(name, "pre_activation")


SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "lsuv", "alpha_one")
SCALES = {
    "smoke": Settings("digits", (10, 16), SCHEMES, stem_channels=4, batch_size=64, steps=4),
    "laptop": Settings(
        "digits", (10, 34, 100, 1000), SCHEMES, batch_size=64, steps=44, bn_estimate_batches=4
    ),
    "paper": Settings(
        "cifar10", (10, 34, 100, 304, 1000, 10_000), (*SCHEMES, SLOW.name), slow_alpha=False,
        padding=4, flip=True, second_test_batches=8,
    ),
}  # fmt: skip
SCALES["demo"] = dataclasses.replace(
    SCALES["laptop"],
    depths=(10, 100, 1000),
    schemes=tuple(name for name in SCHEMES if name != "lsuv"),
    deepest=("fixup", "skipinit", "batchnorm", "alpha_one"),
)
SCALES["cifar"] = dataclasses.replace(
    SCALES["paper"],
    depths=(10, 34, 100, 304, 1000),
    seeds=(0, 1, 2),
    one_seed_from=100,
    deepest=("fixup", "skipinit"),
)


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the figure."""

    scale: Literal["smoke", "demo", "laptop", "cifar", "paper"] = "laptop"
    """smoke: seconds a run; demo, laptop: digits, minutes on two cores; cifar: as paper, to 1,000
    layers, hours on two cores; paper: CIFAR-10, to 10,000 layers."""
    depths: tuple[int, ...] = ()
    """Depths in layers, 6N + 4 each, with spaces between; by default those of the scale."""
    schemes: tuple[str, ...] = ()
    """Schemes for pre-activation networks, such as fixup, skipinit, rescalenet, lsuv, sqrt_half,
    batchnorm; by default those of the scale."""


def check(settings: Settings, command: Command) -> Settings:
    """Refuses depths and schemes without a network."""
    for depth in settings.depths:
        models.WideResNet(depth=depth)
    for scheme in settings.schemes:
        scheme_of(scheme)
    return settings


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs, shallow networks first; those of one depth that compile alike share a program."""
    hyper = {"learning_rate": settings.learning_rate, "weight_decay": settings.weight_decay}
    found = []
    for depth, name, seed in itertools.product(settings.depths, settings.schemes, settings.seeds):
        if settings.one_seed_from and depth >= settings.one_seed_from and seed != settings.seeds[0]:
            continue
        if settings.deepest and depth >= 1000 and name not in settings.deepest:
            continue
        scheme, batch_size = scheme_of(name), settings.batch_size
        if depth >= 10_000:
            batch_size = min(batch_size, settings.batch_size_from_10000_layers)
        found.append(
            Point(
                key={"scheme": name, "depth": depth, "seed": seed},
                title=scheme.title,
                start=Start(scheme, seed, hyper),
                program=(depth, scheme.compiles_as),
                priority=depth,
                **lengths(dataset, batch_size, settings.steps),
            )
        )
    return found


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one depth and one anatomy."""
    remat = point.key["depth"] >= settings.remat_from
    model = network(models.WideResNet, settings, dataset, point, remat=remat)
    slow = point.start.scheme.scalars | Group((Role.ALPHA,)) if settings.slow_alpha else None
    factor = settings.scalar_factor
    return image_setup(model, dataset, settings, point, scalars=slow, scalar_factor=factor)


def second_test(
    settings: Settings, dataset: data.Dataset, point: Point, program: Program, state: Any
) -> dict[str, float]:
    """Accuracy with BatchNorm's statistics of some training batches, at the final weights."""
    if not point.start.scheme.anatomy.has_batch_norm:
        return {}
    how = dataclasses.replace(
        setup(settings, dataset, point).training, bn_estimate_batches=settings.second_test_batches
    )
    test = image_test(program.model, dataset, program.mesh, how)
    accuracy = test(program.put(program.empty(), 0, state))["accuracy"]
    return {SECOND: float(accuracy[0])}


SECOND = "estimated_accuracy"


def adapt(settings: Settings) -> dict[str, Any]:
    """A column for the second test, where there is one."""
    if not settings.second_test_batches:
        return {}
    return {
        "columns": (*EXPERIMENT.columns, SECOND),
        "finish": second_test,
        "row": lambda settings, point, run: {SECOND: number(run["measures"].get(SECOND))},
    }


def table(results: Results) -> str:
    """The mean test accuracies in percent, schemes down, depths across.

    A mean is that of the finished runs, with their standard deviation; the others are counted
    beside it. BatchNorm's second test is a line of its own.
    """
    of = grouped(results.rows, "scheme", "depth")
    cells = [["scheme", *(f"{depth:,}" for depth in results.settings.depths)]]
    for name in results.settings.schemes:
        line = [of.get((name, str(depth)), []) for depth in results.settings.depths]
        cells.append([scheme_of(name).title, *map(spread_cell, line)])
        tested_twice = results.settings.second_test_batches and any(line)
        if tested_twice and scheme_of(name).anatomy.has_batch_norm:
            second = (spread_cell(rows, SECOND) for rows in line)
            cells.append([f"{scheme_of(name).title}, estimated statistics", *second])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws the figure, the curves in the order of the settings."""
    settings = results.settings
    most = max(int(row["depth"]) for row in results.rows)
    deepest = [row for row in results.rows if int(row["depth"]) == most]
    after = "the first epoch" if settings.steps is None else f"{settings.steps} steps"
    plotting.depth_figure(
        sorted(results.rows, key=lambda row: settings.schemes.index(row["scheme"])),
        path,
        title=who_trains(deepest, results.chance, where=f" at {most:,} layers"),
        subtitle=(
            f"Test accuracy after {after}: WRN-n-{settings.width} on "
            f"{data_title(settings.dataset)}, {settings.stem_channels} channels, "
            f"learning rate {settings.learning_rate:g}, batch {settings.batch_size}, "
            f"{seeds_counted(results.rows, 'scheme', 'depth')}. {RULE.format(what='accuracy')}"
        ),
        chance=results.chance,
    )


EXPERIMENT = Experiment(
    name="fixup_fig3_depth",
    title="Fixup figure 3",
    description="Redraw Fixup's figure 3: test accuracy against depth, one curve for each scheme.",
    scales=SCALES, command=Command, check=check, adapt=adapt,
    grid=("depths", "schemes", "seeds", "one_seed_from", "deepest"),
    key=("scheme", "depth", "seed"),
    columns=("scheme", "title", "depth", "branches", "seed", *OUTCOME),
    points=points, setup=setup, table=table, plot=plot,
    seen=lambda results: how_deep(results.rows, results.chance),
    heading=lambda results: (
        f"Test accuracy (%) by depth in layers, chance {100 * results.chance:.0f}%:"
    ),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
