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
5. Update by the layers of each branch, all else held still: `Theta(eta / L)` with Fixup, so that
   `L` times it is flat, and of the same size without rule 2 at any `L`. All branches together move
   the network almost as far as the sum of their updates, since these are correlated.

Criteria of (5) and of LSUV's update in (1), fixed before their rows and after a measurement from
outside (`L` times the mean update flat from 9 to 30 branches with Fixup; LSUV's update of the
network 51, 141 and 334 at 3, 9 and 15 branches): of *proper scale* are branches if `L` times their
mean update changes by less than a quarter from 3 to 48 branches, and none is more than three times
the mean; *correlated* are updates if those of 48 branches add up to more than half of the sum of
their lengths (in random directions to `48**-0.5 = 0.14` of it); they *accumulate* if the network's
update grows more than threefold from 3 to 48 branches. Changed after a look: (5) first counted the
scalars beside a branch as its own. Where a stage begins, one of them stands before the shortcut as
well, and `L` times the largest update of a branch was 13.6 times the mean at 48 branches (4.53 and
0.334 with Fixup; the mean 0.264 at 3). Now the layers of the branches alone are trained.

Setting: WRN-n-1 on a batch of the 8x8 digits, all heads drawn at random (with Fixup's zero head
only the head moves), biases 0. The update is to first order, except in (2), where it is that of a
step. `--scale laptop` takes about three minutes on two cores, `--scale smoke` seconds.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import models, random, roles, schemes
from nf_resnets.analysis import random_head, update_size
from nf_resnets.plotting.curves import Panel, curves_figure, curves_of
from nf_resnets.roles import Role

from .experiment import Experiment, Results, Row
from .grid import Point, grid
from .main import run
from .table import grouped, text_table
from .untrained import digits, digits_batch, forward, initial, quick_jit, slope

TRACES = {
    "both layers × L^-1/2": lambda L: (L**-0.5, L**-0.5),
    "one layer × L^-1/2": lambda L: (1.0, L**-0.5),
    "none (He)": lambda L: (1.0, 1.0),
}
VARIANTS = (
    "fixup", "no_rule_2", "alpha_one", "alpha_rsqrt_depth", "skipinit", "sqrt_half", "lsuv",
    "batchnorm",
)  # fmt: skip


def scale(
    base: Point, depths: Sequence[int], variants: Sequence[str], rate_variants: Sequence[str],
    branches: Sequence[int],
) -> list[Point]:  # fmt: skip
    """The parts of the figure."""
    return (
        grid({**base, "part": "depth"}, depth=depths, variant=variants)
        + grid({**base, "part": "branch"}, depth=depths, variant=VARIANTS[:2])
        + grid({**base, "part": "rate"}, variant=rate_variants)
        + grid({**base, "part": "trace"}, branches=branches, scaling=list(TRACES))
        + [{**base, "part": "map"}]
    )


LAPTOP = {
    "stem_channels": 8, "batch_size": 32, "draws": 4, "rate_depth": 28, "first_power": -18,
    "last_power": 2, "step": 2, "trace_width": 32, "map_steps": 24,
}  # fmt: skip
SMOKE = {
    "stem_channels": 4, "batch_size": 8, "draws": 2, "rate_depth": 10, "first_power": -12,
    "last_power": -8, "step": 4, "trace_width": 8, "map_steps": 8,
}  # fmt: skip
SCALES = {
    "smoke": scale(SMOKE, [10, 16], VARIANTS[:2] + ("skipinit",), VARIANTS[:2], [2, 4]),
    "laptop": scale(LAPTOP, [10, 28, 100], VARIANTS, VARIANTS[:3], [4, 8, 16, 32]),
}


TABLES = {
    "depth": "update / eta, L =",
    "branch": "L x update by a branch / eta, L =",
    "together": "update by all branches / sum, L =",
    "trace": "sum of traces, L =",
}


def title_of(variant: str) -> str:
    return "Fixup without rule 2" if variant == "no_rule_2" else schemes.get(variant).title


def make_network(point: Point, variant: str, depth: int) -> tuple[Any, Any, Any]:
    """A batch, the network of a variant, and its parameters and statistics, stacked over draws."""
    batch = digits_batch(point["batch_size"])
    scheme = schemes.get("fixup" if variant == "no_rule_2" else variant)
    model = models.WideResNet(depth=depth, scheme=scheme, stem_channels=point["stem_channels"])

    def draw(key: jax.Array) -> tuple[Any, Any]:
        params, rest = initial(model, key, batch[0])
        if scheme.calibrate is not None:
            params = scheme.calibrate(params, network=forward(model, rest), inputs=batch[:1])
        params = random_head(params, jax.random.fold_in(key, 2))
        if variant == "no_rule_2":
            factor = model.num_branches**0.5
            params = roles.assign(params).map(
                lambda leaf, value: value * factor if leaf.role is Role.BRANCH else value, params
            )
        return params, rest

    keys = jax.random.split(jax.random.key(0), point["draws"])
    # LSUV looks at values, and is not compiled.
    drawn = [(draw if scheme.calibrate else quick_jit(draw))(key) for key in keys]
    return batch, model, jax.tree.map(lambda *each: jnp.stack(each), *drawn)


def sizes(point: Point, variant: str, depth: int, rates: Sequence[float] = ()) -> np.ndarray:
    """``||Delta f|| / eta``, a mean over draws and examples: for each rate, or to first order."""
    (images, labels), model, draws = make_network(point, variant, depth)

    def one(draw: tuple[Any, Any]) -> jax.Array:
        params, rest = draw

        def size(*rate: jax.Array) -> jax.Array:
            return update_size(forward(model, rest), params, images, labels, *rate).mean()

        return jax.lax.map(size, jnp.array(rates)) if rates else size()

    return np.asarray(quick_jit(lambda draws: jax.lax.map(one, draws).mean(axis=0))(draws))


def branch_sizes(point: Point, variant: str, depth: int) -> np.ndarray:
    """``||Delta f|| / eta`` to first order if only the layers of a branch are trained, or of all.

    An array ``[L + 1]``.
    """
    (images, labels), model, draws = make_network(point, variant, depth)
    params, _ = draws
    role_map = roles.assign(jax.tree.map(lambda of: of[0], params))
    L = role_map.num_branches

    def numbers(leaf: roles.Leaf, value: jax.Array) -> np.ndarray:
        """The branch of each layer of a leaf, 0 outside."""
        layers_of = leaf.branches if leaf.role is Role.BRANCH else (0,) * leaf.count
        return np.array(layers_of).reshape(leaf.shape[: leaf.stacked] + (1,) * len(leaf.own_shape))

    branch_of = role_map.map(numbers, jax.tree.map(lambda of: of[0], params))

    def one(draw: tuple[Any, Any]) -> jax.Array:
        params, rest = draw

        def size(least: jax.Array, most: jax.Array) -> jax.Array:
            def network(params: Any, images: jax.Array) -> jax.Array:
                trained = jax.tree.map(
                    lambda value, k: jnp.where(
                        (least <= k) & (k <= most), value, jax.lax.stop_gradient(value)
                    ),
                    params,
                    branch_of,
                )
                return forward(model, rest)(trained, images)

            return update_size(network, params, images, labels).mean()

        ks = jnp.arange(1, L + 1)
        ranges = jnp.append(ks, 1), jnp.append(ks, L)
        return jax.lax.map(lambda each: size(*each), ranges)

    # Each branch is a pass of its own: here the running counts.
    return np.asarray(jax.jit(lambda draws: jax.lax.map(one, draws).mean(axis=0))(draws))


def traces(point: Point, scaling: str, L: int) -> float:
    """Theorem 3's traces summed over the layers of all branches, the mean over draws.

    The network is ``x_l = x_{l-1} + ReLU(W_l^(2) ReLU(W_l^(1) x_{l-1}))``, ``f = W_L x_{L-1}``. A
    layer's matrix of equation 12 is ``(df/dvec W) (df/dvec W)^T``, whose trace is the sum of the
    squares of ``df/dW``.
    """
    width, scales = point["trace_width"], TRACES[scaling](L)

    def one(key: jax.Array) -> jax.Array:
        keys = jax.random.split(key, (L + 1, 2))
        branches = [
            [
                scale * (2 / width) ** 0.5 * random.normal(each, (width, width), "float32")
                for each, scale in zip(of_branch, scales, strict=True)
            ]
            for of_branch in keys[:-1]
        ]
        head = width**-0.5 * random.normal(keys[-1, 0], (10, width), "float32")
        x_0 = jax.random.normal(jax.random.fold_in(key, 1), (width,))

        def logits(branches: Any) -> jax.Array:
            x = x_0
            for first, second in branches:
                x = x + jax.nn.relu(second @ jax.nn.relu(first @ x))
            return head @ x

        squares = (jnp.square(of).sum() for of in jax.tree.leaves(jax.jacrev(logits)(branches)))
        # By the squared length of the input, to which all traces are in proportion.
        return sum(squares, jnp.zeros(())) / (x_0 @ x_0)

    keys = jax.random.split(jax.random.key(1), 4 * point["draws"])
    return float(quick_jit(lambda keys: jax.lax.map(one, keys).mean())(keys))


def exponents(steps: int) -> list[Row]:
    """Theorem 4: ``e`` in ``|Delta F| / eta ~ L**-e`` of ``F(x) = a_1 a_2 x``, ``a_i = L**-p_i``.

    A step of gradient descent moves ``a_i`` by ``-eta`` times the other one (equation 16 at
    ``x = dl/dF = 1``). The slope is that between two large ``L``; ``p_1`` and ``p_2`` are a grid.
    """
    values = np.linspace(0, 1, steps + 1)
    p = np.stack(np.meshgrid(values, values, indexing="ij"), axis=-1).reshape(-1, 2)
    a = np.array([1e5, 1e6]).reshape(2, 1, 1) ** -p
    others = a[..., ::-1]
    moves = -1e-9 * others
    change = np.log(np.abs((moves * others).sum(axis=-1) + moves.prod(axis=-1)))
    return [
        {"part": "map", "title": "", "x": digits(p_1), "y": digits(p_2), "value": digits(e)}
        for (p_1, p_2), e in zip(p, (change[0] - change[1]) / np.log(10), strict=True)
    ]


def measure(point: Point, _: str | None) -> list[Row]:
    """The rows of one curve of a part."""
    part = point["part"]
    if part == "map":
        return exponents(point["map_steps"])
    if part == "trace":
        title, x = point["scaling"], [point["branches"]]
        values = [traces(point, title, point["branches"])]
    elif part == "branch":
        *each, together = branch_sizes(point, point["variant"], point["depth"]).tolist()
        L, total = len(each), sum(each)
        shared = {"title": title_of(point["variant"]), "x": L}
        return [
            {**shared, "part": "branch", "y": digits(L * max(each)), "value": digits(total)},
            {**shared, "part": "together", "y": "", "value": digits(together / total)},
        ]
    else:
        depth = point["rate_depth" if part == "rate" else "depth"]
        title, x = title_of(point["variant"]), [(depth - 4) // 2]
        rates: list[float] = []
        if part == "rate":
            powers = range(point["first_power"], point["last_power"] + 1, point["step"])
            x = rates = [2.0**power for power in powers]
        values = np.atleast_1d(sizes(point, point["variant"], depth, rates)).tolist()
    shared = {"part": part, "title": title, "y": ""}
    return [{**shared, "x": at, "value": digits(v)} for at, v in zip(x, values, strict=True)]


def part_of(results: Results, name: str) -> list[Row]:
    return [row for row in results.rows if row["part"] == name]


def table(results: Results) -> str:
    """The curves over the depth: their values, and the slope of the last two."""
    cells = []
    for name, heading in TABLES.items():
        rows = part_of(results, name)
        places = sorted({int(row["x"]) for row in rows})
        lines = [[heading, *map(str, places), "slope"]]
        for (title,), curve in grouped(rows, "title").items():
            values = {int(row["x"]): f"{float(row['value']):.3g}" for row in curve}
            last = [row for row in curve if int(row["x"]) in places[-2:]]
            power = f"{slope(last, 'x', 'value'):.2f}"
            lines.append([title, *(values[L] for L in places), power])
        cells.append(text_table(lines))
    return "\n\n".join(cells)


def exponent_map(rows: Sequence[Row], axes: Any) -> None:
    """Draws theorem 4's exponents over those of the layers, and the line on which they are 1."""
    x, y = (sorted({float(row[name]) for row in rows}) for name in ("x", "y"))
    values = {(float(row["x"]), float(row["y"])): float(row["value"]) for row in rows}
    mesh_values = [[values[at, up] for at in x] for up in y]
    reach = max(abs(value - 1) for value in values.values())
    mesh = axes.pcolormesh(
        x, y, mesh_values, cmap="RdBu", shading="nearest", rasterized=True,
        vmin=1 - reach, vmax=1 + reach,
    )  # fmt: skip
    axes.contour(x, y, mesh_values, levels=[1], colors="black", linewidths=1.5)
    axes.plot(0.5, 0.5, "*", color="black", markersize=12, markeredgecolor="white")
    axes.annotate("both layers alike", (0.5, 0.5), xytext=(9, 7), textcoords="offset points")
    axes.set(xlabel="$p_1$", ylabel="$p_2$")
    axes.set_title(
        r"Theorem 4: $e$ in $|\Delta F|\,/\,\eta \sim L^{-e}$, $a_i = L^{-p_i}$", fontsize=10
    )
    axes.grid(False)
    bar = axes.figure.colorbar(mesh, ax=axes, shrink=0.9)
    bar.ax.axhline(1, color="black", linewidth=1.5)


def figure(results: Results, path: Path) -> None:
    """Draws the parts."""
    point = results.points[0]
    traces = [
        {**row, "title": row["title"].replace("L^-1/2", "$L^{-1/2}$")}
        for row in part_of(results, "trace")
    ]

    def panel(heading: str, rows: Sequence[Row], x_label: str, label: str, **more: Any) -> Panel:
        curves = curves_of(rows, "x", "value")
        return Panel(x_label, label, curves, x_base=10, y_base=10, heading=heading, **more)

    update = r"$\|\Delta f\|\,/\,\eta$"
    panels = [
        panel("Update of the network against depth", part_of(results, "depth"),
              "branches $L$", update),
        panel("$L$ times the update by a branch", part_of(results, "branch"),
              "branches $L$", r"$L\,\|\Delta_k f\|\,/\,\eta$, mean over $k$"),
        panel("Together, over the sum of their updates",
              part_of(results, "together"), "branches $L$",
              r"$\|\sum_k \Delta_k f\|\,/\,\sum_k \|\Delta_k f\|$"),
        panel(f"Update against the learning rate, {point['rate_depth']} layers",
              part_of(results, "rate"), r"learning rate $\eta$", update),
        panel("Theorem 3: traces of all branches", traces, "branches $L$",
              r"$\sum_l \sum_i \mathrm{tr}\, J_l^i\,/\,\|x_0\|^2$", own_legend=True),
    ]  # fmt: skip
    maps = [functools.partial(exponent_map, rows)] if (rows := part_of(results, "map")) else []
    curves_figure(
        [*(each for each in panels if each.curves), *maps],
        path,
        title="How far one step of gradient descent moves a network",
        subtitle=(
            f"WRN-n-1, {point['stem_channels']} channels, {point['batch_size']} digits, random "
            f"heads, {point['draws']} draws; traces: width {point['trace_width']}, m = 2"
        ),
        columns=2,
    )


EXPERIMENT = Experiment("theory_updates", SCALES, table, figure, measure=measure)

if __name__ == "__main__":
    run(EXPERIMENT)
