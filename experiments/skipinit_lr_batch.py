r"""SkipInit's sweeps: the optimal learning rate and accuracy against the batch size.

Claim (the abstract and the author feedback): for small batches the optimal learning rate grows in
proportion to the batch size and is far below the largest stable one, with and without BatchNorm.
Only for large batches is it close to the largest stable rate, which BatchNorm raises. So at small
batches BatchNorm's benefit is not large rates, but small branches at initialisation, which SkipInit
and Fixup have as well.

Protocol: learning rates are powers of two, with several seeds for each batch size. The best rate
has the range of rates whose mean is within one standard deviation of the best, once by test
accuracy and once by training loss. Rates with more diverged seeds rank behind the others. BatchNorm
has its statistics over ghost batches of 64. The rate is constant for the first half of the run,
then halved ten times. All batch sizes have the same number of epochs or, with `--grid steps=390`,
of steps.

`--scale paper`: WRN-16-4 on CIFAR-10, 200 epochs, dropout of 0.6 before the head for regularised
SkipInit. The batch sizes and the rates are ours; the paper's lists are not at hand. `--scale
reduced` has 10 epochs, two seeds and four batch sizes. Both need a GPU or a TPU, and have not been
run here. `--scale cifar` is for two cores: WRN-10-1, one epoch, 216 runs, about four hours;
BatchNorm is tested with the statistics of eight training batches, in `laptop` of four. The largest
batch has 24 steps.

Small batches are three more commands of that scale, with the `--grid` `batch_size=8
peak_lr=2^-9:2^-1 scheme=batchnorm,skipinit,fixup,alpha_one`, `batch_size=2 peak_lr=2^-11:2^-3
scheme=skipinit,fixup,alpha_one` and `scheme=alpha_one`. Their criterion was set after the rows of
batches 32 to 2,048 had been seen, and before those of the three commands. A rate is *stable* if no
seed diverges and in each the mean training loss of the epoch is below ln 10, that of equal
probabilities. The best rate by training loss is *far below* the largest stable one if it is at most
a quarter of it, in each seed. Expected: far below at batches 2 and 8, with and without BatchNorm,
and not at 2,048. All but seven of their runs were made on one core (`taskset`), whose last digits
are not those of two.

`--scale laptop`: WRN-10-1 with 8 channels on the 8x8 digits inside scikit-learn, 10 epochs, 320
runs, about seven minutes on two cores. Expected: the best rate grows with the batch and flattens at
the largest batches, where larger rates diverge or fail without BatchNorm. With BatchNorm it grows
further, and is ahead at the largest batch, where ten epochs are 20 steps.

Not as published: all schemes start from one draw, He (fan_in).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

import tyro

from nf_resnets import command_line
from nf_resnets.sweep import command, settings
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.results import finish

SCHEMES = ("batchnorm", "skipinit", "regularized_skipinit", "fixup")


def axes(schemes: tuple[str, ...], sizes: tuple[int, ...], low: int, high: int, seeds: int) -> Any:
    """Schemes, batch sizes, the rates 2^low to 2^high, and so many seeds."""
    rates = tuple(2.0**exponent for exponent in range(low, high + 1))
    return {
        "scheme": schemes, "batch_size": sizes, "peak_lr": rates, "seed": tuple(range(seeds))
    }  # fmt: skip


OUT = Path("runs/skipinit_lr_batch")
"""The folder of the results, but for the scale, where the command line names none."""
TITLE = "The optimal learning rate against the batch size"
CIFAR10 = {"dataset": "cifar10", "model": "wrn-16-4", "padding": 4, "flip": True}
SCALES = {
    "smoke": (
        axes(("skipinit",), (64, 256), -4, -3, seeds=1),
        {"dataset": "digits", "model": "wrn-10-1", "stem_channels": 4, "epochs": 1.0},
    ),
    "laptop": (
        axes(SCHEMES, (8, 32, 128, 512), -8, 1, seeds=2),
        {
            "dataset": "digits", "model": "wrn-10-1", "stem_channels": 8, "epochs": 10.0,
            "bn_estimate_batches": 4, "dropout": 0.1,
        },
    ),
    "cifar": (
        axes(("batchnorm", "skipinit", "fixup"), (32, 128, 512, 2048), -7, 1, seeds=2),
        {**CIFAR10, "model": "wrn-10-1", "epochs": 1.0, "bn_estimate_batches": 8},
    ),
    "reduced": (
        axes(SCHEMES, (64, 256, 1024, 4096), -7, 2, seeds=2),
        {**CIFAR10, "epochs": 10.0, "bn_estimate_batches": 8},
    ),
    "paper": (
        axes(SCHEMES, tuple(2**exponent for exponent in range(4, 13)), -9, 3, seeds=5),
        {**CIFAR10, "epochs": 200.0},
    ),
}  # fmt: skip
"""The grid of a scale, and the settings that all its runs share."""


@dataclasses.dataclass(frozen=True)
class Command:
    """Redraw SkipInit's figures of the optimal learning rate against the batch size."""

    scale: Literal["smoke", "laptop", "cifar", "reduced", "paper"] = "laptop"
    """smoke: seconds; laptop: digits, minutes on two cores; cifar: CIFAR-10, one epoch, hours on
    two cores; reduced: CIFAR-10, 10 epochs; paper: CIFAR-10, 200 epochs."""
    grid: tuple[str, ...] = ()
    """Axes instead of the scale's, such as scheme=fixup,batchnorm peak_lr=2^-8:2^2 seed=0:4
    batch_size=8,32 optimizer=lion."""
    options: Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="sweep")] = (
        dataclasses.field(default_factory=lambda: Options(out=OUT))
    )


def resolve(wanted: Command) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """The grid and the settings of the scale, with what the command line changes.

    Raises:
      ValueError: if an axis is not in order, with one sentence that says which.
    """
    axes, base = SCALES[wanted.scale]
    axes = {**axes, **settings.parse(wanted.grid)}
    budget = {"steps", "epochs"} if {"steps", "epochs"} & set(axes) else set()
    return axes, {name: base[name] for name in base if name not in {*axes, *budget}}


def main(wanted: Command) -> int:
    """Makes what is missing, prints the table, draws the figures; returns the exit code."""
    axes, base = resolve(wanted)
    options = wanted.options
    if options.out == OUT:
        options = dataclasses.replace(options, out=Path(f"{OUT}-{wanted.scale}"))
    result = command.run(options, axes, base, "SkipInit, rate and batch size")
    if result is None:
        return 0
    return finish(result, options, title=TITLE)


def run(prog: str = "") -> NoReturn:
    """Does what the command line says, and exits; its help calls it ``prog``."""
    raise SystemExit(command.end(lambda: main(command_line.read(Command, prog))))


if __name__ == "__main__":
    run()
