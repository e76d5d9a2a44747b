r"""SkipInit's argument, backward: the gradient through a branch relative to that through its skip.

Claim (author feedback): with BatchNorm "the backward propagated signal through the l-th residual
branch will be downweighted by `O(sqrt(l))` relative to the skip path, and therefore the backward
signal through the deep normalized residual block is also dominated by the skip path"; in the
variants that do not train at 1,000 layers "the residual branch contributes equally".

Expected at initialisation, for the ratio of the two gradients (root mean squares) at the input of
block `l`: with BatchNorm in the branch it falls as `l**-0.5`. It is constant and near 1 if the
block is multiplied by `sqrt(1/2)` or normalised after the sum, or if the only BatchNorm is the
last. It is constant and in proportion to `L**-0.5` with `alpha = L**-0.5`.

Setting: one stage of `L` pre-activation blocks of two 3x3 convolutions, images of random signs, the
gradient of a random direction of the logits, new weights for each draw. The gradient through the
skip is that of the sum, times the skip's constant. The gradient through the branch is the rest of
the gradient of the block's input. The slope is a least-squares fit of the ratio's logarithm against
that of `l`, from block 4 on. `--scale laptop` takes a minute on two cores, `--scale paper` is deep
and wide, `--scale smoke` takes seconds.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, schemes
from nf_resnets.analysis.head import random_head
from nf_resnets.plotting.theory import Curves, theory_figure

from .experiment import Experiment, Results
from .folder import ResultsFolder, Row
from .main import run
from .table import text_table
from .untrained import (
    Command,
    OneStage,
    digits,
    fill,
    in_order,
    initial,
    quick_jit,
    random_signs,
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    depth: int = 64
    width: int = 16
    side: int = 8
    batch_size: int = 32
    draws: int = 8
    first: int = 4  # block of the fit
    schemes: tuple[str, ...] = (
        "batchnorm", "batchnorm_last", "batchnorm_sqrt_half", "batchnorm_merge",
        "alpha_rsqrt_depth",
    )  # fmt: skip


SCALES = {
    "smoke": Settings(depth=8, width=4, side=4, batch_size=8, draws=2, first=2),
    "laptop": Settings(),
    "paper": Settings(depth=500, width=64, batch_size=128, draws=32),
}
KEY = ("scheme", "block")


def ratios(
    observed: analysis.ObservedFn, params: Any, images: jax.Array, identity: Any, key: jax.Array
) -> jax.Array:
    """The gradient through each branch relative to that through its skip, float32 ``[L]``.

    The shortcuts are the identity, times ``identity``; the key draws the logits' direction.
    """
    _, taps = observed(params, images)
    flat = flax.traverse_util.flatten_dict(taps)
    nothing = flax.traverse_util.unflatten_dict(
        {path: jnp.zeros_like(tap) for path, tap in flat.items() if path[-1] in ("input", "sum")}
    )

    def along(perturbations: Any) -> jax.Array:
        logits, _ = observed(params, images, perturbations)
        return (jax.random.normal(key, logits.shape) * logits).sum()

    found = []
    for block, factor in zip(analysis.branches(jax.grad(along)(nothing)), identity, strict=True):
        skip = factor * block["sum"]
        branch = block["input"] - skip
        found.append(jnp.sqrt(jnp.square(branch).mean() / jnp.square(skip).mean()))
    return jnp.stack(found)


def draw_ratios(settings: Settings, name: str) -> np.ndarray:
    """The ratios of a scheme's network, ``[draws, L]``."""
    scheme = schemes.get(name)
    model = OneStage(settings.depth, settings.width, scheme)
    images = random_signs(settings.batch_size, settings.side)
    constant = scheme.anatomy.constants((False,) * settings.depth).identity
    identity = np.ones(settings.depth) if constant is None else constant

    def one(key: jax.Array) -> jax.Array:
        params, variables = initial(model, key, images)
        params = random_head(params, jax.random.fold_in(key, 2))
        observed = analysis.observe(model, batch_stats=variables.get("batch_stats"))
        return ratios(observed, params, images, identity, jax.random.fold_in(key, 3))

    keys = jax.random.split(jax.random.key(0), settings.draws)
    return np.asarray(quick_jit(lambda keys: jax.lax.map(one, keys))(keys))


def rows_of(settings: Settings, name: str) -> list[Row]:
    """The mean ratio at each block, and its standard error."""
    found = draw_ratios(settings, name)
    means, errors = found.mean(axis=0), found.std(axis=0, ddof=1) / len(found) ** 0.5
    return [
        {"scheme": name, "block": at + 1, "title": schemes.get(name).title}
        | {"ratio": digits(means[at]), "error": digits(errors[at])}
        for at in range(settings.depth)
    ]


def measure(settings: Settings, _: Any, folder: ResultsFolder) -> None:
    """Measures each scheme."""
    for name in settings.schemes:
        key = {"scheme": name, "block": settings.depth}
        fill(folder, key, name, rows_of, settings, name)


def slope(rows: list[Row], first: int) -> float:
    """The exponent ``p`` of ``ratio ~ l**p``, by least squares from a block on.

    Example:
      >>> rows = [{"block": l, "ratio": 3 * l**-0.5} for l in range(1, 9)]
      >>> round(slope(rows, 2), 6)
      -0.5
    """
    kept = [row for row in rows if int(row["block"]) >= first]
    logs = np.log([(float(row["block"]), float(row["ratio"])) for row in kept])
    return float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])


def table(results: Results) -> str:
    """The ratio at the first block, in the middle and at the last, and the slope."""
    settings = results.settings
    blocks = [1, max(1, settings.depth // 4), settings.depth]
    cells = [["scheme", *(f"block {block}" for block in blocks), "slope"]]
    for name in settings.schemes:
        own = in_order(results.rows, scheme=[name])
        at = {int(row["block"]): row for row in own}
        values = [f"{float(at[b]['ratio']):.3g} ± {float(at[b]['error']):.1g}" for b in blocks]
        cells.append([own[0]["title"], *values, f"{slope(own, settings.first):.2f}"])
    return text_table(cells)


def exponents(results: Results) -> str:
    """How the ratio moves with the block with BatchNorm in the branch, and in the other schemes."""
    found = {}
    for name in results.settings.schemes:
        if own := in_order(results.rows, scheme=[name]):
            # Without the sign of a zero.
            found[name] = f"{round(slope(own, results.settings.first), 2) + 0.0:.2f}"
    batchnorm = found.pop("batchnorm", "")
    said = [f"${{l}}^{{{batchnorm}}}$ with BatchNorm in the branch"] * bool(batchnorm)
    if found:
        ends = dict.fromkeys((min(found.values(), key=float), max(found.values(), key=float)))
        powers = " to ".join(f"${{l}}^{{{end}}}$" for end in ends)
        said.append(f"{powers} in the other schemes")
    return f"Against the skip's, a branch's gradient goes as {' and '.join(said)}"


def plot(results: Results, path: Path) -> None:
    """Draws the ratios against the block, and the line of slope -1/2 through BatchNorm's last."""
    settings = results.settings
    drawn = [{**row, "line": ""} for row in in_order(results.rows, scheme=settings.schemes)]
    expected = [
        {"title": "slope -1/2", "block": block, "ratio": "", "line": ratio}
        for row in in_order(results.rows, scheme=["batchnorm"], block=[settings.depth])
        for block in range(1, settings.depth + 1)
        if (ratio := float(row["ratio"]) * (settings.depth / block) ** 0.5)
    ]
    panel = Curves(
        "", [*drawn, *expected], "block", "ratio",
        "block $l$, from the input", "gradient of the branch / of the skip",
        dotted="line",
    )  # fmt: skip
    theory_figure(
        [panel],
        path,
        title=exponents(results),
        subtitle=(
            f"Ratio of root mean squares, its exponent from block {settings.first} on: "
            f"{settings.depth} pre-activation blocks at initialisation, {settings.width} channels, "
            f"{settings.side} x {settings.side} random images; means of {settings.draws} draws"
        ),
    )


EXPERIMENT = Experiment(
    name="theory_backward",
    title="Gradients of the two paths",
    description="Gradients through branch and skip, block by block.",
    scales=SCALES, command=Command,
    key=KEY, grid=(),
    columns=(*KEY, "title", "ratio", "error"),
    measure=measure, table=table, plot=plot,
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
