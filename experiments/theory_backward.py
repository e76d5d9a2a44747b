r"""SkipInit's argument, backward: the gradient through a branch relative to that through its skip.

Claim (author feedback): with BatchNorm "the backward propagated signal through the l-th residual
branch will be downweighted by `O(sqrt(l))` relative to the skip path, and therefore the backward
signal through the deep normalized residual block is also dominated by the skip path"; in the
variants that do not train at 1,000 layers "the residual branch contributes equally".

Expected at initialisation, for the ratio of the two gradients (root mean squares) at the input of
block `l`: with BatchNorm in the branch it falls as `l**-0.5`. It is constant and near 1 if the
block is multiplied by `sqrt(1/2)` or normalized after the sum, or if the only BatchNorm is the
last. It is constant and in proportion to `L**-0.5` with `alpha = L**-0.5`.

Setting: one stage of `L` pre-activation blocks of two 3x3 convolutions, images of random signs, the
gradient of a random direction of the logits, new weights for each draw. The gradient through the
skip is that of the sum, times the skip's constant. The gradient through the branch is the rest of
the gradient of the block's input. The slope is a least-squares fit of the ratio's logarithm against
that of `l`, from block 4 on. `--scale laptop` takes a minute on two cores, `--scale smoke` seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import analysis, schemes
from nf_resnets.plotting.curves import Panel, curves_figure, curves_of

from .experiment import Experiment, Results, Row
from .grid import Point, grid
from .main import run
from .table import grouped, text_table
from .untrained import OneStage, digits, forward, initial, quick_jit, random_signs, slope

LAPTOP = {"depth": 64, "width": 16, "side": 8, "batch_size": 32, "draws": 8}
SCHEMES = (
    "batchnorm", "batchnorm_last", "batchnorm_sqrt_half", "batchnorm_merge", "alpha_rsqrt_depth",
)  # fmt: skip
SMOKE = {"depth": 8, "width": 4, "side": 4, "batch_size": 8, "draws": 2}
SCALES = {
    "smoke": grid(SMOKE, scheme=SCHEMES),
    "laptop": grid(LAPTOP, scheme=SCHEMES),
}
FIRST = 4  # block of the fit


def ratios(
    network: Callable[..., jax.Array], params: Any, images: jax.Array, identity: Any, key: jax.Array
) -> jax.Array:
    """The gradient through each branch relative to that through its skip, float32 ``[L]``.

    The shortcuts are the identity, times ``identity``; the key draws the logits' direction.
    """

    def along(logits: jax.Array) -> jax.Array:
        return (jax.random.normal(key, logits.shape) * logits).sum()

    _, _, gradients = analysis.slopes(along, network, params, images)
    ratio_of_blocks = []
    for gradient, factor in zip(gradients, identity, strict=True):
        skip = factor * gradient.sum
        branch = gradient.input - skip
        ratio_of_blocks.append(jnp.sqrt(jnp.square(branch).mean() / jnp.square(skip).mean()))
    return jnp.stack(ratio_of_blocks)


def draw_ratios(point: Point) -> np.ndarray:
    """The ratios of a scheme's network, ``[draws, L]``."""
    scheme = schemes.get(point["scheme"])
    model = OneStage(point["depth"], point["width"], scheme)
    images = random_signs(point["batch_size"], point["side"])
    constant = scheme.anatomy.constants((False,) * point["depth"]).identity
    identity = np.ones(point["depth"]) if constant is None else constant

    def one(key: jax.Array) -> jax.Array:
        params, variables = initial(model, key, images)
        params = analysis.random_head(params, jax.random.fold_in(key, 2))
        network = forward(model, variables)
        return ratios(network, params, images, identity, jax.random.fold_in(key, 3))

    keys = jax.random.split(jax.random.key(0), point["draws"])
    return np.asarray(quick_jit(lambda keys: jax.lax.map(one, keys))(keys))


def measure(point: Point, _: str | None) -> list[Row]:
    """The mean ratio at each block, and its standard error."""
    ratio = draw_ratios(point)
    means, errors = ratio.mean(axis=0), ratio.std(axis=0, ddof=1) / len(ratio) ** 0.5
    shared = {"scheme": point["scheme"], "title": schemes.get(point["scheme"]).title}
    return [
        {**shared, "block": at + 1, "ratio": digits(means[at]), "error": digits(errors[at])}
        for at in range(point["depth"])
    ]


def table(results: Results) -> str:
    """The ratio at the first block, in the middle and at the last, and the slope."""
    depth = max(int(row["block"]) for row in results.rows)
    blocks = [1, max(1, depth // 4), depth]
    cells = [["scheme", *(f"block {block}" for block in blocks), "slope"]]
    for (title,), rows in grouped(results.rows, "title").items():
        at = {int(row["block"]): row for row in rows}
        values = [f"{float(at[b]['ratio']):.3g} ± {float(at[b]['error']):.1g}" for b in blocks]
        fitted = [row for row in rows if int(row["block"]) >= FIRST]
        cells.append([title, *values, f"{slope(fitted, 'block', 'ratio'):.2f}"])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws the ratios against the block, and the line of slope -1/2 through BatchNorm's last."""
    depth = max(int(row["block"]) for row in results.rows)
    expected = [
        {
            "title": "slope -1/2",
            "block": block,
            "ratio": float(row["ratio"]) * (depth / block) ** 0.5,
        }
        for row in results.rows
        if row["scheme"] == "batchnorm" and int(row["block"]) == depth
        for block in range(1, depth + 1)
    ]
    curves = curves_of(results.rows, "block", "ratio") + curves_of(expected, "block", "ratio", ":")
    label = "gradient of the branch / of the skip"
    point = results.points[0]
    curves_figure(
        [Panel("block $l$, from the input", label, curves, x_base=10, y_base=10)],
        path,
        title="The gradient through a branch against that through its skip",
        subtitle=(
            f"Ratio of root mean squares: {depth} pre-activation blocks at initialisation, "
            f"{point['width']} channels, {point['side']} x {point['side']} random images; means "
            f"of {point['draws']} draws"
        ),
    )


EXPERIMENT = Experiment("theory_backward", SCALES, table, figure, measure=measure)

if __name__ == "__main__":
    run(EXPERIMENT)
