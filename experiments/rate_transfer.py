r"""Whose best learning rate stays when the depth grows thirtyfold, or the width fourfold?

Is a rate that is tuned on a small network best for a large one? Depth-muP and CompleteP
(`depth_mup`, `completep`) are made for that: branches are multiplied by `(L / L_0)**-a`, and rates
follow width and depth (`nf_resnets.parametrization`). Fixup, SkipInit and `alpha = L**-0.5` are
made to train deep networks at all. We know of no published comparison.

Expected by theory, with SGD: at `alpha = L**-0.5` and one layer in a branch the best rate stays
(Bordelon et al., ICLR 2024); with two layers it stays for `1 / L` branches, whose rates grow by `L`
(CompleteP, 2505.01618, for AdamW and Transformers). A plain network's signal doubles with every
branch, so that its best rate falls until it does not train at all. BatchNorm should keep its rate.

Every scheme is trained at every size with rates a factor of two apart; if the best is the lowest or
the highest, further rates are tried. The best rate has the lowest mean training loss over the last
quarter of the steps. Rates within a standard deviation over the seeds are as good; rates with more
diverged seeds rank behind. All schemes start from one draw, He (fan_in), have no weight decay, and
a rate that is constant for half of the run, then halved ten times. 10 layers of width 2 are
the base network of muP's schemes, whichever sizes are trained.

`--scale laptop` trains 10 to 304 layers at width 1, and widths 1 to 4 at 10 layers, on the 8x8
digits inside scikit-learn for 44 steps; about 40 minutes on two idle cores.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nf_resnets.analysis import growth
from nf_resnets.plotting import rates_figure, transfer_figure
from nf_resnets.sweep import Move, moves, optima

from .experiment import Experiment, Results, Row
from .grid import grid
from .main import run
from .rates import beyond, run_of
from .table import edge_mark, text_table

SCHEMES = (
    "fixup", "skipinit", "alpha_rsqrt_depth", "depth_mup", "completep", "plain", "batchnorm"
)  # fmt: skip
METRIC = "train_loss"
DIGITS = {
    "dataset": "digits", "base_model": "wrn-10-2", "steps": 44, "batch_size": 64,
    "stem_channels": 8, "weight_decay": 0.0, "ghost_batch": 0, "bn_estimate_batches": 4,
    "evaluate_every": 0,
}  # fmt: skip
SIZES = ("wrn-10-1", "wrn-10-2", "wrn-10-4", "wrn-34-1", "wrn-100-1", "wrn-304-1")
SCALES = {
    "smoke": grid(
        DIGITS | {"steps": 4, "stem_channels": 4}, model=["wrn-10-1", "wrn-10-2", "wrn-16-1"],
        scheme=["skipinit", "completep"], peak_lr=[2**-5, 2**-3], seed=[0],
    ),
    "laptop": grid(
        DIGITS, model=SIZES, scheme=SCHEMES, peak_lr=[2.0**power for power in range(-5, 0)],
        seed=range(5),
    ),
}  # fmt: skip


def columns(row: Row) -> Row:
    """A Wide ResNet's width, and the training loss: the mean over the last quarter of the steps."""
    losses = row["measures"]["curve"]["loss"]
    last = losses[-max(1, len(losses) // 4) :]
    width = re.fullmatch(r"wrn-\d+-(\d+)", row["model"])
    return {"width": int(width[1]) if width else 1, METRIC: sum(last) / len(last)}


def compared(rows: Iterable[Row], by: str) -> list[Any]:
    """The best rates of each scheme by depth, at the smallest width, or by width."""
    rows = list(rows)
    other = "width" if by == "depth" else "depth"
    least = min(int(row[other]) for row in rows)
    runs = [
        {"scheme": each["title"], by: int(each[by]), **run_of(each, METRIC)}
        for each in rows
        if int(each[other]) == least
    ]
    return optima(runs, by=("scheme", by), metric=METRIC)


def cell(move: Move, tried: Iterable[float]) -> str:
    """A best rate, its range, and what the smallest network's rate costs here."""
    if move.best is None or move.low is None or move.high is None:
        return "diverged"
    low, best, high = (f"{math.log2(rate):.3g}" for rate in (move.low, move.best, move.high))
    text = f"2^{best}{edge_mark(move.best, tried)}"
    text += f" [{low}, {high}]" if low != high else ""
    if move.diverged is not None and move.diverged > 0.5:
        return f"{text}, diverges"
    return text if not move.cost else f"{text}, {move.cost:+.2g}"


def table(results: Results) -> str:
    """Best rates by depth and by width: log2 of those as good, and the smallest one's cost."""
    texts = []
    for by in ("depth", "width"):
        best = compared(results.rows, by)
        tried = {tuple(one.group.values()): [rate.rate for rate in one.rates] for one in best}
        all_moves = moves(best, by)
        sizes = sorted({int(move.size) for move in all_moves})
        cells = [["scheme", *(f"{by} {size:,}" for size in sizes), f"rate ~ {by}^"]]
        for title in dict.fromkeys(move.group["scheme"] for move in all_moves):
            line = {int(move.size): move for move in all_moves if move.group["scheme"] == title}
            best_of = {size: move.best for size, move in line.items() if move.best is not None}
            power = growth(best_of, best_of.values())
            cells.append([
                title,
                *(cell(line[size], tried[title, size]) if size in line else "-" for size in sizes),
                "-" if math.isnan(power) else f"{power:.2f}",
            ])  # fmt: skip
        texts.append(text_table(cells))
    return "\n\n".join(texts)


def figure(results: Results, path: Path, by: str = "depth", size: str = "depth (layers)") -> None:
    """Draws the best rate, and what the smallest network's costs, against depth or width."""
    transfer_figure(
        [dataclasses.asdict(move) for move in moves(compared(results.rows, by), by)],
        path,
        title=f"The best learning rate against {by}",
        subtitle=f"{results.about}; by the training loss over the last quarter of the steps",
        size=size,
    )


def rates(results: Results, path: Path, by: str = "depth", label: str = "{} layers") -> None:
    """Draws loss against rate, a panel for each scheme, a curve for each depth or width."""
    rates_figure(
        [dataclasses.asdict(one) for one in compared(results.rows, by)],
        path,
        title=f"Training loss against the learning rate, by {by}",
        subtitle=f"{results.about}; the training loss over the last quarter of the steps",
        batch_size=by,
        label=label,
    )


FIGURES = {
    "rates_by_depth.png": rates,
    "width.png": functools.partial(figure, by="width", size="width"),
    "rates_by_width.png": functools.partial(rates, by="width", label="width {}"),
}
GROW = {"laptop": functools.partial(beyond, extend=6, metric=METRIC)}
EXPERIMENT = Experiment(
    "rate_transfer", SCALES, table, figure, figures=FIGURES, columns=columns, grow=GROW
)

if __name__ == "__main__":
    run(EXPERIMENT)
