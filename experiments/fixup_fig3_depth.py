r"""Fixup's figure 3: depth of residual networks against test accuracy after the first epoch.

Claim (section 4.1): Fixup trains networks of up to 10,000 layers with the learning rate of batch
normalisation, while LSUV and scaling each block by sqrt(1/2) fail past 100 layers. The SkipInit
paper (table 1) adds that `alpha = 0` trains at 1,000 layers and `alpha = 1` does not.

Setting: WRN-n-1, learning rate 0.1, momentum 0.9, weight decay 5e-4, one seed. `--scale paper` is
the published one: CIFAR-10, batch 128 (64 from 10,000 layers), one epoch; with crop and flip.
Expected (read off the figure): Fixup and BatchNorm near 50% at every depth, of which others
reproduced about 40% for Fixup; LSUV and sqrt(1/2) near chance past 100 layers. Nobody here has run
it yet; it needs a GPU.

`--scale laptop` takes the same networks to the 8x8 digits inside scikit-learn: batch 64, 44 steps
(two epochs), two to five minutes on two cores. Expected at 1,000 layers: Fixup and SkipInit above
70%, BatchNorm above 50%, `alpha = 1`, LSUV and sqrt(1/2) diverged or at
chance, 10%; these fail from 34 layers on here. `--scale smoke` takes seconds a run and shows
nothing.

Not as published: all schemes but LSUV, which is a draw of its own, start from one draw, He
(fan_in), which for a network of one grey input channel keeps the stem's signal four times as large
as fan_out would; SkipInit and `alpha = 1` are added; crop and flip are the usual ones, which the
paper does not spell out. In `laptop` and `smoke` SkipInit's alpha trains at a tenth of the rate, as
Fixup's scalars do: at the full 0.1, the alphas of 150 branches or more swing so far in the first
steps that some seeds diverge (its paper chose the best rate for each depth, and trains alpha at the
full one, as `paper` does; here all schemes share one). And `laptop` tests BatchNorm with the
statistics of four training batches at the final weights, since after 44 steps of a deep network the
running ones are those of a network that is gone.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Literal

import tyro

from experiments import command as commands
from experiments import grid
from experiments.folder import ResultsFolder
from experiments.program import Program, build_program
from experiments.table import accuracy_cell, text_table
from experiments.training_run import OUTCOME, OnStep, outcome, train_and_test
from nf_resnets import data, models, optim, plotting, schemes
from nf_resnets.roles import Group, Role


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


SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "lsuv", "alpha_one")
SCALES = {
    "smoke": Settings("digits", (10, 16), SCHEMES, stem_channels=4, batch_size=64, steps=4),
    "laptop": Settings(
        "digits", (10, 34, 100, 1000), SCHEMES, batch_size=64, steps=44, bn_estimate_batches=4
    ),
    "paper": Settings(
        "cifar10", (10, 34, 100, 304, 1000, 10_000), SCHEMES, slow_alpha=False, padding=4, flip=True
    ),
}
GRID = ("depths", "schemes", "seeds")
KEY = ("scheme", "depth", "seed")
COLUMNS = ("scheme", "title", "depth", "branches", "seed", *OUTCOME)


@dataclasses.dataclass(frozen=True)
class Command:
    """Redraw Fixup's figure 3: test accuracy against depth, one curve for each scheme."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: digits, minutes on two cores; paper: CIFAR-10 as published."""
    depths: tuple[int, ...] = ()
    """Depths in layers, 6N + 4 each, with spaces between; by default those of the scale."""
    schemes: tuple[str, ...] = ()
    """Schemes for pre-activation networks, such as fixup, skipinit, rescalenet, lsuv, sqrt_half,
    batchnorm; by default those of the scale."""
    seeds: tuple[int, ...] = ()
    """Seeds; several make points with error bars."""
    steps: int = 0
    """Steps of each run; 0 for the scale's number."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    out: Path | None = None
    """The results folder; by default runs/fixup_fig3_depth-SCALE. Started again with the same
    folder, the command makes only what is missing."""
    workers: int = 0
    """Runs at a time; 0 for two on a CPU of two cores or more, else one."""


def resolve(command: Command) -> Settings:
    """The scale's settings with what the command line changes, checked."""
    settings: Settings = commands.resolve(command, SCALES, GRID)
    try:
        for depth in settings.depths:
            models.WideResNet(depth=depth)
        for scheme in settings.schemes:
            schemes.fitting(scheme, "pre_activation")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    return settings


def points(settings: Settings) -> list[grid.Point]:
    """The runs of the figure; those of one depth that compile alike share a program.

    Shallow networks come first, so that there is soon something to look at.
    """
    found = []
    for depth in settings.depths:
        for name in settings.schemes:
            scheme = schemes.get(name)
            for seed in settings.seeds:
                label = f"{scheme.title}, {depth:,} layers"
                if len(settings.seeds) > 1:
                    label += f", seed {seed}"
                found.append(
                    grid.Point(
                        key={"scheme": name, "depth": depth, "seed": seed},
                        label=label,
                        program=(depth, scheme.compiles_as),
                        cost=grid.cost(depth, settings.steps, norm=scheme.anatomy.normalized),
                        wave=depth,
                    )
                )
    return found


def make_program(
    settings: Settings, dataset: data.Dataset, depth: int, scheme: schemes.Scheme
) -> Program:
    """Builds (lazily compiled) what the runs of one depth and one anatomy need."""
    batch_size = settings.batch_size
    if depth >= 10_000:
        batch_size = min(batch_size, settings.batch_size_from_10000_layers)
    model = models.WideResNet(
        depth=depth,
        width=settings.width,
        scheme=scheme,
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
        bn_groups=settings.bn_groups,
        remat=depth >= settings.remat_from,
    )
    return build_program(
        model,
        dataset,
        functools.partial(optimizer, settings, scheme),
        batch_size=batch_size,
        steps=settings.steps,
        augmentation=data.Augmentation(settings.padding, settings.flip),
        bn_estimate_batches=settings.bn_estimate_batches,
        eval_batch_size=settings.eval_batch_size,
    )


def optimizer(settings: Settings, scheme: schemes.Scheme, hyper: dict[str, Any]) -> Any:
    """SGD with the settings' constants and the run's own numbers."""
    return optim.sgd(
        hyper["learning_rate"],
        momentum=settings.momentum,
        weight_decay=hyper["weight_decay"],
        scheme=scheme,
        scalars=scheme.scalars | Group((Role.ALPHA,)) if settings.slow_alpha else None,
        scalar_factor=settings.scalar_factor,
    )


def run(
    settings: Settings,
    program: Program,
    scheme: schemes.Scheme,
    seed: int,
    on_step: OnStep,
) -> dict[str, Any]:
    """Trains one network and returns its row."""
    hyper = {"learning_rate": settings.learning_rate, "weight_decay": settings.weight_decay}
    made = train_and_test(program, scheme, seed, hyper, on_step)
    return {
        "scheme": scheme.name,
        "title": scheme.title,
        "depth": program.model.depth,
        "branches": program.model.num_branches,
        "seed": seed,
        **outcome(program, made),
    }


def wanted_rows(rows: list[dict[str, Any]], settings: Settings) -> list[dict[str, Any]]:
    """Those rows of a folder that the settings ask for; it may hold more."""
    return [
        row
        for row in rows
        if row["scheme"] in settings.schemes
        and int(row["depth"]) in settings.depths
        and int(row["seed"]) in settings.seeds
    ]


def plot(rows: list[dict[str, Any]], settings: Settings, path: Path, *, chance: float) -> None:
    """Draws the figure from its rows, the curves in the order of the settings."""
    order = [schemes.get(name).title for name in settings.schemes]
    wanted = wanted_rows(rows, settings)
    wanted.sort(key=lambda row: order.index(row["title"]))
    after = "the first epoch" if settings.steps is None else f"{settings.steps} steps"
    plotting.depth_figure(
        wanted,
        path,
        title=f"Test accuracy after {after} against depth",
        subtitle=(
            f"WRN-n-{settings.width} on {settings.dataset}, {settings.stem_channels} channels, "
            f"learning rate {settings.learning_rate:g}, batch {settings.batch_size}, "
            f"{len(settings.seeds)} seed{'s' if len(settings.seeds) > 1 else ''}"
        ),
        chance=chance,
    )


def table(rows: list[dict[str, Any]], settings: Settings) -> str:
    """The mean test accuracies in percent as a text table, schemes down, depths across.

    A mean is that of the finished runs; the others are counted beside it.
    """
    wanted = wanted_rows(rows, settings)
    cells = [["scheme", *(f"{depth:,}" for depth in settings.depths)]]
    for name in settings.schemes:
        line = [schemes.get(name).title]
        for depth in settings.depths:
            here = [r for r in wanted if r["scheme"] == name and int(r["depth"]) == depth]
            line.append(accuracy_cell(here))
        cells.append(line)
    return text_table(cells)


def make_rows(
    settings: Settings, dataset: data.Dataset, folder: ResultsFolder, workers: int
) -> list[str]:
    """Makes all runs that are missing; returns what went wrong, a traceback for each failed run."""
    return grid.make_rows(
        points(settings),
        folder,
        workers=workers,
        make_program=lambda point: make_program(
            settings, dataset, point.key["depth"], schemes.get(point.key["scheme"])
        ),
        run=lambda program, point, on_step: run(
            settings, program, schemes.get(point.key["scheme"]), point.key["seed"], on_step
        ),
    )


def main(command: Command) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    grid.stop_at_once()
    settings = resolve(command)
    dataset = commands.load_data(settings.dataset, command.data_dir)
    folder = commands.open_folder(
        "fixup_fig3_depth", command, settings, grid=GRID, columns=COLUMNS, key=KEY
    )
    runs = (
        f"{len(settings.schemes)} schemes x {len(settings.depths)} depths x "
        f"{len(settings.seeds)} seeds"
    )
    commands.first_words("Fixup figure 3", command, settings.dataset, runs, folder)
    start = time.monotonic()
    failures = make_rows(settings, dataset, folder, commands.workers_of(command))
    commands.keep_failures(folder, failures)

    text = table(folder.rows, settings)
    print(f"\nTest accuracy (%) by depth in layers, chance {100 / dataset.num_classes:.0f}%:\n")
    print(text)
    folder.write_text("table.txt", text + "\n")
    if wanted_rows(folder.rows, settings):
        folder.draw(
            "figure.png",
            lambda path: plot(folder.rows, settings, path, chance=1 / dataset.num_classes),
        )
    return commands.last_words(folder, failures, start)


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Command)))
