r"""SkipInit on ImageNet: ResNet-50 version 2 at batch sizes from 256 to 4,096.

Claim: at small batches SkipInit trains ResNet-50 without normalization as well as BatchNorm does,
and better with some dropout. At the largest batch BatchNorm keeps its accuracy and the others lose
it, since BatchNorm's benefit is that larger learning rates are stable. Published accuracies are
`PUBLISHED` (arXiv:2002.10444v1, table 3, best learning rate of each), not reproduced here.

Setting, `--scale paper`: ImageNet through TensorFlow Datasets (`--data-dir`), the usual crops of
224 pixels; ResNet-50 version 2 (pre-activation); three learning rates in proportion to the batch,
and the table takes the best by test accuracy; dropout of 0.2 before the head for regularised
SkipInit. It is 36 runs, each of them days on a GPU.

Not as published, or not known: the text at hand does not give the number of epochs, the schedule,
momentum and weight decay. Here momentum, schedule and slices are those of the same paper for CIFAR:
momentum 0.9, a rate that is constant for the first half, then halved in ten equal parts, and
BatchNorm's statistics over slices of 64. Epochs (90, the first 5 warm-up), weight decay (1e-4),
Fixup's scalars at a tenth of the rate, and the number of rates are ours.

`--scale laptop` streams the digits (`experiments.imagenet`) to ResNet-26 version 2 with an eighth
of the channels, at batches of 32 and 256, in about ten minutes on two cores. It shows that
regularised SkipInit trains without normalization at the smaller batch, and which rates are too
large for each scheme. It shows nothing about accuracies on ImageNet.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nf_resnets.plotting.sweep import PASSED

from . import imagenet
from .experiment import Results, Row
from .grid import Point, grid
from .main import run
from .rates import best_rate, beyond, rate_of, rows_at_best
from .table import accuracy_cell, edge_mark, grouped, published_cell, rate_table

PUBLISHED = {
    "BatchNorm": {256: 75.0, 1024: 74.9, 4096: 74.9},
    "Fixup": {256: 74.8, 1024: 74.6, 4096: 73.0},
    "SkipInit": {256: 74.9, 1024: 74.6, 4096: 70.8},
    "regularised SkipInit": {256: 75.6, 1024: 75.5, 4096: 72.7},
}
"""Top-1 test accuracies on ImageNet (%), by the batch size."""
SCHEMES = ("batchnorm", "fixup", "skipinit", "regularized_skipinit")

IMAGENET = imagenet.IMAGENET | {
    "model": "resnet-50-v2", "epochs": 90, "warmup_epochs": 5.0, "ghost_batch": 64,
    "micro_batch": 1024,
}  # fmt: skip
DIGITS = IMAGENET | imagenet.SMALL | {
    "model": "resnet-26-v2", "epochs": 8, "warmup_epochs": 0.5, "ghost_batch": 32,
    "micro_batch": 1024,
}  # fmt: skip
SMOKE = DIGITS | {
    "epochs": 1, "warmup_epochs": 0.0, "ghost_batch": 16, "stem_channels": 4, "most": 80
}  # fmt: skip


def scale(
    base: Point, batches: Sequence[int], rates: Sequence[float], schemes: Sequence[str] = SCHEMES
) -> list[Point]:
    """Every scheme and rate, in proportion to the batch by Goyal et al.'s rule."""
    return [
        point
        for batch in batches
        for point in grid(
            {**base, "batch_size": batch}, scheme=schemes, peak_lr=[r * batch / 256 for r in rates],
            seed=[0],
        )
    ]  # fmt: skip


ON_DIGITS = ("batchnorm", "regularized_skipinit", "alpha_one")
SCALES = {
    "smoke": scale(SMOKE, [16, 64], [0.1]),
    "laptop": scale(DIGITS, [32, 256], [0.025, 0.1, 0.4, 1.6], ON_DIGITS),
    "paper": scale(IMAGENET, [256, 1024, 4096], [0.05, 0.1, 0.2]),
}


def table(results: Results) -> str:
    """For each scheme and batch size the accuracy at the best rate, and what was published."""
    cells = [["scheme", "batch", "test accuracy", "best rate", "diverged rates", "published"]]
    for (title, batch), rows in grouped(results.rows, "title", "batch_size").items():
        chosen, tried, best = rows_at_best(rows), set(map(rate_of, rows)), best_rate(rows)
        rate = rate_of(chosen[0])
        text = f"{rate:g}{edge_mark(rate, tried)}" + (PASSED if best.passed_over else "")
        gone = {rate_of(row) for row in rows if row["status"] == "diverged"}
        published = published_cell(PUBLISHED.get(title, {}).get(int(batch)))
        words = ("-" if best.best is None else text, f"{len(gone)} of {len(tried)}", published)
        cells.append([title, batch, accuracy_cell(chosen), *words])
    return rate_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the training accuracy of every scheme at its best rate, a panel for each batch size."""
    panels: dict[str, list[Row]] = {}
    for (batch, _), rows in grouped(results.rows, "batch_size", "title").items():
        panels.setdefault(f"batch {batch}", []).extend(rows_at_best(rows))
    imagenet.panels_figure(results, panels, path)


GROW = {"laptop": functools.partial(beyond, extend=1)}
EXPERIMENT: Any = imagenet.experiment("skipinit_imagenet", SCALES, table, figure, grow=GROW)

if __name__ == "__main__":
    run(EXPERIMENT)
