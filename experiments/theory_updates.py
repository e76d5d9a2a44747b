r"""Fixup's section 3: how far one step moves the network, and how that depends on the branches.

Claim: with Fixup `||Delta f(x)|| / eta` does not depend on the depth; with rule 2 left out
(branches not rescaled) it grows in proportion to `L`, since every branch adds a positive
semi-definite term (Theorem 3). A branch moves the network by `Theta(eta / L)` if and only if the
product of its layers but the smallest is `Theta(L**-0.5)` (Theorem 4).

Expected:

1. Update against depth: flat for Fixup, slope towards 1 without rule 2, exponential for `alpha =
   1`, slowly growing for `alpha = L**-0.5` and `alpha = 0` (SkipInit), faster than `L` for
   BatchNorm, falling for `(x + F)/sqrt(2)`.
2. Update against the rate: flat, until the step leaves the region in which the network is linear.
3. Theorem 3's traces, summed over the branches of a fully-connected network: flat if both layers
   are scaled by `L**-0.5`, faster than linear if one is, exponential if none is. (The paper's
   branches end in a ReLU: their outputs are positive and add up, so that with one scaled layer the
   signal also grows with the depth.)
4. The exponent of Theorem 4 is 1 on the line `min(p_1, p_2) = 1/2`; Fixup's first layer is on it
   for any `p_2 >= 1/2`.

Setting: WRN-n-1 on a batch of the 8x8 digits, all heads drawn at random (with Fixup's zero head
only the head moves), biases 0. The update is to first order, except in (2), where it is that of a
step. `--scale laptop` takes about two minutes on two cores, `--scale smoke` seconds.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import models, roles, schemes
from nf_resnets.analysis import scalar_branch
from nf_resnets.analysis.head import random_head
from nf_resnets.analysis.update_terms import draw_network, update_terms
from nf_resnets.analysis.updates import update_size
from nf_resnets.plotting.theory import Curves, ExponentMap, theory_figure
from nf_resnets.roles import Role

from .experiment import Experiment, Results
from .folder import ResultsFolder, Row
from .main import run
from .table import text_table
from .untrained import (
    Command,
    digits,
    digits_batch,
    fill,
    in_order,
    initial,
    quick_jit,
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    depths: tuple[int, ...] = (10, 28, 100)
    variants: tuple[str, ...] = (
        "fixup", "no_rule_2", "alpha_one", "alpha_rsqrt_depth", "skipinit", "sqrt_half",
        "batchnorm",
    )  # fmt: skip
    stem_channels: int = 8
    batch_size: int = 32
    draws: int = 4
    rate_depth: int = 28
    rate_variants: tuple[str, ...] = ("fixup", "no_rule_2", "alpha_one")
    log2_rates: tuple[int, ...] = tuple(range(-18, 3, 2))
    trace_branches: tuple[int, ...] = (4, 8, 16, 32)
    trace_width: int = 32
    map_steps: int = 24


SCALES = {
    "smoke": Settings(
        depths=(10, 16), stem_channels=4, batch_size=8, draws=2, rate_depth=10,
        variants=("fixup", "no_rule_2", "skipinit"), rate_variants=("fixup", "no_rule_2"),
        log2_rates=(-12, -8), trace_branches=(2, 4), trace_width=8, map_steps=8,
    ),
    "laptop": Settings(),
    "paper": Settings(
        depths=(10, 28, 100, 304, 1000), stem_channels=16, batch_size=128, draws=16,
        trace_branches=(4, 8, 16, 32, 64), trace_width=256,
    ),
}  # fmt: skip
TITLES = {"fixup": "Fixup", "no_rule_2": "Fixup without rule 2"}
TRACES = {
    "both layers × L^-1/2": lambda L: (L**-0.5, L**-0.5),
    "one layer × L^-1/2": lambda L: (1.0, L**-0.5),
    "none (He)": lambda L: (1.0, 1.0),
}
KEY = ("part", "title", "x", "y")


def title_of(variant: str) -> str:
    return TITLES[variant] if variant in TITLES else schemes.get(variant).title


def sizes(settings: Settings, variant: str, depth: int, rates: Sequence[float] = ()) -> np.ndarray:
    """``||Delta f|| / eta``, a mean over draws and examples: for each rate, or to first order."""
    images, labels = digits_batch(settings.batch_size)
    scheme = schemes.get("fixup" if variant == "no_rule_2" else variant)
    model = models.WideResNet(depth=depth, scheme=scheme, stem_channels=settings.stem_channels)

    def one(key: jax.Array) -> jax.Array:
        params, rest = initial(model, key, images)
        params = random_head(params, jax.random.fold_in(key, 2))
        if variant == "no_rule_2":
            factor = model.num_branches**0.5
            params = roles.assign(params).map(
                lambda leaf, value: value * factor if leaf.role is Role.BRANCH else value, params
            )

        def logits_fn(at: Any, inputs: jax.Array) -> jax.Array:
            variables = {"params": at, **rest}
            return model.apply(variables, inputs, train=True, mutable=["batch_stats"])[0]

        if not rates:
            return update_size(logits_fn, params, images, labels).mean()
        return jax.lax.map(
            lambda rate: update_size(logits_fn, params, images, labels, rate).mean(),
            jnp.array(rates),
        )

    keys = jax.random.split(jax.random.key(0), settings.draws)
    return np.asarray(quick_jit(lambda keys: jax.lax.map(one, keys).mean(axis=0))(keys))


def traces(settings: Settings, scaling: str, L: int) -> float:
    """Theorem 3's traces summed over the layers of all branches, the mean over draws."""

    def one(key: jax.Array) -> jax.Array:
        network = draw_network(
            key, width=settings.trace_width, num_branches=L, num_classes=10,
            layer_scales=TRACES[scaling](L),
        )  # fmt: skip
        x = jax.random.normal(jax.random.fold_in(key, 1), (settings.trace_width,))
        terms = jax.tree.leaves(update_terms(network, x).branches)
        # By the squared length of the input, to which all traces are in proportion.
        return jnp.trace(jnp.stack(terms).sum(axis=0)) / (x @ x)

    keys = jax.random.split(jax.random.key(1), 4 * settings.draws)
    return float(quick_jit(lambda keys: jax.lax.map(one, keys).mean())(keys))


def rows_of(part: str, title: str, xs: Sequence[Any], function: Any, *arguments: Any) -> list[Row]:
    """The values of a function as rows, one for each ``x``."""
    values = np.atleast_1d(function(*arguments))
    shared = {"part": part, "title": title, "y": ""}
    return [shared | {"x": x, "value": digits(v)} for x, v in zip(xs, values, strict=True)]


def exponents(settings: Settings) -> list[Row]:
    """Theorem 4's exponents on a grid."""
    grid = scalar_branch.grid(np.linspace(0, 1, settings.map_steps + 1).tolist(), 2)
    return [
        {"part": "map", "title": "", "x": digits(p), "y": digits(q), "value": digits(update)}
        for (p, q), update in zip(grid, scalar_branch.theorem_4(grid).update, strict=True)
    ]


def measure(settings: Settings, _: Any, folder: ResultsFolder) -> None:
    """Measures the four parts."""

    def add(part: str, title: str, xs: Sequence[Any], function: Any, *arguments: Any) -> None:
        key = {"part": part, "title": title, "x": xs[-1], "y": ""}
        label = f"{part}, {title}, {xs[-1]}"
        fill(folder, key, label, rows_of, part, title, xs, function, *arguments)

    for depth, variant in itertools.product(settings.depths, settings.variants):
        add("depth", title_of(variant), [(depth - 4) // 2], sizes, settings, variant, depth)
    rates = [2.0**power for power in settings.log2_rates]
    for variant in settings.rate_variants:
        title = title_of(variant)
        add("rate", title, rates, sizes, settings, variant, settings.rate_depth, rates)
    for L, scaling in itertools.product(settings.trace_branches, TRACES):
        add("trace", scaling, [L], traces, settings, scaling, L)
    fill(folder, {"part": "map"}, "exponents", exponents, settings)


def slope(rows: list[Row]) -> float:
    """The slope in log-log between the last two points of a curve."""
    points = sorted((float(row["x"]), float(row["value"])) for row in rows)[-2:]
    (x, y), (x2, y2) = points
    return float(np.log(y2 / y) / np.log(x2 / x))


def table(results: Results) -> str:
    """The curves over the depth: their values, and the slope of the last two."""
    cells = []
    for name, heading in (("depth", "update / eta, L ="), ("trace", "sum of traces, L =")):
        own = in_order(results.rows, part=[name])
        places = sorted({int(row["x"]) for row in own})
        lines = [[heading, *map(str, places), "slope"]]
        for title in dict.fromkeys(row["title"] for row in own):
            curve = {int(row["x"]): row for row in own if row["title"] == title}
            values = [f"{float(curve[L]['value']):.3g}" for L in places]
            lines.append([title, *values, f"{slope(list(curve.values())):.2f}"])
        cells.append(text_table(lines))
    return "\n\n".join(cells)


def growth(rows: Sequence[Row]) -> str:
    """How the update grows with the depth, with Fixup and in the schemes furthest from it."""
    titles = dict.fromkeys(row["title"] for row in rows)
    found = {title: slope([row for row in rows if row["title"] == title]) for title in titles}
    told = ("Fixup", "Fixup without rule 2", "BatchNorm", "α = 1")
    said = [f"as $L^{{{found[title]:.2f}}}$ with {title}" for title in told if title in found]
    return f"An update grows {', '.join(said)}"


def plot(results: Results, path: Path) -> None:
    """Draws the four parts."""
    settings = results.settings
    own = {name: in_order(results.rows, part=[name]) for name in ("depth", "rate", "trace", "map")}
    layers = f"{settings.rate_depth} layers"
    traces = [
        {**row, "title": row["title"].replace("L^-1/2", "$L^{-1/2}$")} for row in own["trace"]
    ]
    theory_figure(
        [
            Curves("Update of the network against depth", own["depth"], "x", "value",
                   "branches $L$", r"$\|\Delta f\|\,/\,\eta$"),
            Curves(f"Update against the learning rate, {layers}", own["rate"], "x", "value",
                   r"learning rate $\eta$", r"$\|\Delta f\|\,/\,\eta$"),
            Curves("Theorem 3: traces of all branches", traces, "x", "value",
                   "branches $L$", r"$\sum_l \sum_i \mathrm{tr}\, J_l^i\,/\,\|x_0\|^2$",
                   own_legend=True),
            ExponentMap(
                r"Theorem 4: $e$ in $|\Delta F|\,/\,\eta \sim L^{-e}$, $a_i = L^{-p_i}$",
                own["map"], "$p_1$", "$p_2$",
                marked=[("both layers alike", 0.5, 0.5)],
            ),
        ],
        path,
        title=growth(own["depth"]),
        subtitle=(
            "How far one step of gradient descent moves a network, at the largest depths: "
            f"WRN-n-1, {settings.stem_channels} channels, {settings.batch_size} digits, random "
            f"heads, {settings.draws} draws; traces: width {settings.trace_width}, m = 2"
        ),
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="theory_updates",
    title="Update sizes",
    description="Fixup's section 3, measured.",
    scales=SCALES, command=Command,
    key=KEY, grid=(),
    columns=(*KEY, "value"),
    measure=measure, table=table, plot=plot,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
