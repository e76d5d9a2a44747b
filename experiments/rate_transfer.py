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
digits inside scikit-learn: batch 64, 44 steps, five seeds; about 40 minutes on two idle cores.
`--scale smoke` takes seconds a run and shows nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from nf_resnets import models, optim, schemes, training
from nf_resnets.plotting import rates_figure, transfer_figure
from nf_resnets.plotting.answers import best_at, moves_of_all
from nf_resnets.plotting.rates import series_title
from nf_resnets.sweep import Move, moves, optima
from nf_resnets.sweep.transfer import exponent
from nf_resnets.training import Start

from . import experiment
from .experiment import OUTCOME, Experiment, Point, Results, Setup
from .folder import Row
from .images import image_setup, lengths
from .main import run
from .rates import rate_of, widened
from .table import counted, data_title, edge_mark, grouped, text_table

LINES = (
    "fixup", "skipinit", "alpha_rsqrt_depth", "depth_mup", "completep", "plain", "batchnorm"
)  # fmt: skip
METRIC = "train_loss"


@dataclasses.dataclass(frozen=True)
class Command(experiment.Command):
    """Redraw the best learning rate against depth and width."""

    scale: Literal["smoke", "laptop"] = "laptop"
    """smoke: seconds; laptop: digits, forty minutes on two idle cores."""
    lines: tuple[str, ...] = ()
    """Some of fixup, skipinit, alpha_rsqrt_depth, depth_mup, completep, plain, batchnorm."""
    depths: tuple[int, ...] = ()
    """Layers, with spaces between; by default those of the scale."""
    widths: tuple[int, ...] = ()
    """Widths, at the first of the depths."""
    log2_rates: tuple[int, ...] = ()
    """Exponents of the rates that every network is trained at, before others beyond the best."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    dataset: str = "digits"
    lines: tuple[str, ...] = LINES
    depths: tuple[int, ...] = (10, 34, 100, 304)  # layers, at the first of the widths
    widths: tuple[int, ...] = (1, 2, 4)  # at the first of the depths
    base_depth: int = 10  # of the network that the schemes of muP carry rates from
    base_width: int = 2  # the least that has all leaves of wider networks
    log2_rates: tuple[int, ...] = (-5, -4, -3, -2, -1)
    extend: int = 6  # rates beyond each end, at most
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    stem_channels: int = 8
    batch_size: int = 64
    steps: int = 44
    momentum: float = 0.9
    weight_decay: float = 0.0
    bn_estimate_batches: int = 4

    def about(self, by: str) -> str:
        """The settings of a figure."""
        network = f"WRN-n-{self.widths[0]}" if by == "depth" else f"WRN-{self.depths[0]}-k"
        return (
            f"{network} on {data_title(self.dataset)}, {self.stem_channels} channels, batch "
            f"{self.batch_size}, {self.steps} steps, {counted(self.seeds, 'seed')}"
        )


SCALES = {
    "smoke": Settings(
        lines=("skipinit", "completep"), depths=(10, 16), widths=(1, 2), log2_rates=(-5, -3),
        extend=0, seeds=(0,), stem_channels=4, steps=4,
    ),
    "laptop": Settings(),
}  # fmt: skip


@functools.cache
def relative(
    line: str, depth: int, width: int, stem_channels: int, base: tuple[int, int], classes: int
) -> training.Relative:
    """A network, its scheme and the factors of its rates, beside the base's depth and width."""
    of = functools.partial(
        models.WideResNet, scheme=line, stem_channels=stem_channels, num_classes=classes
    )
    images = jax.ShapeDtypeStruct((1, 8, 8, 1), jnp.float32)
    return training.relative_to(
        of(depth=depth, width=width), of(depth=base[0], width=base[1]), images
    )


def relative_at(settings: Settings, dataset: Any, key: Row) -> training.Relative:
    """The network of a run; see :func:`relative`."""
    size = key["line"], key["depth"], key["width"]
    base = settings.base_depth, settings.base_width
    return relative(*size, settings.stem_channels, base, dataset.num_classes)


def lengths_of(settings: Settings, dataset: Any) -> dict[str, int]:
    """The lengths of a :class:`Point`."""
    return lengths(dataset, settings.batch_size, settings.steps)


def points(
    settings: Any,
    data: Any,
    rows: Sequence[Row],
    *,
    at: Callable[[Any, Any, Row], training.Relative] = relative_at,
    length: Callable[[Any, Any], Mapping[str, int]] = lengths_of,
    called: str = "WRN-{depth}-{width}",
) -> list[Point]:
    """The runs: every scheme at every size, with rates until the best is none of the outermost.

    Args:
      settings: with ``lines``, ``depths``, ``widths``, ``log2_rates``, ``extend`` and ``seeds``.
      data: what was loaded.
      rows: those that there are.
      at: ``at(settings, data, key)`` is the network of a run.
      length: ``length(settings, data)`` gives the lengths of a run.
      called: what the display calls a network.
    """
    found, there = [], grouped(rows, "line", "depth", "width")
    deep = [(depth, settings.widths[0]) for depth in settings.depths]
    sizes = sorted({*deep, *((settings.depths[0], width) for width in settings.widths)})
    for (depth, width), line in itertools.product(sizes, settings.lines):
        rates = widened(
            [2.0**power for power in settings.log2_rates],
            there.get((line, str(depth), str(width)), []),
            rate_of,
            extend=settings.extend,
            metric=METRIC,
        )
        for rate, seed in itertools.product(rates, settings.seeds):
            power = round(math.log2(rate))
            key = {"line": line, "depth": depth, "width": width, "log2_rate": power, "seed": seed}
            scheme = schemes.get(at(settings, data, key).model.scheme)
            network = called.format(depth=depth, width=width)
            found.append(
                Point(
                    key=key,
                    title=scheme.title,
                    start=Start(scheme, seed, {"learning_rate": rate}),
                    program=(depth, width, scheme.compiles_as),
                    priority=depth * width,
                    label=f"{scheme.title}, {network}, rate 2^{power}, seed {seed}",
                    **length(settings, data),
                )
            )
    return found


def check(settings: Settings, command: Any) -> Settings:
    """Refuses sizes that no network has, and rates that float32 does not hold."""
    for depth, width in itertools.product(settings.depths, settings.widths):
        models.WideResNet(depth=depth, width=width)
    check_rates(settings)
    return settings


def check_rates(settings: Any) -> None:
    """Refuses powers of two that are no normal number of float32."""
    for power in settings.log2_rates:
        if not -126 <= power <= 127:
            raise ValueError(f"--log2_rates {power} found; expected -126 to 127.")


def setup(settings: Settings, dataset: Any, point: Point) -> Setup:
    """Network, optimizer and steps of one scheme at one size."""
    found = relative_at(settings, dataset, point.key)
    schedule = functools.partial(optim.halving, num_steps=settings.steps)
    return image_setup(found.model, dataset, settings, point, schedule=schedule, relative=found)


def row(settings: Any, point: Point, run: Row) -> Row:
    """The training loss at the end: the mean over the last quarter of the steps."""
    losses = [math.nan if loss is None else loss for loss in run["measures"]["curve"]["loss"]]
    last = losses[-max(1, len(losses) // 4) :]
    return {METRIC: sum(last) / len(last)}


def compared(settings: Any, rows: Iterable[Row], by: str) -> list[Any]:
    """The best rates of each scheme by depth, at the first width, or by width."""
    other, at = ("width", settings.widths[0]) if by == "depth" else ("depth", settings.depths[0])
    runs = [
        {
            "scheme": each["title"],
            by: int(each[by]),
            "peak_lr": rate_of(each),
            "seed": each["seed"],
            "state": each["status"],
            METRIC: float(each[METRIC]) if each["status"] == "finished" else None,
        }
        for each in rows
        if int(each[other]) == at
    ]
    return optima(runs, by=("scheme", by), metric=METRIC)


def cell(move: Move, tried: Iterable[float]) -> str:
    """A best rate, its range, and what the smallest network's rate costs here."""
    if move.best is None or move.low is None or move.high is None:
        return "diverged"
    low, best, high = (f"{math.log2(rate):.0f}" for rate in (move.low, move.best, move.high))
    text = f"2^{best}{edge_mark(move.best, tried)}"
    text += f" [{low}, {high}]" if low != high else ""
    if move.diverged is not None and move.diverged > 0.5:
        return f"{text}, diverges"
    return text if not move.cost else f"{text}, {move.cost:+.2g}"


def table(results: Results) -> str:
    """Best rates by depth and by width, schemes down."""
    texts = []
    for by in ("depth", "width"):
        best = compared(results.settings, results.rows, by)
        tried = {tuple(one.group.values()): [rate.rate for rate in one.rates] for one in best}
        found = moves(best, by)
        sizes = sorted({int(move.size) for move in found})
        cells = [["scheme", *(f"{by} {size:,}" for size in sizes), f"rate ~ {by}^"]]
        for title in dict.fromkeys(move.group["scheme"] for move in found):
            own = {int(move.size): move for move in found if move.group["scheme"] == title}
            power = exponent(list(own.values()))
            cells.append([
                title,
                *(cell(own[size], tried[title, size]) if size in own else "-" for size in sizes),
                "-" if power is None else f"{power:.2f}",
            ])  # fmt: skip
        texts.append(text_table(cells))
    return "\n\n".join(texts)


def subtitle(settings: Any, by: str) -> str:
    """The settings of a figure, and what is compared."""
    return f"{settings.about(by)}; training loss over the last quarter of the steps"


STAYS = "; a rate stays if the smallest network's best is as good as the largest one's"
"""What the title means."""


def plot_moves(
    results: Results, path: Path, by: str = "depth", size: str = "depth (layers)"
) -> None:
    """Draws the best rate, and what the smallest network's costs, against depth or width."""
    found = [
        dataclasses.asdict(move) for move in moves(compared(results.settings, results.rows, by), by)
    ]
    transfer_figure(
        found,
        path,
        title=moves_of_all(found, lambda group: series_title(group, "", None), by),
        subtitle=subtitle(results.settings, by) + STAYS,
        size=size,
    )


def plot_rates(results: Results, path: Path, by: str = "depth", label: str = "{} layers") -> None:
    """Draws loss against rate, a panel for each scheme, a curve for each depth or width."""
    drawn = [dataclasses.asdict(one) for one in compared(results.settings, results.rows, by)]
    rates_figure(
        drawn,
        path,
        title=best_at(drawn, lambda group: series_title(group, by, None), by),
        subtitle=subtitle(results.settings, by),
        batch_size=by,
        label=label,
    )


EXPERIMENT = Experiment(
    name="rate_transfer",
    title="Transfer of learning rates",
    description="Draw the best learning rate of each scheme against depth and width.",
    scales=SCALES, command=Command,
    grid=("lines", "depths", "widths", "log2_rates", "seeds", "extend"),
    key=("line", "depth", "width", "log2_rate", "seed"),
    columns=(
        "line", "depth", "width", "log2_rate", "seed", "title", "branches", METRIC, *OUTCOME
    ),
    check=check, points=points, setup=setup, row=row, table=table, plot=plot_moves,
    figures={
        "rates_by_depth.png": plot_rates,
        "width.png": functools.partial(plot_moves, by="width", size="width"),
        "rates_by_width.png": functools.partial(plot_rates, by="width", label="width {}"),
    },
    heading=lambda results: (
        "Best rate [log2 of those as good], and by how much the loss is worse at the best rate of "
        "the smallest network:"
    ),
    choices={"lines": LINES},
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
