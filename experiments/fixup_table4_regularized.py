r"""Fixup's table 4: Wide ResNets with mixup and cutout, on CIFAR-10 and on SVHN.

Claim (appendix C.2): "the gap in test error between Fixup and batch normalization is primarily due
to overfitting"; with mixup and cutout "models trained with Fixup and strong regularization are
competitive with state-of-the-art methods on CIFAR-10 and SVHN, as well as our baseline with batch
normalization". Published test errors are `PUBLISHED`, of WRN-40-10 and WRN-16-12; BatchNorm's alone
are of Zagoruyko and Komodakis (2016).

Setting: `--scale paper` needs a GPU, and has not been run here; SVHN has its 531,131 extra images.
`--scale laptop` trains a narrow WRN-16-2 on the 8x8 digits inside scikit-learn for 1,320 steps (60
epochs): ten minutes on two cores. It can show the effect of mixup and cutout on the training loss,
and that Fixup trains under them as BatchNorm does; with 360 test images it cannot separate similar
errors. It also has Fixup with its scalars at the full rate, since "we find it is beneficial to
reduce the learning rate of the scalar multiplier and bias by 10x when additional large
regularization is used" (section 4.2).

Tried first, and changed because Fixup had only begun to learn: 20 epochs, 440 steps, five seeds.
Test errors were 0.94% with BatchNorm and 1.83% with mixup and cutout as well, 7.94% with Fixup and
42.33% with mixup and cutout as well. Fixup is slower at this size, and catches up in three times
the steps.

`--scale few` is where a network can overfit within minutes: WRN-10-1 on the first 5,000 images of
CIFAR-10, 100 epochs, three seeds, the rate and the drops of `paper`; about five hours of one core.
Criteria, fixed before its runs, each to hold in every seed that is made. Fixup *overfits* if,
without mixup and cutout, its training loss in the last epoch is at most BatchNorm's and its test
error at least 2 points higher. The gap *closes* if with them the difference of test errors is at
most half of the one without, which must be at least 2 points. A tenth of the rate for the scalars
*helps* under them if the test error is at least 1 point lower than at the full rate.

Not as published: the paper says only "default hyperparameters" of mixup, cutout and Wide ResNets.
Those here are of the papers it refers to, with three exceptions: the momentum is Nesterov's in Wide
ResNets and the usual one here, as in Fixup's published code; cutout's code has dropout inside the
blocks (0.3 and 0.4), this has none; the margins of the crop are zeros here. The pixels are divided
by their standard deviation, as in table 1.
"""

from __future__ import annotations

from pathlib import Path

from nf_resnets.plotting.curves import Panel, curves_figure

from .experiment import Experiment, Results, Row, curve_of
from .grid import Point, title_in, variants
from .main import run
from .table import error_cells, grouped, mean_curves, published_cell, text_table


def named(cutout: int) -> dict[str, Point]:
    """The lines of the table; a square of ``cutout`` pixels is cut out."""
    lines: dict[str, Point] = {}
    plain, mixed = {"mixup": 0.0, "cutout": 0}, {"mixup": 1.0, "cutout": cutout}
    for words, changes in (("", plain), (" + mixup + cutout", mixed)):
        lines[f"BatchNorm{words}"] = {"scheme": "batchnorm", **changes}
        lines[f"Fixup{words}"] = {"scheme": "fixup", **changes}
    for words, changes in (("", plain), (" + mixup + cutout", mixed)):
        fast = {"scheme": "fixup", "scalar_factor": 1.0, **changes}
        lines[f"Fixup{words}, scalars at the full rate"] = fast
    return lines


PUBLISHED = {
    ("cifar10", "BatchNorm"): 3.8, ("svhn", "BatchNorm"): 1.5,
    ("cifar10", "BatchNorm + mixup + cutout"): 2.5, ("svhn", "BatchNorm + mixup + cutout"): 1.4,
    ("cifar10", "Fixup + mixup + cutout"): 2.3, ("svhn", "Fixup + mixup + cutout"): 1.4,
}  # fmt: skip
"""Test errors in percent."""

CIFAR10 = {
    "dataset": "cifar10", "model": "wrn-40-10", "epochs": 200.0, "batch_size": 128,
    "stem_channels": 16, "peak_lr": 0.1, "schedule": "step", "drops": "0.3 0.6 0.8",
    "drop_factor": 0.2, "weight_decay": 5e-4, "scalar_factor": 0.1, "draw": "fan_out",
    "ghost_batch": 0, "padding": 4, "flip": True, "evaluate_every": 0,
}  # fmt: skip
SVHN = CIFAR10 | {
    "dataset": "svhn_extra", "model": "wrn-16-12", "epochs": 160.0, "peak_lr": 0.01,
    "drops": "0.5 0.75", "drop_factor": 0.1, "padding": 0, "flip": False,
}  # fmt: skip
FEW = CIFAR10 | {"dataset": "cifar10[:5000]", "model": "wrn-10-1", "epochs": 100.0}
DIGITS = CIFAR10 | {
    "dataset": "digits", "model": "wrn-16-2", "epochs": 60.0, "batch_size": 64, "stem_channels": 8,
    "padding": 1, "flip": False,
}  # fmt: skip
SMOKE = DIGITS | {
    "model": "wrn-10-1", "epochs": 0.0, "steps": 4, "stem_channels": 4, "drops": "0.5 0.75",
    "drop_factor": 0.1, "weight_decay": 1e-4,
}  # fmt: skip
ON_DIGITS = named(3)
SCALES = {
    "smoke": variants(SMOKE, ON_DIGITS, seed=[0]),
    "laptop": variants(DIGITS, ON_DIGITS, seed=[0, 1, 2]),
    "few": variants(FEW, named(16), seed=[0, 1, 2]),
    "paper": [
        point
        for base, cutout in ((CIFAR10, 16), (SVHN, 20))
        for point in variants(base, dict(list(named(cutout).items())[2:4]), seed=[0])
    ],
}


def title(row: Row) -> str:
    """A line of the table."""
    return title_in(named(row["cutout"] or 16))(row)


def columns(row: Row) -> Row:
    """The data set and the network as the table names them."""
    network = row["model"].replace("wrn", "WRN")
    return {"part": row["dataset"].removesuffix("_extra"), "network": network}


def table(results: Results) -> str:
    """Mean and median test error over the seeds, beside what was published for the data set."""
    cells = [["data, network", "variant", "mean", "median", "runs", "diverged", "published"]]
    for (part, network, line), rows in grouped(results.rows, "part", "network", "title").items():
        published = published_cell(PUBLISHED.get((part, line)))
        cells.append([f"{part}, {network}", line, *error_cells(rows), published])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the training loss, the mean over the seeds as far as all of them went."""
    panels = [
        Panel(f"step ({network} on {part})", "training loss", curves, more_is_better=False)
        for (part, network), rows in grouped(results.rows, "part", "network").items()
        if (curves := mean_curves(results, rows, "loss"))
    ]
    title = "Training loss with and without mixup and cutout"
    curves_figure(panels, path, title=title, subtitle=results.about)


EXPERIMENT = Experiment(
    "fixup_table4_regularized", SCALES, table, figure, title=title, columns=columns, lines=curve_of
)

if __name__ == "__main__":
    run(EXPERIMENT)
