r"""SkipInit's main finding: the best learning rate beside the largest stable one, by batch size.

Claim (the abstract and the author feedback): at small batches the optimal rate is far below the
largest stable one, with and without BatchNorm, so that BatchNorm's larger stable rates are not its
benefit there. At large batches the two are close.

Expected: a best rate that grows with the batch, under a largest stable rate that does not.

Setting: no run is made here. The rows are those of `experiments.skipinit_lr_batch`, whose
documentation has the criterion for CIFAR-10. *Stable* is a rate at which no seed diverges, and in
each the mean training loss, of the last epoch where there are several, is below that of equal
probabilities. *Best* is the rate of the lowest training loss of a seed. It is *far below* if it is
at most a quarter of the largest stable rate. `--scale laptop` reads the sweep on the digits,
`--scale cifar` those on CIFAR-10, `--scale smoke` the digits as well.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Any

from nf_resnets import schemes
from nf_resnets.plotting.curves import Panel, curves_figure, mean_curve
from nf_resnets.plotting.style import power

from .experiment import COMMITTED, Experiment, Results, Row
from .grid import Point
from .main import run
from .table import grouped, text_table

CIFAR = ("cifar", "cifar-8", "cifar-2", "cifar-alpha_one")
SCALES = {
    "smoke": [{"rows": "skipinit_lr_batch-laptop/rows.csv"}],
    "laptop": [{"rows": "skipinit_lr_batch-laptop/rows.csv"}],
    "cifar": [{"rows": f"skipinit_lr_batch-{name}/rows.csv"} for name in CIFAR],
}
CHANCE = math.log(10)
"""The loss of equal probabilities of the ten classes."""
FAR = 4


def measure(point: Point, _: str | None) -> list[Row]:
    """Best and largest stable rate of each scheme, batch size and seed of a sweep."""
    csv.field_size_limit(sys.maxsize)  # a curve is one field
    with open(COMMITTED / point["rows"], newline="") as stream:
        runs = [run for run in csv.DictReader(stream) if run["state"] in ("finished", "diverged")]
    return [
        row
        for (scheme, batch_size), group in grouped(runs, "scheme", "batch_size").items()
        for row in rates_of(group, scheme, int(batch_size))
    ]


def rates_of(runs: Any, scheme: str, batch_size: int) -> list[Row]:
    """A row for each seed; None for a rate that there is not."""
    losses: dict[float, dict[str, float]] = {}
    for each in runs:
        loss = float(each["train_loss"]) if each["state"] == "finished" else math.inf
        losses.setdefault(float(each["peak_lr"]), {})[each["seed"]] = loss
    stable = [rate for rate, of in losses.items() if max(of.values()) < CHANCE]
    largest = max(stable, default=None)
    rows = []
    for seed in sorted({seed for of in losses.values() for seed in of}):
        loss, best = min((of.get(seed, math.inf), rate) for rate, of in losses.items())
        known = largest is not None and loss < math.inf
        rows.append({
            "scheme": scheme, "title": schemes.get(scheme).title, "batch_size": batch_size,
            "seed": int(seed), "best": best if known else None, "train_loss": loss,
            "largest_stable": largest, "ratio": largest / best if known else None,
            "highest_tried": max(losses), "lowest_tried": min(losses), "runs": len(runs),
            "diverged": sum(each["state"] == "diverged" for each in runs),
        })  # fmt: skip
    return rows


def ordered(results: Results) -> list[Row]:
    """The rows by rising batch size, a scheme after the other."""
    titles = list(dict.fromkeys(row["title"] for row in results.rows))
    return sorted(
        results.rows, key=lambda row: (titles.index(row["title"]), int(row["batch_size"]))
    )


def number(row: Row, name: str) -> float:
    """A rate, or their ratio; 0 where there is none."""
    return float(row[name] or 0)


def table(results: Results) -> str:
    """The rates, by scheme and batch size, and whether the best is far below in each seed."""
    cells = [["scheme", "batch", "best rate by seed", "largest stable", "far below", "diverged"]]
    for (title, batch_size), rows in grouped(ordered(results), "title", "batch_size").items():
        best, first = [number(row, "best") for row in rows], rows[0]
        largest = number(first, "largest_stable")
        lowest, highest = (number(first, f"{end}_tried") for end in ("lowest", "highest"))
        cells.append([
            title, batch_size,
            ", ".join(power(b) + "!" * (b == lowest) if b else "none" for b in best),
            power(largest) + "+" * (largest == highest) if largest else "none",
            "yes" if all(number(row, "ratio") >= FAR for row in rows) else "no",
            f"{first['diverged']} of {first['runs']}",
        ])  # fmt: skip
    return (
        text_table(cells)
        + "\n! the lowest rate tried; + the highest: the largest stable one may be larger"
    )


def figure(results: Results, path: Path) -> None:
    """Draws both rates over the batch size, a panel for each scheme."""
    panels = []
    names = ("best", "largest_stable")
    drawn = [number(row, name) for row in results.rows for name in names if row[name]]
    limits = min(drawn) / 1.5, max(drawn) * 1.5
    for (title,), rows in grouped(ordered(results), "title").items():
        sizes = {int(batch): seeds for (batch,), seeds in grouped(rows, "batch_size").items()}
        stable = {size: [float(of[0]["largest_stable"] or "nan")] for size, of in sizes.items()}
        best = {size: [number(r, "best") for r in of if r["best"]] for size, of in sizes.items()}
        curves = [
            mean_curve("largest stable rate", stable, marked=True),
            mean_curve("best rate by training loss", best, marked=True),
        ]
        panels.append(
            Panel("batch size", "learning rate", curves, limits, x_base=2, y_base=2, heading=title)
        )
    curves_figure(
        panels,
        path,
        title="The best learning rate and the largest stable one",
        subtitle="bands: from seed to seed",
        columns=2,
    )


EXPERIMENT = Experiment("skipinit_stable_rate", SCALES, table, figure, measure=measure)

if __name__ == "__main__":
    run(EXPERIMENT)
