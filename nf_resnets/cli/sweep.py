"""`nf-resnets sweep`: trains a grid of runs, and draws what came of it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import tyro

from nf_resnets.sweep import command
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.results import finish
from nf_resnets.sweep.settings import RunSettings, parse

SweepOptions = Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="sweep")]
RunOptions = Annotated[RunSettings, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")]


@dataclasses.dataclass(frozen=True)
class Sweep:
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
    options: SweepOptions = Options()
    settings: RunOptions = RunSettings()

    def __call__(self) -> int:
        """Makes what is missing, prints the table, draws the figures; returns the exit code."""
        axes, base = parse(self.grid), command.base_of(self.settings)
        result = command.run(self.options, axes, base, "Sweep")
        if result is None:
            return 0
        named = (name.replace("peak_lr", "learning rate").replace("_", " ") for name in axes)
        return finish(result, self.options, title=f"Sweep of {', '.join(named)}")
