r"""SkipInit's argument, backward: how small the gradient through a branch is against the skip's.

Claim (author feedback): with BatchNorm "the backward propagated signal through the l-th residual
branch will be downweighted by `O(sqrt(l))` relative to the skip path, and therefore the backward
signal through the deep normalized residual block is also dominated by the skip path"; in the
variants that do not train at 1,000 layers "the residual branch contributes equally".

Expected at initialisation: the ratio of the two gradients at the input of block `l`, in root mean
squares, falls as `l**-0.5` with BatchNorm in the branch; is constant, and near 1, if the block is
multiplied by `sqrt(1/2)` or normalised after the sum, and if the only BatchNorm is the last;
is constant and in proportion to `L**-0.5` with `alpha = L**-0.5`.

Setting: one stage of `L` pre-activation blocks of two 3x3 convolutions, images of random signs, the
gradient of a random direction of the logits; weights drawn anew for each draw. The gradient through
the skip is that of the sum, times the skip's constant; through the branch, what that leaves of the
gradient of the block's input. The slope is that of the ratio's logarithm against that of `l`, a
least-squares fit from block 4 on. `--scale laptop` takes a minute on two cores, `--scale paper` is
deep and wide, `--scale smoke` takes seconds.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.command import last_words
from experiments.folder import ResultsFolder, Row
from experiments.grid import stop_at_once
from experiments.table import text_table
from experiments.theory_signal import OneStage
from nf_resnets import analysis, schemes
from nf_resnets.analysis.head import random_head
from nf_resnets.plotting.theory import Curves, theory_figure


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
COLUMNS = (*KEY, "title", "ratio", "error")


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of the command line."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: a minute on two cores; paper: 500 blocks."""
    out: Path | None = None
    """The results folder; by default runs/theory_backward-SCALE."""


def ratios(
    observed: analysis.ObservedFn, params: Any, images: jax.Array, identity: Any, key: jax.Array
) -> jax.Array:
    """The gradient through each branch relative to that through its skip, float32 ``[L]``.

    Args:
      observed: the network, whose shortcuts are the identity (see :func:`analysis.observe`).
      params: its parameters.
      images: ``[B, H, W, C]``.
      identity: ``[L]``, what the skip paths are multiplied by.
      key: from which the direction of the logits is drawn.
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


def measure(settings: Settings, name: str) -> np.ndarray:
    """The ratios of a scheme's network, ``[draws, L]``."""
    scheme = schemes.get(name)
    model = OneStage(settings.depth, settings.width, scheme)
    shape = (settings.batch_size, settings.side, settings.side, 3)
    images = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], shape).astype(np.float32))
    constant = scheme.anatomy.constants((False,) * settings.depth).identity
    identity = np.ones(settings.depth) if constant is None else constant

    def one(key: jax.Array) -> jax.Array:
        variables = model.init(key, images[:1])
        params = scheme.init(variables["params"], settings.depth, key=jax.random.fold_in(key, 1))
        params = random_head(params, jax.random.fold_in(key, 2))
        observed = analysis.observe(model, batch_stats=variables.get("batch_stats"))
        return ratios(observed, params, images, identity, jax.random.fold_in(key, 3))

    # On a CPU what counts is how long it takes to compile.
    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    keys = jax.random.split(jax.random.key(0), settings.draws)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys), compiler_options=quickly)(keys))


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


def of_scheme(rows: list[Row], settings: Settings) -> dict[str, list[Row]]:
    """The rows of each scheme that has some, block by block."""
    found = {name: [row for row in rows if row["scheme"] == name] for name in settings.schemes}
    return {name: own for name, own in found.items() if own}


def table(rows: list[Row], settings: Settings) -> str:
    """The ratio at the first block, in the middle and at the last, and the slope."""
    blocks = [1, max(1, settings.depth // 4), settings.depth]
    cells = [["scheme", *(f"block {block}" for block in blocks), "slope"]]
    for own in of_scheme(rows, settings).values():
        at = {int(row["block"]): row for row in own}
        values = [f"{float(at[b]['ratio']):.3g} ± {float(at[b]['error']):.1g}" for b in blocks]
        cells.append([own[0]["title"], *values, f"{slope(own, settings.first):.2f}"])
    return text_table(cells)


def plot(rows: list[Row], settings: Settings, path: Any) -> None:
    """Draws the ratios against the block, and the line of slope -1/2 through BatchNorm's last."""
    drawn = [{**row, "line": ""} for own in of_scheme(rows, settings).values() for row in own]
    last = [r for r in drawn if (r["scheme"], int(r["block"])) == ("batchnorm", settings.depth)]
    expected = [
        {"title": "slope -1/2", "block": block, "ratio": "", "line": ratio}
        for row in last
        for block in range(1, settings.depth + 1)
        if (ratio := float(row["ratio"]) * (settings.depth / block) ** 0.5)
    ]
    theory_figure(
        [
            Curves(
                "Gradient through the branch / through the skip",
                [*drawn, *expected],
                "block",
                "ratio",
                "block $l$, from the input",
                "ratio of root mean squares",
                dotted="line",
            )
        ],
        path,
        title="BatchNorm downweights the branch backward, too",
        subtitle=(
            f"{settings.depth} pre-activation blocks at initialisation, {settings.width} channels, "
            f"{settings.side} x {settings.side} random images; means of {settings.draws} draws"
        ),
    )


def main(command: Command) -> int:
    """Measures what is missing, prints the table, draws the figure; returns the exit code."""
    stop_at_once()
    settings = SCALES[command.scale]
    out = command.out or Path("runs") / f"theory_backward-{command.scale}"
    folder = ResultsFolder(out, dataclasses.asdict(settings), grid=(), columns=COLUMNS, key=KEY)
    out = folder.path
    print(f"Gradients of the two paths, scale {command.scale}; results in {out.resolve()}")
    start = time.monotonic()
    for name in settings.schemes:
        if folder.has(scheme=name, block=settings.depth):
            continue
        found = measure(settings, name)
        errors = found.std(axis=0, ddof=1) / len(found) ** 0.5
        for at, (ratio, error) in enumerate(zip(found.mean(axis=0), errors, strict=True)):
            row = {"scheme": name, "block": at + 1, "title": schemes.get(name).title}
            if not folder.has(**row):
                folder.add(row | {"ratio": f"{ratio:.6g}", "error": f"{error:.6g}"})
        print(f"  {name}: {time.monotonic() - start:.0f} s", flush=True)
    text = table(folder.rows, settings)
    print(f"\n{text}")
    folder.write_text("table.txt", text + "\n")
    folder.draw("figure.png", lambda path: plot(folder.rows, settings, path))
    return last_words(folder, (), start)


if __name__ == "__main__":
    raise SystemExit(
        main(tyro.cli(Command, description="Gradients through branch and skip, block by block."))
    )
