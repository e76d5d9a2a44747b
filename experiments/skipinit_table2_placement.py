r"""Where BatchNorm must stand to train 1,000 layers: the variants of SkipInit's author feedback.

Claim: "none of the following schemes are able to train a 1000-2 Wide-ResNet: 1. Placing a single BN
layer before the softmax (without including BN layers on residual branches). 2. Including BN layers
on the residual branch but multiplying the residual block by a factor `alpha <= sqrt(1/2)`. 3.
Including BN layers on the residual branch and adding a BN layer after the skip and residual
branches merge." In all three the branch contributes as much to a block's output as the skip at
initialisation. At 100 layers the first two train. "The performance degrades further for
coefficients `alpha < sqrt(1/2)`", without numbers; here 1/2 and 1/4 are tried.

Expected, CIFAR-10 test accuracy in percent of WRN-n-2 (author feedback; the two reference rows are
from table 1 of arXiv:2002.10444v1):

    scheme                                  100-2   1000-2
    BatchNorm in the branch                 94.7    94.6
    one BatchNorm before the softmax        94.1    fails
    BatchNorm, block times sqrt(1/2)        94.5    fails
    BatchNorm in the branch and after sum   -       fails
    alpha = 0 (SkipInit)                    94.2    94.3

Setting, `--scale paper`: that of table 1 (`experiments.skipinit_table1_depth`). It needs a GPU, and
has not been run here. `--scale laptop` trains narrow networks on the 8x8 digits of scikit-learn for
110 steps (five epochs), half an hour or less on two cores.

`--scale cifar` trains the first two variants at 100 layers for one epoch of CIFAR-10, width 1, four
rates, seed 0: five hours on one core. Criterion, fixed before its runs: a variant trains 100 layers
if it ends above 20% at its best rate, as in Fixup's figure 3 (`experiments.fixup_fig3_depth`).
There BatchNorm in the branch has 52.7% and Fixup 43.3%, at one rate.

Changed after a look: the first settings were 16, 34, 100 and 1,000 layers, 44 steps, and rates 2^-4
and 2^-5. The variants trained at 16 and 34 layers and failed at 1,000; at 100 they hardly left
chance. With 132 steps and three rates they learned more at 100. No rows of either were kept. The
rates beyond 2^-4 and 2^-6 came later, the last of them 2^-8 for the block times 1/2.

Not as published: as in table 1, all schemes start from one draw, He (fan_in), and `laptop` tests
BatchNorm with the statistics of four training batches at the final weights, `cifar` of eight. The
one BatchNorm stands before the last ReLU and the mean over the image, not right before the softmax.
"""

from __future__ import annotations

from collections.abc import Sequence

from nf_resnets import schemes

from .grid import Point, grid, scheme_with
from .main import run
from .rates import CIFAR10, DIGITS, PAPER_RATES, SMOKE, rate_experiment


def times(a: float) -> schemes.Scheme:
    """BatchNorm in the branch, and the block, skip and branch, times ``a``."""
    constants = {"residual": a, "identity": a}
    return scheme_with("batchnorm_sqrt_half", f"batchnorm_times_{a:g}", constants)


TITLES = {
    "batchnorm": "BatchNorm in the branch",
    "batchnorm_last": "one BatchNorm, last",
    "batchnorm_sqrt_half": "BatchNorm, block × √½",
    "batchnorm_times_0.5": "BatchNorm, block × ½",
    "batchnorm_times_0.25": "BatchNorm, block × ¼",
    "batchnorm_merge": "BatchNorm, also after sum",
    "skipinit": "α = 0 (SkipInit)",
}


def lines(base: Point, width: int, rates: Sequence[float], seeds: Sequence[int]) -> list[Point]:
    """Every scheme at 100 and 1,000 layers."""
    models = [f"wrn-{depth}-{width}" for depth in (100, 1000)]
    return grid(base, model=models, scheme=TITLES, peak_lr=rates, seed=seeds)


SCALES = {
    "smoke": grid(
        SMOKE | {"bn_estimate_batches": 1}, model=["wrn-10-1"], scheme=["batchnorm_last"],
        peak_lr=[2**-3, 2**-5], seed=[0],
    ),
    "laptop": lines({**DIGITS, "steps": 110}, 1, [2**-4, 2**-6], [0]),
    "cifar": grid(
        CIFAR10 | {"steps": 390, "bn_estimate_batches": 8}, model=["wrn-100-1"],
        scheme=["batchnorm_last", "batchnorm_sqrt_half"], peak_lr=[2**-4, 2**-6, 2**-2, 2**-8],
        seed=[0],
    ),
    "paper": lines(CIFAR10, 2, PAPER_RATES, [0, 1, 2, 3, 4]),
}  # fmt: skip

EXPERIMENT = rate_experiment(
    "skipinit_table2_placement",
    SCALES,
    extend=1,
    schemes=[times(0.5), times(0.25)],
    title=lambda row: TITLES.get(row["scheme"]) or schemes.get(row["scheme"]).title,
)

if __name__ == "__main__":
    run(EXPERIMENT)
