"""`python -m nf_resnets.sweep`: trains a grid of runs, and draws what came of it.

python -m nf_resnets.sweep --grid peak_lr=2^-8:2^2 batch_size=8,32,128,512 seed=0:4 \
        scheme=fixup,skipinit --model wrn-16-1 --epochs 10 --out runs/mine
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Annotated, Literal, NoReturn

import tyro

from nf_resnets import command_line
from nf_resnets.sweep import command
from nf_resnets.sweep.config import Config, with_config
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.results import finish
from nf_resnets.sweep.settings import RunSettings, parse
from nf_resnets.trained.keep import Networks


@dataclasses.dataclass(frozen=True)
class Command:
    """Train every combination of some settings, survive interruptions, and draw the results.

    Any setting of a run, listed below, can be an axis of the grid: NAME=VALUES with commas between
    the values. Ranges have both ends: 2^-8:2^2 is every power from the one to the other, 0:4 is 0,
    1, 2, 3, 4. Runs that differ only in numbers (peak_lr, momentum, weight_decay,
    scalar_factor, alpha, branch_scale, seed, clip_norm and adaptive_clip above 0, or schemes that
    compile alike) share one program.

    The best rate, and the range of rates as good, are reported for each batch size by test accuracy
    and by training loss, after De and Smith (NeurIPS 2020).
    """

    grid: tuple[str, ...] = ()
    """The axes, such as peak_lr=2^-8:2^2 batch_size=8,32,128,512 seed=0:4 scheme=fixup,skipinit."""
    config: Config = None
    keep: Literal["none", "best", "all"] = "none"
    """Which runs that finish from now on keep their networks, in the folder's networks/, for
    predict: best, the one of the highest test accuracy among those that differ in rate and seed
    only; all."""
    options: Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="sweep")] = (
        dataclasses.field(default_factory=Options)
    )
    settings: Annotated[RunSettings, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")] = (
        dataclasses.field(default_factory=RunSettings)
    )


def main(wanted: Command) -> int:
    """Makes what is missing, prints the table, draws the figures; returns the exit code."""
    try:
        axes = parse(wanted.grid)
    except ValueError as error:
        raise SystemExit(f"--grid: {error}") from None
    base = command.base_of(wanted.settings)
    keep = None if wanted.keep == "none" else functools.partial(Networks, which=wanted.keep)
    result = command.run(wanted.options, axes, base, "Sweep", keep=keep)
    if result is None:
        return 0
    named = (name.replace("peak_lr", "learning rate").replace("_", " ") for name in axes)
    code = finish(result, wanted.options, title=f"Sweep of {', '.join(named)}")
    networks = sorted((wanted.options.out.expanduser() / "networks").glob("*.safetensors"))
    if keep is not None and networks:
        print(
            f"  networks/, {len(networks)} of them: {command_line.program()} predict {networks[0]}"
        )
    return code


def run(prog: str = "") -> NoReturn:
    """Does what the command line says, and exits; its help calls it ``prog``."""

    def whole() -> int:
        try:
            default = with_config(Command(), sys.argv[1:])
        except (ValueError, OSError) as error:
            raise SystemExit(str(error)) from error
        return main(command_line.read(Command, prog, default=default))

    command.end(whole)


__all__ = ["Command", "main", "run"]

if __name__ == "__main__":
    run()
