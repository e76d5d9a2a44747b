r"""Fixup's Theorems 1 and 2: gradients at initialisation are bounded below by the loss.

Claim (section 2): in a network without normalization, `||dl/dx_{i-1}|| >= (l - H(p)) / ||x_{i-1}||`
at the input of every block, and the same for sets of weights that scale the logits: the stem, the
head, a shortcut's convolution together with one of its branch. Logits that blow up with the depth
therefore make gradients blow up.

Expected: no violation anywhere. Under He's initialisation the logits, and both sides, grow
exponentially with the depth (the second moment doubles with every branch); Xavier's smaller layers
do so later. LSUV scales its last layer until the logits are of order 1, and both sides stay of that
order. Fixup's sides are the same at every depth. With its zero head both would be 0, so the head is
drawn at random here.

Setting: WRN-n-1 on one batch of the 8x8 digits. Gradients and bounds are means over examples and
several draws; ratios and violations are of each example and draw. `--scale laptop` takes about two
minutes on two cores, `--scale smoke` seconds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, init, models
from nf_resnets.analysis import Bound
from nf_resnets.plotting.curves import Panel, curves_figure, curves_of

from .experiment import Experiment, Results, Row
from .grid import Point, grid
from .main import run
from .table import grouped, text_table
from .untrained import digits, digits_batch, forward, quick_jit

TITLES = {"he": "He", "xavier": "Xavier", "lsuv": "LSUV", "fixup": "Fixup, random head"}
LAPTOP = {"stem_channels": 8, "batch_size": 32, "draws": 4}
SMOKE = {"stem_channels": 4, "batch_size": 8, "draws": 2}
SCALES = {
    "smoke": grid(SMOKE, depth=[10, 16], init=TITLES),
    "laptop": grid(LAPTOP, depth=[10, 16, 40, 100], init=TITLES),
}
SHORTCUT = "stage_2/first/shortcut/kernel + stage_2/first/conv_1/kernel"
SLACK = 1e-4  # relative: float32 through hundreds of layers


@functools.cache
def make_network(depth: int, batch_size: int, stem_channels: int) -> Any:
    """A network, the batch that it sees, its shapes, and the bounds, compiled for all inits."""
    images, labels = digits_batch(batch_size)
    model = models.WideResNet(depth=depth, scheme="fixup", stem_channels=stem_channels)
    network = forward(model)

    def bounds(params: Any) -> tuple[Bound, dict[str, Bound]]:
        of_blocks = analysis.block_bounds(network, params, images, labels)
        return of_blocks, analysis.parameter_bounds(network, params, images, labels)

    shapes = jax.eval_shape(model.init, jax.random.key(0), images[:1])["params"]
    return model, images, shapes, quick_jit(bounds)


def draw(name: str, model: Any, images: jax.Array, shapes: Any, key: jax.Array) -> Any:
    """The parameters of an initialisation; Fixup's with a random head."""
    standard = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == "multiplier")), shapes
    )
    if name == "lsuv":
        drawn = init.orthogonal(standard, key)
        return init.lsuv(drawn, network=forward(model), inputs=(images,))
    if name == "fixup":
        drawn = init.fixup(standard, model.num_branches, key=key)
        return analysis.random_head(drawn, jax.random.fold_in(key, 1))
    return {"he": init.he, "xavier": init.xavier}[name](standard, key)


def measure(point: Point, _: str | None) -> list[Row]:
    """Both theorems for the draws of one initialisation: a row for each block and each set."""
    name = point["init"]
    sizes = (point["depth"], point["batch_size"], point["stem_channels"])
    model, images, shapes, bounds_of = make_network(*sizes)
    keys = jax.random.split(jax.random.key(0), point["draws"])
    drawn = functools.partial(draw, name, model, images, shapes)
    if name != "lsuv":
        # A program of many stacked QR decompositions hangs on a CPU of two cores (jaxlib 0.10.2,
        # the orthogonal draw of 40 layers).
        drawn = quick_jit(drawn)
    bounds = [jax.device_get(bounds_of(drawn(key))) for key in keys]
    of_blocks, of_sets = jax.tree.map(lambda *each: np.stack(each), *bounds)
    rows = [
        {"theorem": 1, "where": f"block {at + 1}", "k": at + 1}
        | summary(Bound(*(each[:, at] for each in of_blocks)))
        for at in range(model.num_branches)
    ]
    rows += [
        {"theorem": 2, "where": where, "k": ""} | summary(bound) for where, bound in of_sets.items()
    ]
    shared = {"init": name, "depth": model.depth, "title": TITLES[name]}
    return [row | shared | {"branches": model.num_branches} for row in rows]


def summary(bound: Bound) -> Row:
    """Means of both sides over draws and examples, and how near they came to each other."""
    ratio = bound.lower_bound / np.maximum(bound.gradient_norm, np.finfo(np.float32).tiny)
    return {
        "gradient_norm": digits(bound.gradient_norm.mean()),
        "lower_bound": digits(bound.lower_bound.mean()),
        "largest_ratio": digits(ratio.max()),
        "violations": int((ratio > 1 + SLACK).sum()),
    }


def table(results: Results) -> str:
    """Violations and, at the first block and the stem, both sides."""
    cells = [["init", "layers", "checks", "violations", "largest ratio", "block 1", "bound",
              "stem", "bound"]]  # fmt: skip
    order = list(TITLES.values())
    ordered = sorted(results.rows, key=lambda row: order.index(row["title"]))
    for (title, depth), rows in grouped(ordered, "title", "depth").items():
        at = {row["where"]: row for row in rows}
        pairs = [
            f"{float(at[where][side]):.3g}"
            for where in ("block 1", "stem/kernel")
            for side in ("gradient_norm", "lower_bound")
        ]
        violations = sum(int(row["violations"]) for row in rows)
        largest = max(float(row["largest_ratio"]) for row in rows)
        cells.append([title, depth, str(len(rows)), str(violations), f"{largest:.3f}", *pairs])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws both sides of both theorems, over the blocks and over the depth."""
    rows, point = results.rows, results.points[0]
    deepest = max(int(row["depth"]) for row in rows)
    by_block = [r for r in rows if str(r["theorem"]) == "1" and int(r["depth"]) == deepest]

    def panel(heading: str, rows: list[Row], x: str, label: str) -> Panel:
        curves = curves_of(rows, x, "gradient_norm") + curves_of(rows, x, "lower_bound", ":")
        base = 0 if x == "k" else 10
        return Panel(label, "norm of the gradient", curves, x_base=base, y_base=10, heading=heading)

    def over_depth(heading: str, where: str) -> Panel:
        at = [row for row in rows if row["where"] == where]
        return panel(heading, at, "branches", "branches $L$")

    curves_figure(
        [
            panel(f"Theorem 1 along the blocks, {deepest} layers", by_block, "k", "block $k$"),
            over_depth("Theorem 1, input of the first block", "block 1"),
            over_depth("Theorem 2, first convolution", "stem/kernel"),
            over_depth("Theorem 2, down-sampling shortcut + conv_1", SHORTCUT),
        ],
        path,
        title="Gradients at initialisation and their lower bounds",
        subtitle=(
            f"WRN-n-1, {point['stem_channels']} channels, {point['batch_size']} digits, "
            f"means over examples and {point['draws']} draws"
        ),
        columns=2,
        legend={"line": "measured", ":": "lower bound"},
    )


EXPERIMENT = Experiment("theory_bounds", SCALES, table, figure, measure=measure)

if __name__ == "__main__":
    run(EXPERIMENT)
