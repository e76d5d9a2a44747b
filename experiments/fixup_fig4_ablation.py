r"""Fixup's figure 4: the training of a deep ResNet when a part of Fixup is left out.

Claim (appendix C.1): "initializing the residual branch layers at a smaller scale (or all zero)
slows down learning, whereas training fails when initializing them at a larger scale; we also see
the clear benefit of adding bias parameters in the network". The figure has the accuracy on the
training minibatches, a moving average over 10 steps, of BatchNorm, Fixup, and four ablations: no
bias; no bias and 0.1x or 10x the suggested scale of the branch layers that are not zero; no
residual branches at all.

Setting, `--scale paper`: ResNet-110 on CIFAR-10, batch 128, the first three epochs, and from
section 4.2 learning rate 0.1, momentum 0.9, weight decay 1e-4, crop and flip, scalars at a tenth
of the rate. Expected order at the end, read off the figure: BatchNorm and Fixup first, then no
bias, then 0.1x; no branches low, 10x at chance. Nobody here has run it yet; it needs a GPU.

`--scale rules` trains what the figure does not have: each rule's part, at 110 layers. Claim
(section 3): "using Rule 2 alone is sufficient and necessary for training extremely deep residual
networks", while "Rule 1 and Rule 3 make further improvements". Rule 2 alone scales all `m` layers
of a branch by `L**(-1/(2m-2))`, none is zero, nor is the head, and there are neither biases nor
multipliers: so Fixup's equation 5 has it as its first option, whose second, `a_m = 0`, is Fixup's.
Beside it: that option with the other rules; rules 1 and 3 without rule 2; none of the three.
(SkipInit's authors hold that rule 2 is not necessary.) Expected, if the claim holds: rule 2 alone
trains; without it nothing does. Both show at this one rate; that the other rules help does not:
rule 2 alone is faster than Fixup here, and equation 5's first option as fast. A narrow ResNet-110
on the digits: batch 64, 120 steps, three seeds, two minutes on two cores.

`--scale laptop` takes a ResNet-56 with half the channels to the 8x8 digits inside scikit-learn:
batch 64, 120 steps, the mean of three seeds, two to four minutes on two cores. The order of the
last ten steps is that of the paper; between Fixup and no bias three seeds do not decide (94.5% and
93.6% on the training batches, 94.2% and 95.2% on the test set). `--scale smoke` takes seconds a run
and shows nothing.

Not as published: without branches nothing is left for Fixup to rescale, so that network keeps a
standard head, as BatchNorm's does.
"""

from __future__ import annotations

import dataclasses
import functools
import time
import warnings
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
from experiments.curves import CurvesFile
from experiments.folder import Row
from experiments.program import Program, build_program
from experiments.table import accuracy_cell, text_table
from experiments.training_run import OUTCOME, OnStep, outcome, train_and_test
from nf_resnets import data, init, models, optim, roles, schemes
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, moving_average
from nf_resnets.roles import Role

# What the variants leave out is what the figure shows.
warnings.filterwarnings("ignore", category=schemes.SchemeWarning)

FIXUP = schemes.get("fixup")
NO_BIAS = dataclasses.replace(FIXUP.anatomy, scalar_biases=False)
NO_BRANCHES = dataclasses.replace(FIXUP.anatomy, branches=False, multiplier=False)

NO_RULE_3 = dataclasses.replace(NO_BIAS, multiplier=False)


def some_rules(
    params: Any,
    depth: int,
    *,
    zero_head: bool = True,
    zero_last: bool = True,
    rescaled: bool = True,
    key: Any = None,
    rules: Any = None,
) -> Any:
    """Fixup's rules 1 and 2, each or not: of a standard initialisation, which must be given.

    Args:
      params: a parameter tree of this library's models, its weights drawn.
      depth: ``L``.
      zero_head: whether the head becomes 0 (rule 1).
      zero_last: whether the last layer of a branch becomes 0 (rule 1).
      rescaled: whether a branch's layers are multiplied by ``L**(-1/(2m-2))`` (rule 2).
      key: none; the weights are not drawn here.
      rules: what the paths of the tree mean.
    """

    def change(leaf: roles.Leaf, value: Any) -> Any:
        branch = leaf.role is Role.BRANCH and leaf.weight
        if (zero_head and leaf.role is Role.HEAD) or (
            zero_last and branch and leaf.layer == leaf.m
        ):
            return 0 * value
        return value * depth ** (-1 / (2 * leaf.m - 2)) if rescaled and branch else value

    return roles.assign(init.standard(params, depth, key=key, rules=rules), rules).map(
        change, params
    )


def _of_fixup(name: str, title: str, **changes: Any) -> schemes.Scheme:
    """Fixup with something changed; its slow leaves are the same."""
    return dataclasses.replace(FIXUP, name=name, title=title, **changes)


def _of_rules(name: str, title: str, anatomy: schemes.Anatomy, **which: bool) -> schemes.Scheme:
    return _of_fixup(name, title, anatomy=anatomy, init=functools.partial(some_rules, **which))


TENTH, TENFOLD = (functools.partial(init.fixup, scale=scale) for scale in (0.1, 10.0))
VARIANTS = {
    "batchnorm": schemes.get("batchnorm"),
    "fixup": FIXUP,
    "no_bias": _of_fixup("no_bias", "no bias", anatomy=NO_BIAS),
    "tenth": _of_fixup("tenth", "0.1x scale, no bias", anatomy=NO_BIAS, init=TENTH),
    "tenfold": _of_fixup("tenfold", "10x scale, no bias", anatomy=NO_BIAS, init=TENFOLD),
    "no_branches": _of_fixup("no_branches", "no branches", anatomy=NO_BRANCHES, init=init.standard),
    "nonzero": _of_rules("nonzero", "no layer 0, all scaled", FIXUP.anatomy, zero_last=False),
    "no_rule_2": _of_rules("no_rule_2", "rules 1 and 3, not 2", FIXUP.anatomy, rescaled=False),
    "rule_2": _of_rules("rule_2", "rule 2 alone", NO_RULE_3, zero_head=False, zero_last=False),
    "no_rule": _of_rules(
        "no_rule", "no rule (He)", NO_RULE_3, zero_head=False, zero_last=False, rescaled=False
    ),
}


FIGURE = ("batchnorm", "fixup", "no_bias", "tenth", "tenfold", "no_branches")
"""The curves of the paper's figure."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the figure's curves depend on."""

    dataset: str
    depth: int
    variants: tuple[str, ...] = FIGURE
    seeds: tuple[int, ...] = (0,)
    stem_channels: int = 16
    batch_size: int = 128
    steps: int = 3 * 390
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    scalar_factor: float = 0.1
    bn_estimate_batches: int = 0  # 0: test with the running statistics
    padding: int = 0
    flip: bool = False
    window: int = 10  # steps of the moving average


SCALES = {
    "smoke": Settings("digits", 8, stem_channels=4, batch_size=64, steps=12),
    "laptop": Settings(
        "digits",
        56,
        seeds=(0, 1, 2),
        stem_channels=8,
        batch_size=64,
        steps=120,
        bn_estimate_batches=4,
    ),
    "rules": Settings(
        "digits",
        110,
        variants=("fixup", "nonzero", "no_rule_2", "rule_2", "no_rule"),
        seeds=(0, 1, 2),
        stem_channels=8,
        batch_size=64,
        steps=120,
    ),
    "paper": Settings("cifar10", 110, padding=4, flip=True),
}


@dataclasses.dataclass(frozen=True)
class Figure4Command(Command):
    """The options of the figure."""

    scale: Literal["smoke", "laptop", "rules", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; rules: Fixup's rules one by one,
    on digits; paper: as published."""
    variants: tuple[str, ...] = ()
    """Curves, with spaces between; by default those of the scale."""


GRID = ("variants", "seeds")
KEY = ("variant", "seed")
COLUMNS = (
    "variant",
    "title",
    "depth",
    "branches",
    "seed",
    "mean_accuracy",
    "last_accuracy",
    *OUTCOME,
)
CURVE_COLUMNS = (*KEY, "step", "loss", "accuracy")


def points(settings: Settings) -> list[grid.Point]:
    """The runs of the figure; those of variants that compile alike share one."""
    found = []
    for name in settings.variants:
        anatomy = VARIANTS[name].anatomy
        depth = settings.depth if anatomy.branches else 1
        for seed in settings.seeds:
            found.append(
                grid.Point(
                    key={"variant": name, "seed": seed},
                    label=f"{VARIANTS[name].title}, seed {seed}",
                    program=VARIANTS[name].compiles_as,
                    cost=grid.cost(depth, settings.steps, norm=anatomy.normalized),
                )
            )
    return found


def make_program(settings: Settings, dataset: data.Dataset, variant: str) -> Program:
    """Builds what the runs of one anatomy need."""
    model = models.CifarResNet(
        depth=settings.depth,
        scheme=VARIANTS[variant],
        num_classes=dataset.num_classes,
        stem_channels=settings.stem_channels,
    )

    def optimizer(hyper: dict[str, Any]) -> Any:
        return optim.sgd(
            hyper["learning_rate"],
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            scheme=VARIANTS[variant],
            scalar_factor=settings.scalar_factor,
        )

    return build_program(
        model,
        dataset,
        optimizer,
        batch_size=settings.batch_size,
        steps=settings.steps,
        augmentation=data.Augmentation(settings.padding, settings.flip),
        bn_estimate_batches=settings.bn_estimate_batches,
        draw="fan_out",
    )


def run(
    settings: Settings, program: Program, point: grid.Point, curves: CurvesFile, on_step: OnStep
) -> Row:
    """Trains one variant, keeps its curve, returns its row."""
    variant, seed = point.key["variant"], point.key["seed"]
    hyper = {"learning_rate": settings.learning_rate}
    made = train_and_test(program, VARIANTS[variant], seed, hyper, on_step)
    steps = [{"step": step, **metrics} for step, metrics in enumerate(made.curve, start=1)]
    curves.put(point.key, steps)
    accuracy = [metrics["accuracy"] for metrics in made.curve]
    last = accuracy[-settings.window :]
    return {
        "variant": variant,
        "title": VARIANTS[variant].title,
        "depth": settings.depth,
        "branches": program.model.num_branches,
        "seed": seed,
        "mean_accuracy": sum(accuracy) / len(accuracy),
        "last_accuracy": sum(last) / len(last),
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


def plot(
    rows: dict[str, list[Row]], curves: CurvesFile, settings: Settings, path: Any, chance: float
) -> None:
    """Draws the figure: for each variant the mean over its seeds, as far as all of them went."""
    drawn = []
    for of_variant in rows.values():
        paths = [[100 * float(step["accuracy"]) for step in curves.of(row)] for row in of_variant]
        mean = [sum(step) / len(step) for step in zip(*paths, strict=False)]
        gone = any(row["status"] == "diverged" for row in of_variant)
        drawn.append(
            Curve(
                of_variant[0]["title"],
                range(1, len(mean) + 1),
                moving_average(mean, settings.window),
                diverged=gone,
            )
        )
    curves_figure(
        [
            Panel(
                "step",
                f"training accuracy (%), {settings.window}-step average",
                drawn,
                y_limits=(0, 100),
                level=(100 * chance, f"chance ({100 * chance:.0f}%)"),
            )
        ],
        path,
        title=f"Fixup's parts left out, ResNet-{settings.depth}",
        subtitle=(
            f"{settings.dataset}, {settings.stem_channels} channels, learning rate "
            f"{settings.learning_rate:g}, batch {settings.batch_size}, {len(settings.seeds)} "
            f"seed{'s' if len(settings.seeds) > 1 else ''}"
        ),
    )


def table(rows: dict[str, list[Row]], settings: Settings) -> str:
    """Mean accuracies over the seeds: of all steps, which tells how fast, the last, and the test.

    The test is that of the runs that finished; the others are counted.
    """
    cells = [["variant", "all steps", f"last {settings.window} steps", "test"]]
    for of_variant in rows.values():
        means = (
            sum(100 * float(row[name]) for row in of_variant) / len(of_variant)
            for name in ("mean_accuracy", "last_accuracy")
        )
        title = of_variant[0]["title"]
        cells.append([title, *(f"{mean:.1f}" for mean in means), accuracy_cell(of_variant)])
    return text_table(cells)


def main(command: Figure4Command) -> int:
    """Makes what is missing, prints the table, draws the figure; returns the exit code."""
    grid.stop_at_once()
    for name in command.variants:
        if name not in VARIANTS:
            raise SystemExit(f"--variants {name} found; expected some of {', '.join(VARIANTS)}.")
    settings: Settings = resolve(command, SCALES, GRID)
    dataset = load_data(settings.dataset, command.data_dir)
    folder = open_folder(
        "fixup_fig4_ablation", command, settings, grid=GRID, columns=COLUMNS, key=KEY
    )
    curves = CurvesFile(folder, columns=CURVE_COLUMNS, key=KEY)
    runs = f"{len(settings.variants)} variants x {len(settings.seeds)} seeds"
    first_words("Fixup figure 4", command, settings.dataset, runs, folder)
    start = time.monotonic()
    failures = grid.make_rows(
        points(settings),
        folder,
        workers=workers_of(command),
        make_program=lambda point: make_program(settings, dataset, point.key["variant"]),
        run=lambda program, point, on_step: run(settings, program, point, curves, on_step),
    )
    keep_failures(folder, failures)

    rows = rows_by_variant(folder.rows, settings)
    text = table(rows, settings)
    print(f"\nTraining and test accuracy (%), chance {100 / dataset.num_classes:.0f}%:\n\n{text}")
    folder.write_text("table.txt", text + "\n")
    if rows:
        folder.draw(
            "figure.png", lambda path: plot(rows, curves, settings, path, 1 / dataset.num_classes)
        )
    return last_words(folder, failures, start)


if __name__ == "__main__":
    raise SystemExit(
        main(
            tyro.cli(Figure4Command, description="Redraw Fixup's figure 4: what each part is for.")
        )
    )
