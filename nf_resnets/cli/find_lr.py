"""`nf-resnets find-lr`: the learning rate of a network, from short runs over a range of rates."""

from __future__ import annotations

import dataclasses
import statistics
from pathlib import Path
from typing import Any

from nf_resnets.cli.sweep import RunOptions, SweepOptions
from nf_resnets.plotting.rates import rate_range
from nf_resnets.plotting.style import power
from nf_resnets.sweep import command
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.results import finish
from nf_resnets.sweep.select import Optimum, Row, optimum
from nf_resnets.sweep.settings import RunSettings, parse

STEPS = 100
"""Of a run, where no budget is given."""

MARGIN = 4
"""Longer runs are advised so far below the lowest rate at which a short one diverged."""


@dataclasses.dataclass(frozen=True)
class FindLr:
    """Find the learning rate of a network with short runs over a range of rates.

    The best rate has the lowest training loss at the end of the runs, in the mean over a tenth of
    their steps; it is printed with the range of rates as good and with those that diverged. The
    runs are a sweep, with its figures, and are resumed as a sweep's.

    A run has 100 steps if neither --epochs nor --steps is given. The best rate of longer runs is
    mostly lower, and a rate at which three short runs finish can diverge later. For longer runs the
    answer is therefore at most a quarter of the lowest rate at which a run diverged.
    """

    rates: str = "2^-8:2^2"
    """The rates, as a sweep's --grid has them: a range of powers, or numbers with commas between
    them."""
    seeds: int = 3
    """Runs at each rate, from --seed on."""
    options: SweepOptions = Options(out=Path("runs/find_lr"))
    settings: RunOptions = RunSettings()

    def __call__(self) -> int:
        """Makes the runs that are missing, draws them, prints the answer."""
        base = command.base_of(self.settings)
        axes = parse([f"peak_lr={self.rates}"])
        first = base.pop("seed", 0)
        axes["seed"] = tuple(range(first, first + self.seeds))
        if not {"epochs", "steps"} & set(base):
            base["steps"] = STEPS
        result = command.run(self.options, axes, base, "Learning rates")
        if result is None:
            return 0
        result = dataclasses.replace(result, rows=[at_end(row) for row in result.rows])
        code = finish(result, self.options, title="Learning rates of short runs")
        print("\n" + answer(optimum(result.rows, metric="train_loss")))
        return code


def at_end(row: Row) -> dict[str, Any]:
    """A run with the training loss of the last tenth of its steps, for that of its last epoch.

    >>> measures = {"curve": {"step": [1, 2, 3], "loss": [3.0, 2.0, 1.0]}}
    >>> at_end({"state": "finished", "train_loss": 2.0, "measures": measures})["train_loss"]
    1.0
    """
    if row["state"] != "finished":
        return dict(row)
    losses = row["measures"]["curve"]["loss"]
    return {**row, "train_loss": statistics.fmean(losses[-max(1, len(losses) // 10) :])}


def answer(best: Optimum) -> str:
    """Says which rate is best by the training loss, which to take, and which diverged."""
    diverged = [each for each in best.rates if each.diverged]
    if best.best is None:
        text = "No run finished, so there is no best rate."
    else:
        text = f"The best rate is {rate_range(vars(best))}: training loss {best.mean:.3g}."
        if best.at_edge:
            text += f" It is the {best.at_edge} of the rates tried: widen --rates."
        most = diverged[0].rate / MARGIN if diverged else best.best
        text += f"\nTake {power(min(best.best, most))} for longer runs"
        text += f", {MARGIN} times below the first that diverged." if most < best.best else "."
    counts = [f"{power(e.rate)} ({e.diverged} of {e.n + e.diverged})" for e in diverged]
    return f"{text}\nDiverged: {', '.join(counts) or 'none'}."
