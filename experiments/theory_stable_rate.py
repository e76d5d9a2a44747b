r"""The largest learning rate that trains, with BatchNorm and without.

Claim: BatchNorm raises the largest stable learning rate (Bjorck et al. 2018; Santurkar et al. 2018,
by a smoother loss). SkipInit's authors agree, and add (feedback to reviewer 2) that for small
batches the best rate lies far below the largest stable one, so that this is not the main benefit.

Expected: with BatchNorm rates up to about 3 train at any depth; without it the largest is lower by
more than a factor of 5. In plain residual networks it falls with the depth; SkipInit's (0.25) and
Fixup's (0.15 to 0.2) stay, and are about twice as high where the scalars learn at a tenth of it.
BatchNorm's best rate is a factor of 20 or more below its largest, that of the others two octaves.
(In the rows the others' are at a quarter to five sixths of the largest.)

The figure also has the bound `2 (1 + mu) / lambda_max` of gradient descent near a minimum, with
`lambda_max` of the first batch at initialisation. It does not predict the measured rate: where the
branches or the head start from zero, the Hessian does not contain the layers behind them yet.

Setting: WRN-n-1 on the 8x8 digits, SGD with momentum at a constant rate for two epochs, no warm-up,
no L2. A rate trains if all losses are finite and the mean of their last quarter is below `ln 10`
minus a margin. All schemes start from one draw (He, fan_in). Scalars learn at the full rate, and at
a tenth (as in Fixup's code, but not in SkipInit's paper). "Best" is the octave of the lowest
training loss. `--scale laptop` takes five minutes on two cores.

Not as published: the network, the data and the length of training; the papers sweep whole
trainings by test accuracy. Two epochs favour large rates.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, data, init, models, optim, roles, schemes, training
from nf_resnets.plotting.curves import Curve, Panel, curves_figure, curves_of
from nf_resnets.roles import Group, Role

from .experiment import Experiment, Results, Row
from .grid import Point
from .main import run
from .table import edge_mark, grouped, rate_table
from .untrained import digits, normalized, quick_jit

VARIANTS = (
    ("batchnorm", 1.0), ("plain", 1.0), ("sqrt_half", 1.0), ("skipinit", 1.0), ("skipinit", 0.1),
    ("fixup", 1.0), ("fixup", 0.1),
)  # fmt: skip
"""Scheme, and what its scalars' rate is multiplied by."""
BASE = {
    "stem_channels": 8, "batch_size": 64, "steps": 44, "momentum": 0.9, "margin": 0.2,
    "lowest_log2_rate": -7, "highest_log2_rate": 3, "resolution": 0.5, "lanczos_steps": 16,
}  # fmt: skip


def scale(
    base: Point, depths: Sequence[int], seeds: int, variants: Sequence[tuple[str, float]] = VARIANTS
) -> list[Point]:
    """Every scheme and factor at every depth and seed."""
    return [
        {**base, "depth": depth, "scheme": name, "scalar_factor": factor, "seed": seed}
        for depth, (name, factor), seed in itertools.product(depths, variants, range(seeds))
    ]


SMOKE = {"stem_channels": 4, "batch_size": 32, "lowest_log2_rate": -5, "lanczos_steps": 4}
SCALES = {
    "smoke": scale(BASE | SMOKE, [10], 1, [VARIANTS[at] for at in (0, 5, 6)]),
    "laptop": scale(BASE, [10, 22], 2),
}
SCALARS = optim.SCALARS | Group((Role.ALPHA,))


def title_of(name: str, factor: float) -> str:
    title = schemes.get(name).title
    return title if factor == 1 else f"{title}, scalars × {factor:g}"


load = functools.cache(functools.partial(data.load, "digits"))


@functools.cache
def make_network(
    name: str, depth: int, channels: int, steps: int, momentum: float, lanczos: int
) -> tuple[Callable[..., Any], Callable[..., jax.Array], Callable[..., analysis.Eigenvalue]]:
    """``draw``, ``losses`` and ``curvature`` of one scheme and depth, in coordinates ``q``.

    A parameter is ``theta = s q``, ``s**2`` what its rate is multiplied by: a step of ``eta`` on
    ``q`` is one of ``s**2 eta`` on ``theta``, and the Hessian along ``q`` is what it sees.
    """
    scheme, dataset = schemes.get(name), load()
    model = models.WideResNet(depth=depth, scheme=scheme, stem_channels=channels)
    images = normalized(dataset, dataset.train.images, dataset.train.images.shape[1])
    labels = jnp.asarray(dataset.train.labels)
    apply_fn = training.train_apply(model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images[:1])
    # In training a batch is normalized by its own statistics: what runs along does not matter.
    stats = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes.get("batch_stats", {}))

    def loss(q: Any, scales: Any, batch: jax.Array) -> jax.Array:
        params = jax.tree.map(lambda at, scale: scale * at, q, scales)
        logits, _ = apply_fn(params, stats, images[batch], None)
        chosen = jnp.take_along_axis(logits, labels[batch].reshape(-1, 1), axis=1)
        return (jax.nn.logsumexp(logits, axis=1, keepdims=True) - chosen).mean()

    def draw(key: jax.Array) -> Any:
        params = model.init(key, images[:1])["params"]
        return scheme.init(init.he(params, key, mode="fan_in"), model.num_branches)

    def losses(q: Any, scales: Any, batches: jax.Array, rate: jax.Array) -> jax.Array:
        return analysis.descend(
            lambda at, t: loss(at, scales, batches[t]),
            q, rate, steps=steps, momentum=momentum,
        )  # fmt: skip

    def curvature(q: Any, scales: Any, batch: jax.Array, key: jax.Array) -> analysis.Eigenvalue:
        return analysis.largest_curvature(
            lambda at: loss(at, scales, batch), q, key=key, steps=lanczos
        )

    return quick_jit(draw), jax.jit(losses), jax.jit(curvature)


def coordinates(params: Any, factor: float) -> tuple[Any, Any]:
    """``q = theta / s`` and ``s``, with which scalars learn at ``factor`` times the rate."""
    scales = roles.assign(params).map(
        lambda leaf, _: jnp.float32(factor**0.5 if leaf in SCALARS else 1.0), params
    )
    return jax.tree.map(lambda theta, scale: theta / scale, params, scales), scales


def batches_of(point: Point, dataset: data.Dataset, seed: int) -> jax.Array:
    """The examples of each step and, for the loss after the last, of one more."""
    count = dataset.train.labels.shape[0]
    epoch = data.steps_per_epoch(count, point["batch_size"])
    orders = [
        data.epoch_order(seed, number, count)[: epoch * point["batch_size"]]
        for number in range(point["steps"] // epoch + 1)
    ]
    return jnp.concatenate(orders).reshape(-1, point["batch_size"])[: point["steps"] + 1]


def last_loss(losses: np.ndarray) -> float:
    """The mean of the last quarter; infinite if a loss is not finite."""
    if not np.isfinite(losses).all():
        return math.inf
    return float(losses[-max(len(losses) // 4, 1) :].mean())


def border(
    losses_at: Callable[[float], np.ndarray], point: Point, limit: float
) -> tuple[dict[float, float], float | None]:
    """The loss that each octave ends with, and the largest rate that trains (None: no octave does).

    ``losses_at(rate)`` are a run's losses. Rates between octaves are tried only next to the border.
    """
    powers = range(point["lowest_log2_rate"], point["highest_log2_rate"] + 1)
    ends = {2.0**power: last_loss(losses_at(2.0**power)) for power in powers}
    while ends[max(ends)] <= limit:
        ends[2 * max(ends)] = last_loss(losses_at(2 * max(ends)))
    trains = [rate for rate, end in ends.items() if end <= limit]
    if not trains:
        return ends, None
    border_rate = analysis.largest_stable_rate(
        lambda rate: losses_at(float(rate)), max(trains), 2 * max(trains),
        # A hair wider than asked: a half octave may round to more than one half.
        resolution=point["resolution"] * (1 + 1e-6), limit=limit,
    )  # fmt: skip
    return ends, border_rate.stable


def measure(point: Point, _: str | None) -> list[Row]:
    """Curvature, the loss at each octave, and the largest rate that trains."""
    dataset, seed = load(), point["seed"]
    names = ("scheme", "depth", "stem_channels", "steps", "momentum", "lanczos_steps")
    draw, losses, curvature_of = make_network(*(point[name] for name in names))
    start, scales = coordinates(draw(jax.random.key(seed)), point["scalar_factor"])
    batches = batches_of(point, dataset, seed)

    @functools.cache
    def losses_at(rate: float) -> np.ndarray:
        return np.asarray(losses(start, scales, batches, jnp.float32(rate)))

    limit = math.log(dataset.num_classes) - point["margin"]
    ends, stable = border(losses_at, point, limit)
    values = [
        ("curvature", "", curvature_of(start, scales, batches[0], jax.random.key(seed)).value),
        *(("loss", digits(rate), end) for rate, end in sorted(ends.items())),
        ("largest rate", "", math.inf if stable is None else stable),
    ]
    title = title_of(point["scheme"], point["scalar_factor"])
    key = {"title": title, "depth": point["depth"], "seed": seed}
    return [
        {**key, "quantity": name, "rate": rate, "value": digits(x) if x < math.inf else ""}
        for name, rate, x in values
    ]


def summaries(rows: Sequence[Row], momentum: float) -> list[dict[str, Any]]:
    """A line for each network: geometric means, of the rate over the seeds that train."""
    lines = []
    for (depth, title), each in grouped(rows, "depth", "title").items():
        rates = [row["value"] for row in each if row["quantity"] == "largest rate"]
        trained = [float(rate) for rate in rates if rate]
        losses: dict[float, list[str]] = {}
        for row in each:
            if row["quantity"] == "loss":
                losses.setdefault(float(row["rate"]), []).append(row["value"])
        mean = statistics.geometric_mean
        ends = {rate: mean(map(float, values)) for rate, values in losses.items() if all(values)}
        curvature = mean(float(row["value"]) for row in each if row["quantity"] == "curvature")
        lines.append(
            {
                "title": title,
                "depth": int(depth),
                "curvature": curvature,
                "bound": 2 * (1 + momentum) / curvature,
                "largest": mean(trained) if trained else "",
                "range": (min(trained), max(trained)) if trained else (),
                "seeds": f"{len(trained)} of {len(rates)}",
                "best": min(ends, key=lambda rate: ends[rate]) if ends else "",
                "tried": tuple(losses),
                "losses": ends,
            }
        )
    return lines


def table(results: Results) -> str:
    """Rates and curvature of every network, and the rates beside BatchNorm's."""
    cells = [["scheme", "layers", "lambda_max", "2(1+mu)/lambda", "largest rate", "lowest",
              "highest", "seeds", "/ BatchNorm's", "best rate", "best / largest"]]  # fmt: skip
    lines = summaries(results.rows, results.points[0]["momentum"])
    reference_of = {
        line["depth"]: line["largest"] for line in lines if line["title"] == "BatchNorm"
    }
    for line in lines:
        largest, best = line["largest"], line["best"]
        reference = reference_of.get(line["depth"])
        cells.append([
            line["title"], str(line["depth"]), f"{line['curvature']:.3g}", f"{line['bound']:.3g}",
            f"{largest:.3g}" if largest else "none",
            *([f"{rate:.3g}" for rate in line["range"]] if largest else ["-", "-"]),
            line["seeds"],
            f"{largest / reference:.3g}" if largest and reference else "-",
            f"{best:.3g}{edge_mark(best, line['tried'])}" if best else "-",
            f"{best / largest:.2g}" if best and largest else "-",
        ])  # fmt: skip
    return rate_table(cells)


def until_lost(losses: dict[float, float]) -> dict[float, float]:
    """The losses up to the first octave with a lost seed or an end far above chance."""
    kept: dict[float, float] = {}
    for rate, loss in sorted(losses.items()):
        if loss > 1.5 * math.log(10) or (kept and rate > 2 * max(kept)):
            break
        kept[rate] = loss
    return kept


def figure(results: Results, path: Path) -> None:
    """Draws, for each depth, the largest rates and the loss that each rate ends with."""
    point = results.points[0]
    panels = []
    for (depth,), rows in grouped(results.rows, "depth").items():
        lines = summaries(rows, point["momentum"])
        dots = [
            Curve(line["title"], [float(line[name])], [at], style=style)
            for at, line in enumerate(lines)
            for name, style in (("bound", "open"), ("largest", "dots"))
            if line[name] != ""
        ]
        panels.append(
            Panel(r"learning rate $\eta$", "", dots, x_base=10,
                  names=[line["title"] for line in lines],
                  heading=f"Largest rate that trains, {depth} layers")
        )  # fmt: skip
        ends = [
            {"title": line["title"], "rate": rate, "loss": loss}
            for line in lines
            for rate, loss in until_lost(line["losses"]).items()
        ]
        panels.append(
            Panel(r"learning rate $\eta$", "training loss, last quarter",
                  curves_of(ends, "rate", "loss"), x_base=10, y_base=10,
                  heading=f"Training loss after {point['steps']} steps, {depth} layers")
        )  # fmt: skip
    curves_figure(
        panels,
        path,
        title="The largest learning rate that trains",
        subtitle=(
            f"WRN-n-1, {point['stem_channels']} channels, digits, batches of "
            f"{point['batch_size']}, momentum {point['momentum']:g}, {point['steps']} steps; "
            "geometric means over seeds; lines end where one is lost"
        ),
        columns=2,
        legend={"open": r"$2\,(1 + \mu)\,/\,\lambda_{\max}$ at the start"},
    )


EXPERIMENT = Experiment(
    "theory_stable_rate", SCALES, table, figure, measure=measure,
    title=lambda row: title_of(row["scheme"], row["scalar_factor"]),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
