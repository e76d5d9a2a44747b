r"""Fixup's figure 3: depth of residual networks against test accuracy after the first epoch.

Claim (section 4.1): Fixup trains networks of up to 10,000 layers with the learning rate of batch
normalization, while LSUV and scaling each block by sqrt(1/2) fail past 100 layers. The SkipInit
paper (table 1) adds that `alpha = 0` trains at 1,000 layers and `alpha = 1` does not.

Setting: WRN-n-1, momentum 0.9, weight decay 5e-4. `--scale paper` is CIFAR-10, one epoch, with crop
and flip, for a GPU. It is one reading of the published settings: scalars train at a tenth of the
rate, which the authors' code has always and the paper only with mixup, and the momentum is plain,
where the default of Wide ResNets is Nesterov's. Expected (read off the figure): Fixup and BatchNorm
near 50% at every depth (a user found about 40% for Fixup with a ResNet-32: issue 10 of
hongyi-zhang/Fixup); LSUV and sqrt(1/2) near chance past 100 layers. `--scale cifar` is the same to
304 layers, and to 1,000 for Fixup and SkipInit: about 15 hours on two cores. In both, SkipInit's
alpha trains at the full rate, as in its paper, and at a tenth.

Criteria of rows of `cifar` that came later, fixed before them: a scheme trains at a depth if every
seed ends above 20%, and RescaleNet, or BatchNorm at 100 layers, matches Fixup if their means differ
by less than the larger standard deviation of the two. The reading of the settings does not matter
to Fixup and BatchNorm at 10 and 34 layers if seed 0 with scalars at the full rate and Nesterov's
momentum ends within the range of the three seeds of the first reading, wider by 2 points on both
sides; and of one change alone, Fixup at 34 layers fails by it if it ends below 20%. SkipInit
trains 1,000 layers if seed 0 with a rate of 2^-5, or with alpha at a tenth of 0.1, ends above 20%.

`--scale laptop` trains the same networks on the 8x8 digits inside scikit-learn: 44 steps (two
epochs), two to six minutes on two cores. Expected at 1,000 layers: Fixup and SkipInit above 70%,
BatchNorm above 50%; the others diverged or at chance, 10%, as from 34 layers on here. `--scale
demo` leaves out the runs of 34 layers, of LSUV, and of sqrt(1/2) at 1,000.

Not as published: SkipInit and `alpha = 1` are added. All schemes but LSUV start from one draw, He
(fan_in); with one grey input channel fan_in keeps the stem's signal four times as large as fan_out
would. No bias stands before the convolution of a block's shortcut, where rule 3 asks for one. In
`laptop` and `smoke` SkipInit's alpha trains at a tenth of the rate; its paper uses the full rate,
and the best one for each depth. That was chosen after runs, not kept, in which some seeds with 150
branches or more diverged at the full 0.1. `laptop` tests BatchNorm with the statistics of four
training batches at the final weights, since the running averages are out of date after 44 steps.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from nf_resnets import plotting, schemes
from nf_resnets.roles import Group, Role
from nf_resnets.training import device_splits, image_test

from .experiment import Experiment, Results, Row
from .grid import grid
from .main import run
from .table import grouped, spread_cell, text_table


def slow_alpha(name: str) -> schemes.Scheme:
    """A scheme whose alpha trains at a tenth of the rate, as Fixup's scalars do."""
    scheme = schemes.get(name)
    scalars = scheme.scalars | Group((Role.ALPHA,))
    return dataclasses.replace(
        scheme, name=f"{name}_slow", title=f"{scheme.title}, slow α", scalars=scalars
    )


SLOW = (slow_alpha("skipinit"), slow_alpha("alpha_one"))
SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "lsuv", "alpha_one")
ON_DIGITS = ("fixup", "skipinit_slow", "batchnorm", "sqrt_half", "lsuv", "alpha_one_slow")
SECOND_TEST = 8  # training batches whose statistics BatchNorm is tested with besides
SECOND = "estimated_accuracy"

CIFAR10 = {
    "dataset": "cifar10", "epochs": 1.0, "batch_size": 128, "stem_channels": 16, "peak_lr": 0.1,
    "schedule": "constant", "weight_decay": 5e-4, "scalar_factor": 0.1, "ghost_batch": 0,
    "padding": 4, "flip": True, "evaluate_every": 0,
}  # fmt: skip
DIGITS = CIFAR10 | {
    "dataset": "digits", "epochs": 0.0, "steps": 44, "batch_size": 64, "bn_estimate_batches": 4,
    "padding": 0, "flip": False,
}  # fmt: skip


def wrn(*depths: int) -> list[str]:
    """The names of Wide ResNets of width 1."""
    return [f"wrn-{depth}-1" for depth in depths]


SMOKE = DIGITS | {"steps": 4, "stem_channels": 4, "bn_estimate_batches": 0}
DEEPEST = CIFAR10 | {"batch_size": 64, "remat": True}
DEMO = [name for name in ON_DIGITS if name != "lsuv"]
DEEP_DEMO = ("batchnorm", "fixup", "skipinit_slow", "alpha_one_slow")
EVERY = (*SCHEMES, "skipinit_slow")
SCALES = {  # shallow networks first
    "smoke": grid(SMOKE, model=wrn(10, 16), scheme=ON_DIGITS, seed=[0]),
    "demo": grid(DIGITS, model=wrn(10, 100), scheme=DEMO, seed=[0])
    # BatchNorm's takes the longest: first, so that two cores end together.
    + grid(DIGITS, model=wrn(1000), scheme=DEEP_DEMO, seed=[0]),
    "laptop": grid(DIGITS, model=wrn(10, 34, 100, 1000), scheme=ON_DIGITS, seed=[0]),
    "cifar": grid(CIFAR10, model=wrn(10, 34), scheme=EVERY, seed=[0, 1, 2])
    + grid(CIFAR10, model=wrn(100, 304), scheme=EVERY, seed=[0])
    + grid(CIFAR10, model=wrn(1000), scheme=["fixup", "skipinit"], seed=[0]),
    "paper": grid(CIFAR10, model=wrn(10, 34, 100, 304, 1000), scheme=EVERY, seed=[0])
    + grid(DEEPEST, model=wrn(10_000), scheme=EVERY, seed=[0]),
}


def second_test(task: Any, program: Any, plan: Any, state: Any) -> dict[str, float]:
    """Accuracy with BatchNorm's statistics of some training batches, at the final weights."""
    scheme = schemes.get(plan.settings["scheme"])
    if plan.settings["bn_estimate_batches"] or not scheme.anatomy.has_batch_norm:
        return {}
    _, kind, dataset = task.of(plan)
    how = dataclasses.replace(kind.how, bn_estimate_batches=SECOND_TEST)
    splits, states = device_splits(dataset, program.mesh), program.begin([state])
    test = image_test(program.model, program.mesh, how, splits, states)
    return {SECOND: float(test(states)["accuracy"][0])}


def table(results: Results) -> str:
    """The mean test accuracies in percent, schemes down, depths across.

    BatchNorm's second test is a line of its own.
    """
    depths = sorted({int(row["depth"]) for row in results.rows})
    cells = [["scheme", *(f"{depth:,}" for depth in depths)]]
    for (title,), rows in grouped(results.rows, "title").items():
        line = [[row for row in rows if int(row["depth"]) == depth] for depth in depths]
        cells.append([title, *map(spread_cell, line)])
        if any(row.get(SECOND) not in (None, "", "nan") for row in rows):
            second = (spread_cell(each, SECOND) for each in line)
            cells.append([f"{title}, estimated statistics", *second])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws test accuracy against depth, a curve for each scheme."""
    how = {"subtitle": results.about, "chance": 0.1}
    plotting.depth_figure(results.rows, path, title="Test accuracy against depth", **how)


def columns(row: Row) -> Row:
    """The second test, where there is one."""
    return {name: value for name, value in row["measures"].items() if name == SECOND}


EXPERIMENT = Experiment(
    "fixup_fig3_depth", SCALES, table, figure, schemes=SLOW, finish=second_test, columns=columns
)

if __name__ == "__main__":
    run(EXPERIMENT)
