r"""Fixup's table 2: ImageNet with BatchNorm, GroupNorm, Xavier and Fixup, with and without mixup.

Claim (section 4.2): "training with Fixup is fast and stable with the default hyperparameters",
"Fixup alone significantly improves the test error of standard initialization", "there is a large
test error gap between Fixup and BatchNorm" by overfitting, and "with better regularization, the
performance of Fixup is on par with GroupNorm".

Published test errors are `PUBLISHED` (BatchNorm's are quoted from others in the paper); nobody here
has reproduced them. Figures 5 and 6 (appendix C.3) have the errors over the epochs: "without
additional regularization Fixup fits the training set very well, but overfits significantly", and
with mixup it "closely matches the final results yielded by the use of GroupNorm". `--grid
evaluate_every=1` tests every run after each epoch and draws them.

Setting, `--scale paper`: ImageNet through TensorFlow Datasets (`--data-dir`); Fixup's scalars at a
tenth of the rate, BatchNorm's statistics over slices of 32 (Goyal et al.'s batch on a GPU). For the
200 epochs of ResNet-101 the paper names no boundaries of the rate, here twice those of ResNet-50. A
run of ResNet-50 is 500,000 steps, days on a GPU.

Not as published, or not known: whether Fixup without mixup had its scalars at a tenth of the rate,
too (the paper found that "beneficial [...] when additional large regularization is used"); the
groups of GroupNorm in layers of 64 channels, here 16.

`--scale laptop` streams the digits (`experiments.imagenet`) to ResNet-50 with an eighth of the
channels, seven minutes on two cores. It shows whether this bottleneck network trains without
normalization at BatchNorm's learning rate, with and without mixup. At batch 64 the rate of 0.05 is
twice the published one.

Tried first, and changed because Fixup did not learn. The rate 0.1, four times the published one at
this batch: after 130 steps Fixup fell back to chance, 92.5% test error, while BatchNorm had 5.8%,
Xavier 9.2% and Fixup with mixup 11.1%. Before that 0.1 for 10 epochs, with drops after 0.3, 0.6 and
0.9 of the run: Fixup 73.6% and, with mixup, 89.7%, BatchNorm 25.0%, Xavier 11.7%. Rate, epochs and
drops were chosen so that Fixup learns, and for no other row.

Criterion of `laptop` at the rate that is published for this batch, 0.025, one seed, fixed before
its runs: Fixup is *fast and stable with the default hyperparameters* if, with and without mixup, it
neither diverges nor ends above 50% test error; it *improves on standard initialization* if without
mixup its error is at least 1 point below Xavier's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nf_resnets.plotting.curves import Curve, Panel, curves_figure, smoothed

from . import imagenet
from .experiment import Results, Row, curve_of
from .grid import title_in, variants
from .main import run
from .table import accuracy_cell, grouped, published_cell, text_table

VARIANTS = {
    "BatchNorm": {"scheme": "batchnorm"},
    "BatchNorm + mixup": {"scheme": "batchnorm", "mixup": 0.2},
    "GroupNorm + mixup": {"scheme": "groupnorm", "mixup": 0.1},
    "Xavier": {"scheme": "xavier"},
    "Fixup": {"scheme": "fixup"},
    "Fixup + mixup": {"scheme": "fixup", "mixup": 0.7},
}
PUBLISHED = {
    50: dict(zip(VARIANTS, (23.6, 23.3, 23.9, 31.5, 27.6, 24.0), strict=True)),
    101: {
        "BatchNorm": 22.0, "BatchNorm + mixup": 20.8, "GroupNorm + mixup": 21.4,
        "Fixup + mixup": 21.4,
    },
}  # fmt: skip
"""Test errors on ImageNet in percent, by layers and line."""

IMAGENET = imagenet.IMAGENET | {
    "model": "resnet-50", "epochs": 100, "batch_size": 256, "ghost_batch": 32,
    "drops": "0.3 0.6 0.9",
}  # fmt: skip
DIGITS = IMAGENET | imagenet.SMALL | {
    "epochs": 15, "batch_size": 64, "peak_lr": 0.05, "drops": "0.7 0.9"
}  # fmt: skip
SMOKE = DIGITS | {
    "model": "resnet-26", "epochs": 1, "batch_size": 32, "most": 80, "stem_channels": 4,
    "peak_lr": 0.1, "drops": "0.3 0.6 0.9",
}  # fmt: skip
DEEP = {name: changes for name, changes in VARIANTS.items() if name in PUBLISHED[101]}
SCALES = {
    "smoke": variants(SMOKE, VARIANTS, seed=[0]),
    "laptop": variants(DIGITS, VARIANTS, seed=[0]),
    "paper": variants(IMAGENET, VARIANTS, seed=[0])
    + variants(IMAGENET | {"model": "resnet-101", "epochs": 200}, DEEP, seed=[0]),
}


def probe(task: Any, program: Any, plan: Any, state: Any, step: int) -> dict[str, float]:
    """The test before the first step, where runs are tested after every epoch."""
    if step or not plan.evaluate_every:
        return {}
    test = program.test(program.begin([state]))
    return {f"test_{name}": float(value[0]) for name, value in test.items()}


def lines(row: Row) -> list[Row]:
    """The curve of a run, and its tests after every epoch, the one before the first among them."""
    epochs = ({**epoch, **epoch["measures"]} for epoch in row["history"])
    tests = [
        {name: epoch[name] for name in ("step", "test_accuracy", "test_loss")}
        for epoch in epochs
        if epoch.get("test_loss") is not None
    ]
    return [*curve_of(row), *tests]


def table(results: Results) -> str:
    """Test errors: the mean over the seeds, and what was published on ImageNet."""
    cells = [["network", "method", "mixup", "train accuracy", "test error", "published"]]
    for (depth, name), rows in grouped(results.rows, "depth", "title").items():
        train, test = accuracy_cell(rows, "train_accuracy"), accuracy_cell(rows, error=True)
        published = published_cell(PUBLISHED.get(int(depth), {}).get(name))
        method = (f"ResNet-{depth}", name, f"{float(rows[0]['mixup']):g}")
        cells.append([*method, train, test, published])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the training accuracy of every run, a panel for each depth."""
    of_depth = grouped(results.rows, "depth").items()
    panels = {f"ResNet-{depth}": rows for (depth,), rows in of_depth}
    imagenet.panels_figure(results, panels, path)


def tests(results: Results, path: Path) -> None:
    """Draws the paper's figures 5 and 6: training and test errors without mixup, test with it.

    Nothing is drawn of runs that were not tested after every epoch.
    """
    if not any(line.get("test_accuracy") for line in results.lines):
        return

    def curve(row: Row, what: str) -> Curve:
        column = "test_accuracy" if what == "test" else "accuracy"
        looks = [line for line in results.curve(row) if line.get(column) not in (None, "")]
        steps = [int(line["step"]) for line in looks]
        errors = [100 - 100 * float(line[column]) for line in looks]
        drawn = Curve(f"{row['title']}, {what}", steps, errors, row["status"] == "diverged")
        return drawn if what == "test" else smoothed(drawn, -(-len(steps) // 20))

    panels = []
    for (depth,), rows in grouped(results.rows, "depth").items():
        for how, whats in (("without", ("training", "test")), ("with", ("test",))):
            mixed = [row for row in rows if bool(float(row["mixup"])) == (how == "with")]
            if mixed:
                drawn = [curve(row, what) for row in mixed for what in whats]
                heading = f"ResNet-{depth}, {how} mixup"
                panels.append(Panel("step", "error (%)", drawn, y_limits=(0, 100), heading=heading))
    subtitle = f"{results.about}; training errors are means of a twentieth of the run"
    curves_figure(panels, path, title="Errors after every epoch", subtitle=subtitle)


EXPERIMENT = imagenet.experiment(
    "fixup_table2_imagenet", SCALES, table, figure, figures={"tests.png": tests},
    title=title_in(VARIANTS), lines=lines, probe=probe,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
