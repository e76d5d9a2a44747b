r"""Fixup's table 1: the test error of ResNet-110 on CIFAR-10 with and without normalization.

Claim (section 4.2): "Fixup obtains 7% relative improvement in test error compared with standard
initialization", "is trained with the same learning rate and converge[s] as fast as network with
batch normalization", while "we fail to train a Xavier initialized ResNet-110 with 0.1x maximal
learning rate". The gap to BatchNorm "is likely due to the regularization effect of BatchNorm".

Published test errors, mean or median of five runs, are `PUBLISHED`: BatchNorm's are of He et al.
(2016), Xavier's of Shang et al. (2017).

Setting, `--scale paper`: Fixup's scalars at a tenth of the rate (the authors' code always, the
paper only with mixup). Xavier is trained at a tenth of the rate, where it failed, and at a
hundredth. It needs a GPU, and has not been run here. `--scale cifar` is a ResNet-20 for 20 epochs,
with SkipInit, RescaleNet and Fixup with mixup by the same recipe; a run takes 0.6 to 3.3 hours on
one core. `--scale laptop` trains a ResNet-110 with half the channels on the 8x8 digits inside
scikit-learn, three minutes on two cores. It can show only which networks train, and at which rate.

Later rows of `cifar`, whose criterion is fixed before them: SkipInit at half and at twice the rate,
seeds 0 and 1. It is similar to Fixup if its lowest mean test error of the three rates is within a
point of Fixup's. BatchNorm with a weight decay of 5e-4, seeds 2 and 3, is for
`rescale_multipliers`.

Tried besides, one seed: with fewer layers BatchNorm is ahead early. In a ResNet-20 it classifies
96% of the training batches of steps 46 to 50, Fixup 39%; the test errors at the end are 0.83% and
1.94%. In a ResNet-56 it is 69% and 40%, at the end 4.17% and 0.83%. Fixup is the faster one at 110
layers only.

Not as published: the pixels are divided by the standard deviation over all training images (0.25),
the published code has a smaller one (0.20); an epoch has 390 steps, without the last 80 images; the
head's biases train at the full rate, in the published code all biases at a tenth. He et al. trained
BatchNorm's network for 64,000 steps, which are 164 epochs, and warmed up at a tenth of the rate;
Shang et al. do not say at what rate theirs was trained. `laptop` tests BatchNorm with the
statistics of four training batches at the final weights.
"""

from __future__ import annotations

from pathlib import Path

from nf_resnets.plotting.curves import Panel, curves_figure

from .experiment import CHANCE, Experiment, Results, curve_of
from .grid import title_in, variants
from .main import run
from .rates import rate_of
from .table import error_cells, grouped, mean_curves, published_cell, text_table

VARIANTS = {
    "BatchNorm": {"scheme": "batchnorm"},
    "Fixup": {"scheme": "fixup"},
    "Xavier, 0.1x rate": {"scheme": "xavier", "peak_lr": 0.01},
    "Xavier, 0.01x rate": {"scheme": "xavier", "peak_lr": 0.001},
    "SkipInit": {"scheme": "skipinit"},
    "RescaleNet": {"scheme": "rescalenet"},
    "Fixup + mixup": {"scheme": "fixup", "mixup": 1.0},
}
PUBLISHED = {
    ("BatchNorm", 20): 8.75, ("BatchNorm", 110): 6.61, ("Fixup", 110): 7.24,
    ("Xavier, 0.01x rate", 110): 7.78,
}  # fmt: skip
"""Test errors on CIFAR-10 in percent, by layers."""
TABLE = {name: VARIANTS[name] for name in list(VARIANTS)[:4]}
NO_XAVIER = {name: VARIANTS[name] for name in VARIANTS if "Xavier" not in name}

CIFAR10 = {
    "dataset": "cifar10", "model": "cifar-resnet-110", "epochs": 200.0, "batch_size": 128,
    "stem_channels": 16, "peak_lr": 0.1, "schedule": "step", "drops": "0.5 0.75",
    "weight_decay": 1e-4, "scalar_factor": 0.1, "draw": "fan_out", "ghost_batch": 0,
    "padding": 4, "flip": True, "evaluate_every": 0,
}  # fmt: skip
DIGITS = CIFAR10 | {
    "dataset": "digits", "epochs": 10.0, "batch_size": 64, "stem_channels": 8, "padding": 0,
    "flip": False, "bn_estimate_batches": 4,
}  # fmt: skip
SMOKE = DIGITS | {
    "model": "cifar-resnet-8", "epochs": 0.0, "steps": 8, "stem_channels": 4,
    "bn_estimate_batches": 0,
}  # fmt: skip
SCALES = {
    "smoke": variants(SMOKE, TABLE, seed=[0]),
    "laptop": variants(DIGITS, TABLE, seed=[0, 1, 2]),
    "cifar": variants(
        CIFAR10 | {"model": "cifar-resnet-20", "epochs": 20.0}, NO_XAVIER, seed=[0, 1, 2]
    ),
    "paper": variants(CIFAR10, TABLE, seed=[0, 1, 2, 3, 4]),
}


def table(results: Results) -> str:
    """Mean and median test error over the seeds, beside what was published on CIFAR-10."""
    cells = [["ResNet", "rate", "mean", "median", "runs", "diverged", "published"]]
    for (title,), rows in grouped(results.rows, "title").items():
        published = published_cell(PUBLISHED.get((title, int(rows[0]["depth"]))), 2)
        cells.append([title, f"{rate_of(rows[0]):g}", *error_cells(rows), published])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the mean training accuracy over the seeds, as far as all of them went."""
    curves = mean_curves(results, results.rows)
    panel = Panel("step", "training accuracy (%)", curves, y_limits=(0, 100), level=CHANCE)
    title = "Training accuracy with and without normalization"
    curves_figure([panel], path, title=title, subtitle=results.about)


EXPERIMENT = Experiment(
    "fixup_table1_resnet110", SCALES, table, figure, title=title_in(VARIANTS), lines=curve_of
)

if __name__ == "__main__":
    run(EXPERIMENT)
