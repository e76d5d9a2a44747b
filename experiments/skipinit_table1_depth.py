r"""SkipInit's table 1: test accuracy against depth, each scheme at its best learning rate.

Claim (the abstract and the reviews): a deep residual network needs branches that are small at the
start. SkipInit (`alpha = 0`) and `alpha = L**-0.5` train at 1,000 layers like BatchNorm. `alpha =
1` fails from 100 layers on. So do sums divided by sqrt(2), at 1,000 layers, although they keep the
variance of the activations.

Expected, CIFAR-10 test accuracy in percent of WRN-n-2 at the best rate (arXiv:2002.10444v1, table
1):

    scheme            16-2          100-2         1000-2
    BatchNorm         93.5 (2^-1)   94.7 (2^-1)   94.6 (2^-2)
    alpha = L^-1/2    93.0 (2^-2)   94.2 (2^-1)   94.2 (2^-1)
    alpha = 0         93.3 (2^-2)   94.2 (2^-2)   94.3 (2^-2)
    alpha = 1         93.0 (2^-2)   fails         fails
    divided by sqrt 2 92.4 (2^-2)   88.9 (2^-5)   fails
    alpha = 0, no L2  89.8 (2^-3)   91.7 (2^-2)   92.1 (2^-2)

Setting, `--scale paper`: the rate is constant for the first half, then halved every 10 epochs, and
swept over powers of two; BatchNorm with ghost batches of 64. Alpha trains at the full rate. It
needs a GPU, and has not been run here. `--scale laptop` trains narrow networks of 16, 100 and 304
layers on the 8x8 digits inside scikit-learn: 88 steps (four epochs), which are too few for weight
decay to matter; half an hour or less on two cores. It also has `alpha = 0` without biases (ReZero's
blocks), since the feedback to reviewer 2 says that these "ensure the expressivity of the model does
not fall when BN is removed".

Not as published: all schemes start from one draw, He (fan_in), and `laptop` tests BatchNorm with
the statistics of four training batches at the final weights, since its running averages are out of
date.
"""

from __future__ import annotations

from .grid import Point, grid, title_in, variants
from .main import run
from .rates import CIFAR10, DIGITS, PAPER_RATES, SMOKE, rate_experiment

LINES = {
    "BatchNorm": {"scheme": "batchnorm"},
    "α = 1/√L": {"scheme": "alpha_rsqrt_depth"},
    "α = 0 (SkipInit)": {"scheme": "skipinit"},
    "α = 1": {"scheme": "alpha_one"},
    "(x + F)/√2": {"scheme": "sqrt_half"},
    "α = 0, no biases": {"scheme": "rezero"},
    "α = 0, no L2": {"scheme": "skipinit", "weight_decay": 0.0},
}


def lines(
    base: Point, width: int, depths: list[int], seeds: list[int], *rates: float
) -> list[Point]:
    """Every line of the table, shallow networks first."""
    return [
        point
        for depth in depths
        for point in variants(
            {**base, "model": f"wrn-{depth}-{width}"}, LINES, peak_lr=rates, seed=seeds
        )
    ]


SCALES = {
    "smoke": grid(
        SMOKE, model=["wrn-10-1"], scheme=["skipinit", "alpha_one"], peak_lr=[2**-3, 2**-5],
        seed=[0],
    ),
    "laptop": lines({**DIGITS, "steps": 88}, 1, [16, 100, 304], [0], 2**-3, 2**-4, 2**-5),
    "paper": lines(CIFAR10, 2, [16, 100, 1000], [0, 1, 2, 3, 4], *PAPER_RATES),
}  # fmt: skip

EXPERIMENT = rate_experiment("skipinit_table1_depth", SCALES, extend=2, title=title_in(LINES))

if __name__ == "__main__":
    run(EXPERIMENT)
