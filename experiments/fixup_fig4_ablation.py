r"""Fixup's figure 4: the training of a deep ResNet when a part of Fixup is left out.

Claim (appendix C.1): "initializing the residual branch layers at a smaller scale (or all zero)
slows down learning, whereas training fails when initializing them at a larger scale; we also see
the clear benefit of adding bias parameters in the network". The figure has the accuracy on the
training minibatches, a moving average over 10 steps, of BatchNorm, Fixup, and four ablations: no
bias; no bias and 0.1x or 10x the suggested scale of the branch layers that are not zero; no
residual branches at all.

Setting, `--scale paper`, for a GPU: ResNet-110 on CIFAR-10, the first three epochs, and from
section 4.2 learning rate 0.1, momentum 0.9, weight decay 1e-4, crop and flip; scalars at a tenth of
the rate, which the authors' code has always and the paper only with mixup. Expected order at the
end, read off the figure: BatchNorm and Fixup first, then no bias, then 0.1x; no branches low, 10x
at chance. `--scale cifar` trains a ResNet-20 (or another, `--depth 56`) for one epoch with three
seeds, with rule 2 alone as another variant: about an hour on two idle cores. On the last ten
training batches BatchNorm has 51%, Fixup 39% and rule 2 alone 37%. In ResNet-56, one seed, they
have 34%, 40% and 37%.

`--scale rules` ablates the rules at 110 layers, which the figure does not. Claim (section 3):
"using Rule 2 alone is sufficient and necessary for training extremely deep residual networks",
while "Rule 1 and Rule 3 make further improvements". Rule 2 alone scales all `m` layers of a branch
by `L**(-1/(2m-2))`. No layer is zero, nor is the head, and there are neither biases nor
multipliers. This is the first option of Fixup's equation 5; Fixup is the second, `a_m = 0`. The
other networks have the first option with rules 1 and 3 otherwise; rules 1 and 3 without rule 2;
none of the rules. (SkipInit's authors hold that rule 2 is not necessary.) Expected, if the claim
holds: rule 2 alone trains, and nothing trains without it. Both show at this one rate, the second
among Fixup's rules: SkipInit has no rule 2 and trains. That the other rules help does not show:
rule 2 alone is faster than Fixup here, and the first option with the other rules is as fast as
Fixup. A narrow ResNet-110 on the digits, two to five minutes on two
cores.

`--scale laptop` trains a ResNet-56 with half the channels on the 8x8 digits inside scikit-learn,
three seeds, two to four minutes on two cores. The order of the last ten steps is that of the paper,
but three seeds do not separate Fixup and no bias (94.5% and 93.6% on the training batches, 94.2%
and 95.2% on the test set). `--scale smoke` takes seconds a run and shows nothing.

Not as published: without branches Fixup has nothing to rescale, so that this network keeps a
standard head, as BatchNorm's does.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from nf_resnets import data, init, models, roles, schemes
from nf_resnets.looks import LOOKS, Look
from nf_resnets.plotting.curves import Panel, curves_figure, smoothed
from nf_resnets.roles import Role

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
from .images import image_setup, lengths, network, variant_points
from .main import run
from .runs import CURVE_POINTS
from .table import accuracy_cell, data_title, grouped, seeds_shown, text_table

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
    """Fixup's rules 1 and 2, each or not, applied to weights that are drawn already.

    Args:
      params: a parameter tree of this library's models.
      depth: ``L``.
      zero_head: whether the head becomes 0 (rule 1).
      zero_last: whether the last layer of a branch becomes 0 (rule 1).
      rescaled: whether a branch's layers are multiplied by ``L**(-1/(2m-2))`` (rule 2).
      key: none.
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


# The same in each of the figures; hollow, as a part is missing.
LOOKS.update(
    {
        VARIANTS[name].title: Look(color, marker, fillstyle="none")
        for name, color, marker in (
            ("no_bias", "#0E6E2E", "P"), ("tenth", "#2FA58F", "v"), ("tenfold", "#1D2150", "s"),
            ("no_branches", "#6B1A05", "D"), ("nonzero", "#2B1B3D", "X"),
            ("no_rule_2", "#8C6D31", "<"), ("rule_2", "#C9576A", "^"),
        )
    },
    **{VARIANTS["no_rule"].title: LOOKS["He"]},
)  # fmt: skip

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
        "digits", 56, seeds=(0, 1, 2), stem_channels=8, batch_size=64, steps=120,
        bn_estimate_batches=4,
    ),
    "rules": Settings(
        "digits", 110, variants=("fixup", "nonzero", "no_rule_2", "rule_2", "no_rule"),
        seeds=(0, 1, 2), stem_channels=8, batch_size=64, steps=120,
    ),
    "cifar": Settings(
        "cifar10", 20, variants=(*FIGURE, "rule_2"), seeds=(0, 1, 2), steps=390, padding=4,
        flip=True,
    ),
    "paper": Settings("cifar10", 110, padding=4, flip=True),
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """The options of the figure."""

    scale: Literal["smoke", "laptop", "rules", "cifar", "paper"] = "laptop"
    """smoke: seconds a run; laptop: digits, minutes on two cores; rules: Fixup's rules one by one,
    on digits; cifar: a ResNet-20, an hour on two cores; paper: as published."""
    depth: int | None = None
    """Layers, 6N + 2; by default the scale's."""
    variants: tuple[str, ...] = ()
    """Curves, with spaces between; by default those of the scale."""


def check(settings: Settings, command: Command) -> Settings:
    """Refuses a depth without a network, and more steps than a curve has points."""
    models.CifarResNet(depth=settings.depth)
    if settings.steps > CURVE_POINTS:
        raise ValueError(
            f"--steps {settings.steps} found; expected at most {CURVE_POINTS}, since the averages "
            "of the figure and the table are of single steps."
        )
    return settings


def points(settings: Settings, dataset: data.Dataset, rows: Sequence[Row]) -> list[Point]:
    """The runs; those of variants that compile alike share a program."""
    every = lengths(dataset, settings.batch_size, settings.steps)
    return variant_points(VARIANTS, settings, every)


def setup(settings: Settings, dataset: data.Dataset, point: Point) -> Setup:
    """Network, optimizer and steps of one anatomy."""
    model, factor = network(models.CifarResNet, settings, dataset, point), settings.scalar_factor
    return image_setup(model, dataset, settings, point, draw="fan_out", scalar_factor=factor)


CURVES = curve_lines(lambda settings: settings.steps)


def row(settings: Settings, point: Point, run: Mapping[str, Any]) -> Row:
    """The accuracy on the training batches: of all steps, which tells how fast, and the last."""
    accuracy = [line["accuracy"] for line in CURVES.of(settings, point, run)]
    last = accuracy[-settings.window :]
    return {
        "mean_accuracy": sum(accuracy) / len(accuracy),
        "last_accuracy": sum(last) / len(last),
    }


def plot(results: Results, path: Path) -> None:
    """Draws the figure: for each variant the mean over its seeds, as far as all of them went."""
    settings = results.settings
    drawn = [smoothed(curve, settings.window) for curve in mean_curves(results, "variant")]
    panel = Panel(
        "step",
        f"training accuracy (%), {settings.window}-step average",
        drawn,
        y_limits=(0, 100),
        level=(100 * results.chance, f"chance ({100 * results.chance:.0f}%)"),
    )
    curves_figure(
        [panel],
        path,
        title=who_trains(results.rows, results.chance),
        subtitle=(
            f"Fixup's parts left out of ResNet-{settings.depth} on {data_title(settings.dataset)}, "
            f"{settings.stem_channels} channels, learning rate "
            f"{settings.learning_rate:g}, batch {settings.batch_size}, "
            f"{seeds_shown(results.rows, 'variant')}. {RULE.format(what='test accuracy')}"
        ),
    )


def table(results: Results) -> str:
    """Mean accuracies over the seeds: of all steps, the last ones, and of the test.

    The test is that of the runs that finished; the others are counted.
    """
    cells = [["variant", "all steps", f"last {results.settings.window} steps", "test"]]
    for rows in grouped(results.rows, "variant").values():
        means = (
            f"{sum(100 * float(row[name]) for row in rows) / len(rows):.1f}"
            for name in ("mean_accuracy", "last_accuracy")
        )
        cells.append([rows[0]["title"], *means, accuracy_cell(rows)])
    return text_table(cells)


EXPERIMENT = Experiment(
    name="fixup_fig4_ablation",
    title="Fixup figure 4",
    description="Redraw Fixup's figure 4: what each part is for.",
    scales=SCALES, command=Command, check=check,
    grid=("variants", "seeds"),
    choices={"variants": tuple(VARIANTS)},
    key=("variant", "seed"),
    columns=(
        "variant", "title", "depth", "branches", "seed", "mean_accuracy", "last_accuracy", *OUTCOME
    ),
    points=points, setup=setup, row=row, lines={"curves.csv": CURVES}, table=table, plot=plot,
    heading=lambda results: (
        f"Training and test accuracy (%), chance {100 * results.chance:.0f}%:"
    ),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
