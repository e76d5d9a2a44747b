"""Selection and fits on made sweeps whose optima are known: how often the ranges hold the truth.

Each draw is a sweep of rate and batch size as De and Smith made them, six batch sizes, 20 rates and
2, 3 or 5 seeds. Its best rates lie on ``min(slope * B, largest)`` or on ``largest / (1 + B_noise /
B)``; accuracy falls with the square of the rate's distance from the best one, in octaves, seeds
differ by normal noise, and rates one to four octaves above the largest diverge. Slope, largest
rate, curvature, noise and where runs diverge are drawn anew each time.

``nf_resnets.sweep.optima`` and ``regimes_of`` get the rows as those of a ledger. Counted are the
draws in which a range holds the true value: the range of rates as good with half a step of the grid
on either side, and the fits' ranges of one standard error, of which 68.3% would hold it if the
errors were normal and known. With two seeds the range of rates as good, from which they come, is
too narrow as often as too wide. ``selection.json`` beside this file has the numbers.

Published sweeps would be the better check; `tests/sweep/test_targets.py` has one table of them.

    python -m benchmarks.selection               # prints the committed table
    python -m benchmarks.selection --draws 1000  # draws, prints, and writes the file: a minute
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from nf_resnets.plotting.sweep import text_table
from nf_resnets.sweep import Optimum, Regimes, optima, regimes_of

FILE = Path(__file__).with_name("selection.json")
SIZES = (4, 16, 64, 256, 1024, 4096)
RATES = tuple(2.0**exponent for exponent in range(-15, 5))
SEEDS = (2, 3, 5)


@dataclasses.dataclass(frozen=True)
class Study:
    """What is true of a made sweep, in octaves where it is a rate or a batch size."""

    smooth: bool  # the form of the curve
    largest: float
    noise: float  # where the parts meet, or B_noise
    curvature: float  # accuracy lost an octave away from the best rate
    spread: float  # of the seeds
    diverges: float  # the rate from which on runs diverge

    @classmethod
    def draw(cls, number: int) -> Study:
        """The study of that number, the same on every machine; odd ones are smooth."""
        uniform = np.random.default_rng([17, number]).uniform
        largest = uniform(-3, 0)
        return cls(
            smooth=bool(number % 2),
            largest=largest,
            noise=uniform(5, 9),
            curvature=2 ** uniform(-8, -5),
            spread=2 ** uniform(-9, -5),
            diverges=largest + uniform(1, 4),
        )

    def best(self, size: float) -> float:
        """The best rate at a batch size."""
        below = self.noise - math.log2(size)
        return self.largest - (np.logaddexp2(0, below) if self.smooth else max(below, 0))

    def rows(self, number: int, seeds: int) -> Iterator[dict[str, Any]]:
        """The runs of the sweep, as a ledger has them."""
        normal = np.random.default_rng([18, number, seeds]).normal
        for size in SIZES:
            for rate in RATES:
                off = math.log2(rate) - self.best(size)
                for seed in range(seeds):
                    diverged = math.log2(rate) > self.diverges + 0.5 * normal()
                    accuracy = 0.9 - self.curvature * off**2 + self.spread * normal()
                    yield {
                        "scheme": "made", "batch_size": size, "peak_lr": rate, "seed": seed,
                        "state": "diverged" if diverged else "finished",
                        "test_accuracy": None if diverged else accuracy,
                    }  # fmt: skip


def outcomes(study: Study, found: list[Optimum], fit: Regimes) -> Iterator[tuple[str, float]]:
    """What is counted of one study: a name, and 1 or 0, or a width in octaves."""
    for one in found:
        if one.low is None or one.high is None or one.at_edge:
            continue
        low, high = math.log2(one.low) - 0.5, math.log2(one.high) + 0.5
        yield "best rate", low <= study.best(one.group["batch_size"]) <= high
        yield "width of its range (octaves)", high - low
    form = "smooth" if study.smooth else "bent"
    both = fit.smooth if study.smooth else (fit if fit.shows == "both" else None)
    yield f"{form}: both parts show", both is not None
    if both is not None:
        for name, truth in (("largest", study.largest), ("batch_size", study.noise)):
            value, error = getattr(both, name), getattr(both, f"{name}_error")
            yield f"{form}: {name}", abs(math.log2(value) - truth) <= error
            yield f"{form}: {name}, 2 errors", abs(math.log2(value) - truth) <= 2 * error
            yield f"{form}: {name}, factor it is off", 2 ** abs(math.log2(value) - truth)
    if fit.form is not None:
        yield f"{form}: chosen by held-out error", fit.form == form


def measure(draws: int, first: int = 0) -> dict[str, dict[str, list[float]]]:
    """Counts over the studies from ``first`` on: by seeds and name the mean and how many it is of.

    Args:
      draws: how many studies.
      first: the number of the first.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for seeds in SEEDS:
        values: dict[str, list[float]] = {}
        for number in range(first, first + draws):
            study = Study.draw(number)
            best = optima(list(study.rows(number, seeds)))
            (fit,) = regimes_of(best)
            for name, value in outcomes(study, best, fit):
                values.setdefault(name, []).append(float(value))
        found[str(seeds)] = {
            name: [round(float(np.mean(of)), 4), len(of)] for name, of in sorted(values.items())
        }
    return found


def table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """The fractions in per cent, other means as they are; a column for each number of seeds."""
    names = sorted({name for of in found.values() for name in of})
    cells = [["held by its range, %", *(f"{seeds} seeds" for seeds in found)]]
    for name in names:
        exact = "octaves" in name or "factor" in name
        means = [of.get(name, [math.nan])[0] for of in found.values()]
        cells.append([name, *(f"{mean:.2f}" if exact else f"{100 * mean:.1f}" for mean in means)])
    return text_table(cells)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Command line of the study."""

    draws: int = 0
    """How many sweeps to make; 0 to print what the file has."""


def main(settings: Settings) -> int:
    """Draws and writes if asked to, and prints; returns the exit code."""
    if settings.draws > 0:
        record = {"draws": settings.draws, "seeds": measure(settings.draws)}
        FILE.write_text(json.dumps(record, indent=1) + "\n")
    kept = json.loads(FILE.read_text())
    print(f"{kept['draws']} made sweeps of {len(SIZES)} batch sizes and {len(RATES)} rates")
    print(table(kept["seeds"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Settings)))
