r"""Fixup's figure 4: the training of a deep ResNet when a part of Fixup is left out.

Claim (appendix C.1): "initializing the residual branch layers at a smaller scale (or all zero)
slows down learning, whereas training fails when initializing them at a larger scale; we also see
the clear benefit of adding bias parameters in the network". The figure has the accuracy on the
training minibatches, a moving average over 10 steps, of BatchNorm, Fixup, and four ablations: no
bias; no bias and 0.1x or 10x the suggested scale of the branch layers that are not zero; no
residual branches at all.

Setting, `--scale paper`, for a GPU: the first three epochs of the trainings of section 4.2; scalars
at a tenth of the rate, which the authors' code has always and the paper only with mixup. Expected
order at the end, read off the figure: BatchNorm and Fixup first, then no bias, then 0.1x; no
branches low, 10x at chance. `--scale cifar` trains a ResNet-20 for one epoch, with rule 2 alone as
another variant: about an hour on two cores. `--scale laptop` trains a ResNet-56 on the 8x8 digits
inside scikit-learn, two to four minutes.

Criterion of `--scale paper`, one seed, fixed before its runs: the figure shows if the accuracy on
the training batches, in the mean over the last 100 steps, is highest for BatchNorm and Fixup, lower
without biases, lower again at 0.1x, and at 10x the run diverges or ends below 15%. The claim of
biases shows if Fixup is at least 2 points above no bias.

`--scale rules` ablates the rules at 110 layers, which the figure does not. Claim (section 3):
"using Rule 2 alone is sufficient and necessary for training extremely deep residual networks",
while "Rule 1 and Rule 3 make further improvements". Rule 2 alone scales all `m` layers of a branch
by `L**(-1/(2m-2))`. No layer is zero, nor is the head, and there are neither biases nor
multipliers. This is the first option of Fixup's equation 5; Fixup is the second, `a_m = 0`. The
other networks have the first option with rules 1 and 3 otherwise; rules 1 and 3 without rule 2;
none of the rules. Expected, if the claim holds: rule 2 alone trains, and nothing trains without it.
A narrow ResNet-110 on the digits, two to five minutes on two cores.

Not as published: without branches Fixup has nothing to rescale, so that this network keeps a
standard head, as BatchNorm's does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nf_resnets import init, roles
from nf_resnets.plotting.curves import Panel, curves_figure, smoothed
from nf_resnets.plotting.style import LOOKS
from nf_resnets.roles import Role

from .experiment import CHANCE, CURVE_POINTS, Experiment, Results, Row, curve_of
from .grid import Point, grid, scheme_with
from .main import run
from .table import accuracy_cell, grouped, mean_curves, text_table

WINDOW = 10  # steps of the moving average
NO_BIAS = {"scalar_biases": False}
NO_BRANCHES = {"branches": False, "multiplier": False}
NO_RULE_3 = {"scalar_biases": False, "multiplier": False}
NO_ZEROS = {"zero_head": False, "zero_last": False}


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
    """Fixup's rules 1 (``zero_*``) and 2 (``rescaled``), on standard weights."""

    def change(leaf: roles.Leaf, value: Any) -> Any:
        branch = leaf.role is Role.BRANCH and leaf.weight
        if (zero_head and leaf.role is Role.HEAD) or (
            zero_last and branch and leaf.layer == leaf.m
        ):
            return 0 * value
        return value * depth ** (-1 / (2 * leaf.m - 2)) if rescaled and branch else value

    drawn = init.standard(params, depth, key=key, rules=rules)
    return roles.assign(drawn, rules).map(change, drawn)


def rules(**which: bool) -> Any:
    return partial(some_rules, **which)


ABLATIONS = (
    ("no_bias", "no bias", ("#0E6E2E", "P"), NO_BIAS, init.fixup),
    ("tenth", "0.1x scale, no bias", ("#2FA58F", "v"), NO_BIAS, partial(init.fixup, scale=0.1)),
    ("tenfold", "10x scale, no bias", ("#1D2150", "s"), NO_BIAS, partial(init.fixup, scale=10.0)),
    ("no_branches", "no branches", ("#6B1A05", "D"), NO_BRANCHES, init.standard),
    ("nonzero", "no layer 0, all scaled", ("#2B1B3D", "X"), {}, rules(zero_last=False)),
    ("no_rule_2", "rules 1 and 3, not 2", ("#8C6D31", "<"), {}, rules(rescaled=False)),
    ("rule_2", "rule 2 alone", ("#C9576A", "^"), NO_RULE_3, rules(**NO_ZEROS)),
    ("no_rule", "no rule (He)", LOOKS["He"], NO_RULE_3, rules(rescaled=False, **NO_ZEROS)),
)
"""Name, title, look, parts and initialisation."""
VARIANTS = {
    name: scheme_with("fixup", name, anatomy, title=title, init=drawn)
    for name, title, _, anatomy, drawn in ABLATIONS
}
LOOKS.update({title: look for _, title, look, _, _ in ABLATIONS})
FIGURE = ("batchnorm", "fixup", "no_bias", "tenth", "tenfold", "no_branches")
"""The curves of the paper's figure."""
RULES = ("fixup", "nonzero", "no_rule_2", "rule_2", "no_rule")

CIFAR10 = {
    "dataset": "cifar10", "model": "cifar-resnet-110", "steps": 3 * 390, "batch_size": 128,
    "peak_lr": 0.1, "schedule": "constant", "weight_decay": 1e-4, "scalar_factor": 0.1,
    "draw": "fan_out", "ghost_batch": 0, "padding": 4, "flip": True, "evaluate_every": 0,
    "stem_channels": 16,
}  # fmt: skip
DIGITS = CIFAR10 | {
    "dataset": "digits", "steps": 120, "batch_size": 64, "stem_channels": 8, "padding": 0,
    "flip": False,
}  # fmt: skip


def scale(base: Point, model: str, which: Sequence[str] = FIGURE, seeds: int = 1) -> list[Point]:
    """Schemes and seeds of one network."""
    return grid({**base, "model": model}, scheme=which, seed=range(seeds))


SCALES = {
    "smoke": scale(DIGITS | {"steps": 12, "stem_channels": 4}, "cifar-resnet-8"),
    "laptop": scale(DIGITS | {"bn_estimate_batches": 4}, "cifar-resnet-56", seeds=3),
    "rules": scale(DIGITS, "cifar-resnet-110", RULES, seeds=3),
    "cifar": scale(CIFAR10 | {"steps": 390}, "cifar-resnet-20", (*FIGURE, "rule_2"), seeds=3),
    "paper": scale(CIFAR10, "cifar-resnet-110"),
}


def columns(row: Row) -> Row:
    """The accuracy on the training batches: of all steps, which tells how fast, and the last."""
    accuracy = row["measures"]["curve"]["accuracy"]
    last = accuracy[-WINDOW:]
    return {
        "mean_accuracy": sum(accuracy) / len(accuracy),
        "last_accuracy": sum(last) / len(last),
    }


def figure(results: Results, path: Path) -> None:
    """Draws for each scheme the mean over its seeds, as far as all of them went."""
    curves = [smoothed(curve, WINDOW) for curve in mean_curves(results, results.rows)]
    label = f"training accuracy (%), {WINDOW}-step average"
    panel = Panel("step", label, curves, y_limits=(0, 100), level=CHANCE)
    title = "Training accuracy with parts of Fixup left out"
    curves_figure([panel], path, title=title, subtitle=results.about)


def table(results: Results) -> str:
    """Mean accuracies over the seeds: of all steps, the last ones, and of the test.

    The test is that of the runs that finished; the others are counted.
    """
    cells = [["variant", "all steps", f"last {WINDOW} steps", "test"]]
    for (title,), rows in grouped(results.rows, "title").items():
        means = (
            f"{sum(100 * float(row[name]) for row in rows) / len(rows):.1f}"
            for name in ("mean_accuracy", "last_accuracy")
        )
        cells.append([title, *means, accuracy_cell(rows)])
    return text_table(cells)


EXPERIMENT = Experiment(
    "fixup_fig4_ablation", SCALES, table, figure, schemes=tuple(VARIANTS.values()), columns=columns,
    lines=partial(curve_of, points=CURVE_POINTS),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
