r"""Fixup's Theorems 1 and 2: gradients at initialisation are bounded below by the loss.

Claim (section 2): in a network without normalisation, `||dl/dx_{i-1}|| >= (l - H(p)) / ||x_{i-1}||`
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
minutes on two cores, `--scale smoke` seconds; `--scale paper` is deeper.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, init, models
from nf_resnets.analysis.bounds import Bound, block_bounds, parameter_bounds
from nf_resnets.analysis.head import random_head
from nf_resnets.plotting.theory import Curves, theory_figure

from . import untrained
from .experiment import Experiment, Results
from .folder import ResultsFolder, Row
from .main import run
from .table import text_table
from .untrained import digits, digits_batch, fill, in_order, quick_jit


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    depths: tuple[int, ...] = (10, 16, 40, 100)
    inits: tuple[str, ...] = ("he", "xavier", "lsuv", "fixup")
    stem_channels: int = 8
    batch_size: int = 32
    draws: int = 4


SCALES = {
    "smoke": Settings(depths=(10, 16), stem_channels=4, batch_size=8, draws=2),
    "laptop": Settings(),
    "paper": Settings(depths=(10, 16, 40, 100, 304, 1000), stem_channels=16, draws=16),
}
TITLES = {"he": "He", "xavier": "Xavier", "lsuv": "LSUV", "fixup": "Fixup, random head"}
KEY = ("init", "depth", "theorem", "where")
SHORTCUT = "stage_2/first/shortcut/kernel + stage_2/first/conv_1/kernel"
SLACK = 1e-4  # relative: float32 through hundreds of layers


@dataclasses.dataclass(frozen=True)
class Command(untrained.Command):
    """The options of the command line."""

    depths: tuple[int, ...] = ()
    """Depths in layers, 6N + 4 each, with spaces between; by default those of the scale."""
    inits: tuple[str, ...] = ()
    """Of he, xavier, lsuv, fixup; by default all."""


@dataclasses.dataclass(frozen=True)
class Network:
    """A network of one depth, the batch that it sees, and what is compiled once for all inits."""

    model: models.WideResNet
    images: jax.Array
    shapes: Any
    bounds: Callable[[Any], tuple[Bound, dict[str, Bound]]]


def make_network(settings: Settings, depth: int) -> Network:
    """The network of one depth on a batch of the digits."""
    images, labels = digits_batch(settings.batch_size)
    model = models.WideResNet(depth=depth, scheme="fixup", stem_channels=settings.stem_channels)
    observed = analysis.observe(model)

    def bounds(params: Any) -> tuple[Bound, dict[str, Bound]]:
        of_blocks = block_bounds(observed, params, images, labels)
        of_sets = parameter_bounds(lambda p, x: observed(p, x)[0], params, images, labels)
        return of_blocks, of_sets

    shapes = jax.eval_shape(model.init, jax.random.key(0), images[:1])["params"]
    return Network(model, images, shapes, quick_jit(bounds))


def draw(name: str, network: Network, keys: jax.Array) -> Iterator[Any]:
    """The parameters of an initialisation, a draw for each key; Fixup's with a random head."""
    standard = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.full(leaf.shape, float(path[-1].key == "multiplier")),
        network.shapes,
    )
    L = network.model.num_branches
    compiled = {
        "he": lambda key: init.he(standard, key),
        "xavier": lambda key: init.xavier(standard, key),
        "fixup": lambda key: random_head(
            init.fixup(standard, L, key=key), jax.random.fold_in(key, 1)
        ),
    }
    if name == "lsuv":
        for key in keys:
            # Not compiled: a program of many stacked QR decompositions hangs on a CPU of two cores
            # (jaxlib 0.10.2, the orthogonal draw of 40 layers).
            yield init.lsuv(network.model.apply, init.orthogonal(standard, key), network.images)
    else:
        yield from map(quick_jit(compiled[name]), keys)


def rows_of(settings: Settings, get_network: Callable[[], Network], name: str) -> list[Row]:
    """Both theorems for the draws of one initialisation: a row for each block and each set."""
    network = get_network()
    model = network.model
    keys = jax.random.split(jax.random.key(0), settings.draws)
    found = [jax.device_get(network.bounds(params)) for params in draw(name, network, keys)]
    of_blocks, of_sets = jax.tree.map(lambda *each: np.stack(each), *found)
    rows = [
        {"theorem": 1, "where": f"block {at + 1}", "k": at + 1}
        | summary(Bound(*(each[:, at] for each in of_blocks)))
        for at in range(model.num_branches)
    ]
    rows += [
        {"theorem": 2, "where": where, "k": ""} | summary(bound) for where, bound in of_sets.items()
    ]
    shared = {"init": name, "depth": model.depth, "title": TITLES[name]}
    # The stem's row last: it says that the network is done with.
    rows.sort(key=lambda row: row["where"] == "stem/kernel")
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


def measure(settings: Settings, _: Any, folder: ResultsFolder) -> None:
    """Measures each initialisation at each depth."""
    for depth in settings.depths:
        network = functools.cache(functools.partial(make_network, settings, depth))
        for name in settings.inits:
            key = {"init": name, "depth": depth, "where": "stem/kernel"}
            fill(folder, key, f"{TITLES[name]}, {depth} layers", rows_of, settings, network, name)


def check(settings: Settings, command: Command) -> Settings:
    """Refuses depths without a network."""
    for depth in settings.depths:
        models.WideResNet(depth=depth)
    return settings


def wanted(results: Results) -> list[Row]:
    """The rows that the settings ask for, in their order."""
    return in_order(results.rows, init=results.settings.inits, depth=results.settings.depths)


def table(results: Results) -> str:
    """Violations and, at the first block and the stem, both sides."""
    rows = wanted(results)
    cells = [["init", "layers", "checks", "violations", "largest ratio", "block 1", "bound",
              "stem", "bound"]]  # fmt: skip
    for name, depth in dict.fromkeys((row["title"], row["depth"]) for row in rows):
        own = [row for row in rows if (row["title"], row["depth"]) == (name, depth)]
        at = {row["where"]: row for row in own}
        pairs = [
            f"{float(at[where][side]):.3g}"
            for where in ("block 1", "stem/kernel")
            for side in ("gradient_norm", "lower_bound")
        ]
        violations = sum(int(row["violations"]) for row in own)
        largest = max(float(row["largest_ratio"]) for row in own)
        cells.append([name, depth, str(len(own)), str(violations), f"{largest:.3f}", *pairs])
    return text_table(cells)


def plot(results: Results, path: Path) -> None:
    """Draws both sides of both theorems, over the blocks and over the depth."""
    settings, rows = results.settings, wanted(results)
    deepest = max(settings.depths)
    by_block = in_order(rows, theorem=[1], depth=[deepest])

    def over_depth(heading: str, where: str) -> Curves:
        own = [row for row in rows if row["where"] == where]
        return Curves(heading, own, "branches", "gradient_norm", "branches $L$",
                      "norm of the gradient", "lower_bound")  # fmt: skip

    theory_figure(
        [
            Curves(f"Theorem 1 along the blocks, {deepest} layers", by_block, "k",
                   "gradient_norm", "block $k$", "norm of the gradient", "lower_bound",
                   log_x=False),
            over_depth("Theorem 1, input of the first block", "block 1"),
            over_depth("Theorem 2, first convolution", "stem/kernel"),
            over_depth("Theorem 2, down-sampling shortcut + conv_1", SHORTCUT),
        ],
        path,
        title=(
            f"{sum(int(row['violations']) > 0 for row in rows) or 'None'} of {len(rows):,} "
            "gradients at initialisation lie below the bounds that the loss sets them"
        ),
        subtitle=(
            f"WRN-n-1, {settings.stem_channels} channels, {settings.batch_size} digits, "
            f"means over examples and {settings.draws} draws"
        ),
        solid="measured",
        dotted="lower bound",
    )  # fmt: skip


EXPERIMENT = Experiment(
    name="theory_bounds",
    title="Theorems 1 and 2",
    description="Fixup's Theorems 1 and 2, measured.",
    scales=SCALES, command=Command, check=check,
    grid=("depths", "inits"),
    choices={"inits": tuple(TITLES)},
    key=KEY,
    columns=(
        *KEY, "title", "branches", "k", "gradient_norm", "lower_bound", "largest_ratio",
        "violations",
    ),
    measure=measure, table=table, plot=plot,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
