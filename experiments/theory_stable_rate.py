r"""The largest learning rate that trains, with BatchNorm and without.

Claim: BatchNorm raises the largest stable learning rate (Bjorck et al. 2018; Santurkar et al. 2018,
by a smoother loss). SkipInit's authors agree, and add (feedback to reviewer 2) that for small
batches the best rate lies far below the largest stable one, so that this is not the main benefit.

Expected: with BatchNorm rates up to about 3 train at any depth; without it the largest is lower by
more than a factor of 5. In plain residual networks it falls with the depth, until hardly any rate
trains. SkipInit's (0.25) and Fixup's (0.15 to 0.2) stay, and are about twice as high where the
scalars learn at a tenth of the rate. BatchNorm's best rate is a factor of 20 or more below its
largest, that of the others two octaves at most. So the feedback's remark holds here far more with
BatchNorm than without.

Near a minimum, gradient descent with heavy-ball momentum `mu` is stable up to `2 (1 + mu) /
lambda_max`. The figure has this bound with `lambda_max` of the first batch at initialisation. It
does not predict the measured rate. If the branches or the head start from zero, the Hessian does
not contain the layers behind them yet, and the bound is several times too high. If it starts large
(plain), or if weights can grow without harm (BatchNorm), larger rates train, too.

Setting: WRN-n-1 on the 8x8 digits, SGD with momentum at a constant rate for two epochs, no warm-up,
no L2. A rate trains if all losses are finite and the mean of their last quarter is below `ln 10`
minus a margin. Rates are tried in octaves, then between the largest that trains and the next. All
schemes start from one draw (He, fan_in). Scalars learn at the full rate, and at a tenth (as in
Fixup's code, but not in SkipInit's paper); the curvature is then that along rescaled scalars, as a
step with two rates sees it. "Best" is the octave of the lowest training loss.

Not as published: the network, the data and the length of training; the papers sweep whole
trainings by test accuracy. Batches of 64 out of 1,437 images are not small, and two epochs favour
large rates: in a long training the best rate may lie further below the largest.

`--scale laptop` takes about five minutes on two cores, most of it to compile the Hessians, `--scale
smoke` half a minute; `--scale paper` has 16 channels, up to 100 layers and five seeds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, data, init, models, optim, roles, schemes, training
from nf_resnets.plotting.answers import quoted
from nf_resnets.plotting.theory import Curves, Dots, theory_figure
from nf_resnets.roles import Group, Role

from . import untrained
from .experiment import Experiment, Results
from .folder import ResultsFolder, Row
from .main import run
from .table import edge_mark, rate_table
from .untrained import digits, fill, in_order, normalized, quick_jit

# Scheme, and what its scalars' rate is multiplied by.
VARIANTS = (
    ("batchnorm", 1.0), ("plain", 1.0), ("sqrt_half", 1.0), ("skipinit", 1.0), ("skipinit", 0.1),
    ("fixup", 1.0), ("fixup", 0.1),
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    variants: tuple[tuple[str, float], ...] = VARIANTS
    depths: tuple[int, ...] = (10, 22)
    seeds: tuple[int, ...] = (0, 1)
    stem_channels: int = 8
    batch_size: int = 64
    steps: int = 44
    momentum: float = 0.9
    margin: float = 0.2
    lowest_log2_rate: int = -7
    highest_log2_rate: int = 3
    resolution: float = 0.5
    lanczos_steps: int = 16


SCALES = {
    "smoke": Settings(
        variants=(("batchnorm", 1.0), ("fixup", 1.0), ("fixup", 0.1)), depths=(10,), seeds=(0,),
        stem_channels=4, batch_size=32, lowest_log2_rate=-5, lanczos_steps=4,
    ),
    "laptop": Settings(),
    "paper": Settings(
        depths=(10, 28, 100), seeds=(0, 1, 2, 3, 4), stem_channels=16, steps=220,
        lowest_log2_rate=-12, resolution=0.25, lanczos_steps=40,
    ),
}  # fmt: skip
SCALARS = optim.SCALARS | Group((Role.ALPHA,))
KEY = ("title", "depth", "seed", "quantity", "rate")
MOST_OCTAVES = 64  # beyond those of the settings, while even the highest rate trains


@dataclasses.dataclass(frozen=True)
class Command(untrained.Command):
    """The options of the command line."""

    depths: tuple[int, ...] = ()
    """Depths in layers, 6N + 4 each, with spaces between; by default those of the scale."""
    seeds: tuple[int, ...] = ()
    """Seeds, with spaces between; by default those of the scale."""


def title_of(name: str, factor: float) -> str:
    title = schemes.get(name).title
    return title if factor == 1 else f"{title}, scalars × {factor:g}"


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of one scheme and depth: what is compiled once for all seeds and rates."""

    draw: Callable[..., Any]  # (key): the parameters at initialisation
    losses: Callable[..., jax.Array]  # (start, scales, batches, rate): of a run of training
    curvature: Callable[..., analysis.Eigenvalue]  # (start, scales, batch, key): at the start


def make_network(settings: Settings, dataset: data.Dataset, name: str, depth: int) -> Network:
    """The compiled functions of one scheme and depth, in coordinates ``q``.

    A parameter is ``theta = s q``, ``s**2`` what its rate is multiplied by: a step of ``eta`` on
    ``q`` is one of ``s**2 eta`` on ``theta``, and the Hessian along ``q`` is what it sees.
    """
    scheme = schemes.get(name)
    model = models.WideResNet(depth=depth, scheme=scheme, stem_channels=settings.stem_channels)
    images = normalized(dataset, dataset.train.images, dataset.train.images.shape[1])
    labels = jnp.asarray(dataset.train.labels)
    apply_fn = training.train_apply(model)
    shapes = jax.eval_shape(model.init, jax.random.key(0), images[:1])
    # In training a batch is normalised by its own statistics: what runs along does not matter.
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
            q, rate, steps=settings.steps, momentum=settings.momentum,
        )  # fmt: skip

    def curvature(q: Any, scales: Any, batch: jax.Array, key: jax.Array) -> analysis.Eigenvalue:
        return analysis.largest_curvature(
            lambda at: loss(at, scales, batch), q, key=key, steps=settings.lanczos_steps
        )

    return Network(quick_jit(draw), jax.jit(losses), jax.jit(curvature))


def coordinates(params: Any, factor: float) -> tuple[Any, Any]:
    """``q = theta / s`` and ``s``, with which scalars learn at ``factor`` times the rate."""
    scales = roles.assign(params).map(
        lambda leaf, _: jnp.float32(factor**0.5 if leaf in SCALARS else 1.0), params
    )
    return jax.tree.map(lambda theta, scale: theta / scale, params, scales), scales


def batches_of(settings: Settings, dataset: data.Dataset, seed: int) -> jax.Array:
    """The examples of each step and, for the loss after the last, of one more."""
    count = dataset.train.labels.shape[0]
    epoch = data.steps_per_epoch(count, settings.batch_size)
    orders = [
        data.epoch_order(seed, number, count)[: epoch * settings.batch_size]
        for number in range(settings.steps // epoch + 1)
    ]
    return jnp.concatenate(orders).reshape(-1, settings.batch_size)[: settings.steps + 1]


def last_loss(losses: np.ndarray) -> float:
    """The mean of the last quarter; infinite if a loss is not finite."""
    if not np.isfinite(losses).all():
        return math.inf
    return float(losses[-max(len(losses) // 4, 1) :].mean())


def border(
    losses_at: Callable[[float], np.ndarray], settings: Settings, limit: float
) -> tuple[dict[float, float], float | None]:
    """The loss that each octave ends with, and the largest rate that trains (None: no octave does).

    ``losses_at(rate)`` are a run's losses. Rates between octaves are tried only next to the border.
    """
    powers = [*range(settings.lowest_log2_rate, settings.highest_log2_rate + 1)]
    ends = {2.0**power: last_loss(losses_at(2.0**power)) for power in powers}
    while ends[max(ends)] <= limit:
        if len(ends) > len(powers) + MOST_OCTAVES:
            raise ValueError(f"rate={max(ends):g} still trains; expected a largest stable rate.")
        ends[2 * max(ends)] = last_loss(losses_at(2 * max(ends)))
    trains = [rate for rate, end in ends.items() if end <= limit]
    if not trains:
        return ends, None
    found = analysis.largest_stable_rate(
        lambda rate: losses_at(float(rate)), max(trains), 2 * max(trains),
        # A hair wider than asked: a half octave may round to more than one half.
        resolution=settings.resolution * (1 + 1e-6), limit=limit,
    )  # fmt: skip
    return ends, found.stable


def rows_of(
    settings: Settings,
    dataset: data.Dataset,
    key: Row,
    get_network: Callable[[], Network],
    factor: float,
) -> list[Row]:
    """One variant at one seed: curvature, the loss at each octave, the largest rate that trains."""
    seed, network = key["seed"], get_network()
    start, scales = coordinates(network.draw(jax.random.key(seed)), factor)
    batches = batches_of(settings, dataset, seed)

    @functools.cache
    def losses_at(rate: float) -> np.ndarray:
        return np.asarray(network.losses(start, scales, batches, jnp.float32(rate)))

    limit = math.log(dataset.num_classes) - settings.margin
    ends, stable = border(losses_at, settings, limit)
    curvature = network.curvature(start, scales, batches[0], jax.random.key(seed))
    found = [
        ("curvature", "", curvature.value),
        ("residual", "", curvature.residual),
        ("loss at start", "", losses_at(min(ends))[0]),
        *(("loss", digits(rate), end) for rate, end in sorted(ends.items())),
        # Last: it says that the variant is done with.
        ("largest rate", "", math.inf if stable is None else stable),
    ]
    return [
        key | {"quantity": name, "rate": rate, "value": digits(value) if value < math.inf else ""}
        for name, rate, value in found
    ]


def measure(settings: Settings, dataset: data.Dataset, folder: ResultsFolder) -> None:
    """Measures each variant at each seed; those of a scheme and a depth share a network."""
    network = functools.cache(functools.partial(make_network, settings, dataset))
    cases = itertools.product(settings.depths, settings.variants, settings.seeds)
    for depth, (name, factor), seed in cases:
        key = {"title": title_of(name, factor), "depth": depth, "seed": seed}
        fill(
            folder,
            key | {"quantity": "largest rate"},
            f"{key['title']}, {depth} layers, seed {seed}",
            *(rows_of, settings, dataset, key, functools.partial(network, name, depth), factor),
        )


def check(settings: Settings, command: Command) -> Settings:
    """Refuses depths without a network."""
    for depth in settings.depths:
        models.WideResNet(depth=depth)
    return settings


def geometric_mean(values: Iterable[Any]) -> float:
    return math.exp(statistics.fmean(math.log(float(value)) for value in values))


def summaries(rows: Sequence[Row], settings: Settings) -> list[dict[str, Any]]:
    """A line for each variant and depth: geometric means, of the rate over the seeds that train.

    Example:
      >>> settings = Settings(depths=(10,), seeds=(0,), momentum=0.9)
      >>> key = {"title": "BatchNorm", "depth": "10", "seed": "0"}
      >>> rows = [key | {"quantity": "curvature", "rate": "", "value": "3.8"},
      ...         key | {"quantity": "largest rate", "rate": "", "value": "2.0"},
      ...         key | {"quantity": "loss", "rate": "0.5", "value": "0.1"},
      ...         key | {"quantity": "loss", "rate": "1", "value": "0.2"}]
      >>> [line] = summaries(rows, settings)
      >>> line["bound"], line["largest"], line["best"]
      (1.0, 2.0, 0.5)
    """
    lines = []
    for depth, variant in itertools.product(settings.depths, settings.variants):
        own = in_order(rows, title=[title_of(*variant)], depth=[depth], seed=settings.seeds)
        if not own:
            continue
        rates = [row["value"] for row in own if row["quantity"] == "largest rate"]
        trained = [float(rate) for rate in rates if rate]
        losses: dict[float, list[str]] = {}
        for row in own:
            if row["quantity"] == "loss":
                losses.setdefault(float(row["rate"]), []).append(row["value"])
        ends = {rate: geometric_mean(values) for rate, values in losses.items() if all(values)}
        curvature = geometric_mean(row["value"] for row in own if row["quantity"] == "curvature")
        lines.append(
            {
                "title": title_of(*variant),
                "depth": depth,
                "curvature": curvature,
                "bound": 2 * (1 + settings.momentum) / curvature,
                "largest": geometric_mean(trained) if trained else "",
                "range": (min(trained), max(trained)) if trained else (),
                "seeds": f"{len(trained)} of {len(rates)}",
                "best": min(ends, key=lambda rate: ends[rate]) if ends else "",
                "tried": tuple(losses),
                "losses": ends,
            }
        )
    return lines


def table(results: Results) -> str:
    """Rates and curvature of every variant and depth, and the rates beside BatchNorm's."""
    cells = [["scheme", "layers", "lambda_max", "2(1+mu)/lambda", "largest rate", "lowest",
              "highest", "seeds", "/ BatchNorm's", "best rate", "best / largest"]]  # fmt: skip
    lines = summaries(results.rows, results.settings)
    batchnorm = title_of("batchnorm", 1.0)
    reference_of = {line["depth"]: line["largest"] for line in lines if line["title"] == batchnorm}
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
    """The losses up to the first octave with a lost seed or an end far above chance.

    Example:
      >>> until_lost({0.5: 1.0, 1.0: 2.3, 4.0: 2.3})
      {0.5: 1.0, 1.0: 2.3}
    """
    kept: dict[float, float] = {}
    for rate, loss in sorted(losses.items()):
        if loss > 1.5 * math.log(10) or (kept and rate > 2 * max(kept)):
            break
        kept[rate] = loss
    return kept


def lead(lines: Sequence[Mapping[str, Any]]) -> str:
    """The two schemes that train at the largest rates in the deepest network, and these rates."""
    depth = max(line["depth"] for line in lines)
    own = [line for line in lines if line["depth"] == depth and line["largest"]]
    if not own:
        return f"At {depth} layers no scheme trains at any rate"
    first, *others = sorted(own, key=lambda line: -line["largest"])
    said = (
        f"At {depth} layers {quoted(first['title'])} trains at rates up to {first['largest']:.2g}"
    )
    if others:
        said += f", the next, {quoted(others[0]['title'])}, up to {others[0]['largest']:.2g}"
    return said


def plot(results: Results, path: Path) -> None:
    """Draws, for each depth, the largest rates and the loss that each rate ends with."""
    settings = results.settings
    panels: list[Curves | Dots] = []
    for depth in settings.depths:
        lines = [line for line in summaries(results.rows, settings) if line["depth"] == depth]
        panels.append(
            Dots(f"Largest rate that trains, {depth} layers", lines, "largest", "bound",
                 r"learning rate $\eta$", r"$2\,(1 + \mu)\,/\,\lambda_{\max}$ at the start")
        )  # fmt: skip
        ends = [
            {"title": line["title"], "rate": rate, "loss": loss}
            for line in lines
            for rate, loss in until_lost(line["losses"]).items()
        ]
        panels.append(
            Curves(f"Training loss after {settings.steps} steps, {depth} layers", ends, "rate",
                   "loss", r"learning rate $\eta$", "training loss, last quarter")
        )  # fmt: skip
    theory_figure(
        panels,
        path,
        title=lead(summaries(results.rows, settings)),
        subtitle=(
            "The largest learning rate that trains: "
            f"WRN-n-1, {settings.stem_channels} channels, digits, batches of "
            f"{settings.batch_size}, momentum {settings.momentum:g}, {settings.steps} steps; "
            f"geometric means over {len(settings.seeds)} seeds; lines end where one is lost"
        ),
    )


EXPERIMENT = Experiment(
    name="theory_stable_rate",
    title="Largest stable rates",
    description="The largest stable rate, measured.",
    scales=SCALES, command=Command, check=check,
    load=lambda settings, command: data.load("digits"),
    grid=("variants", "depths", "seeds"),
    key=KEY,
    columns=(*KEY, "value"),
    measure=measure, table=table, plot=plot,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
