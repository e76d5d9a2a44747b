r"""Signal propagation at initialisation against its closed forms, one line for each scheme.

Claim (De, Smith 2020, section 2; Zhang, Dauphin, Ma 2019, section 2; Shao et al. 2020, section 4):
in a pre-activation network the second moment `Var` of the sum doubles with every block under He's
initialisation, grows to about `e` with `alpha = L**-0.5`, linearly with BatchNorm in the branch,
and stays as it is under `(x + F)/sqrt(2)`, `alpha = 0`, Fixup and RescaleNet; and the branch's
share of the k-th sum is 1/2, `1/(L + 1)`, `1/(k + 1)`, 1/2, 0, 0 and `1/(k + L)`.

Setting: one stage of `L` blocks of two 3x3 convolutions, images of random signs, weights drawn anew
for each of several draws; biases are 0, RescaleNet's too. Dots are means over draws, bars their
standard errors; the lines are the recursion of `nf_resnets.analysis.closed_form` from the first
block's input on, with the sizes of the drawn weights and the padding of these small images (for
which BatchNorm's line before the activation is about 4% high: 16.2 for 15.5 at the last block). The
lower panels have the ReLU after the sum, as CIFAR ResNets do; the dotted line is the recursion
without that ReLU.

`--scale laptop` takes less than two minutes on two cores, `--scale paper` wider layers and more
draws, a GPU; `--scale smoke` seconds.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments.command import last_words
from experiments.folder import ResultsFolder, Row
from experiments.grid import stop_at_once
from experiments.table import text_table
from nf_resnets import analysis, schemes
from nf_resnets.models.blocks import Layers, PostActivationBlock, PreActivationBlock
from nf_resnets.models.head import head
from nf_resnets.models.stage import stages
from nf_resnets.plotting.signal import Quantity, signal_figure

FAMILIES = ("pre_activation", "post_activation")


class OneStage(nn.Module):
    """A stem, one stage of blocks of one width, and a head."""

    num_blocks: int
    width: int
    scheme: Any
    family: str = "pre_activation"
    num_classes: int = 10
    bn_groups: int = 1
    unroll: int = 1
    remat: bool = False
    dropout: float = 0.0
    survival: float = 1.0
    conv_dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: jax.Array, train: bool = False) -> jax.Array:
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.width, after_relu=False, name="stem")(images)
        post = self.family == "post_activation"
        x = stages(
            self,
            functools.partial(PostActivationBlock, projection=False)
            if post
            else PreActivationBlock,
            nn.relu(x) if post else x,
            layers,
            sizes=(self.num_blocks,),
            widths=(self.width,),
            strides=(1,),
        )
        return head(self, x, layers, None)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    depth: int = 16
    width: int = 48
    side: int = 8
    batch_size: int = 8
    draws: int = 8
    schemes: tuple[str, ...] = (
        "alpha_one", "alpha_rsqrt_depth", "batchnorm", "sqrt_half", "skipinit", "fixup",
        "rescalenet",
    )  # fmt: skip


SCALES = {
    "smoke": Settings(depth=3, width=8, side=4, batch_size=4, draws=2),
    "laptop": Settings(),
    "paper": Settings(depth=100, width=256, side=16, batch_size=32, draws=64),
}
GRID = ("schemes",)
KEY = ("family", "scheme", "k")
COLUMNS = (
    *KEY, "title", "var", "var_error", "share", "share_error", "form", "form_share",
    "form_without_relu",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of the command line."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: two minutes on two cores; paper: wide and deep, for a GPU."""
    schemes: tuple[str, ...] = ()
    """Schemes, with spaces between; by default those of the claim."""
    out: Path | None = None
    """The results folder; by default runs/theory_signal-SCALE."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """What several draws of one network gave: arrays ``[draws, L]``."""

    sums: np.ndarray
    shares: np.ndarray
    forms: np.ndarray
    form_shares: np.ndarray
    without_relu: np.ndarray


def measure(settings: Settings, name: str, family: str) -> Draws:
    """Measures a scheme's network, and asks the recursion what it should have been."""
    scheme = schemes.get(name)
    model = OneStage(settings.depth, settings.width, scheme, family)
    shape = (settings.batch_size, settings.side, settings.side, 3)
    images = np.random.default_rng(0).choice([-1.0, 1.0], shape).astype(np.float32)

    # On a CPU what counts is how long it takes to compile.
    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None

    @functools.partial(jax.jit, compiler_options=quickly)
    def one(key: jax.Array) -> tuple[Any, Any, analysis.Signal]:
        variables = model.init(key, images[:1])
        params = scheme.init(variables["params"], settings.depth, key=jax.random.fold_in(key, 1))
        observed = analysis.observe(model, batch_stats=variables.get("batch_stats"))
        _, taps = observed(params, jnp.asarray(images))
        return params, taps, analysis.signal_of(taps)

    found = []
    for key in jax.random.split(jax.random.key(0), settings.draws):
        params, taps, signal = one(key)
        # The biases are 0 here, RescaleNet's too, which are set from data otherwise.
        form = analysis.predicted(params, scheme, taps, family=family, centered=False)
        nothing = np.full(settings.depth, np.nan)
        found.append(
            (
                signal.sum.second,
                signal.share,
                nothing if form is None else form.sum,
                nothing if form is None else form.share,
                nothing if form is None else without_relu(form, scheme),
            )
        )
    return Draws(*(np.array(values, np.float64) for values in zip(*found, strict=True)))


def without_relu(form: analysis.ClosedForm, scheme: schemes.Scheme) -> np.ndarray:
    """``Var`` of the sums by the same gains, if no ReLU followed them."""
    anatomy = scheme.anatomy
    # After a norm the branch does not depend on what it gets.
    constant = anatomy.normalized and anatomy.norm_place == "default"
    q, found = form.input[0], []
    for at in range(len(form.sum)):
        branch = form.branch[at] if constant else q * form.branch[at] / form.input[at]
        q = q * form.skip[at] / form.input[at] + branch
        found.append(q)
    return np.array(found)


def make_rows(settings: Settings, folder: ResultsFolder) -> None:
    """Measures what is missing, a scheme in a family at a time."""
    for family in FAMILIES:
        for name in settings.schemes:
            scheme = schemes.get(name)
            if family not in scheme.fits or folder.has(
                family=family, scheme=name, k=settings.depth
            ):
                continue
            start = time.monotonic()
            made = measure(settings, name, family)
            for at in range(settings.depth):
                row = {"family": family, "scheme": name, "k": at + 1}
                if folder.has(**row):
                    continue
                folder.add(
                    row
                    | {
                        "title": scheme.title,
                        "var": _digits(made.sums[:, at].mean()),
                        "var_error": _digits(_error(made.sums[:, at])),
                        "share": _digits(made.shares[:, at].mean()),
                        "share_error": _digits(_error(made.shares[:, at])),
                        "form": _digits(made.forms[:, at].mean()),
                        "form_share": _digits(made.form_shares[:, at].mean()),
                        "form_without_relu": _digits(made.without_relu[:, at].mean()),
                    }
                )
            print(f"  {family}, {name}: {time.monotonic() - start:.0f} s", flush=True)


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _digits(value: Any) -> str:
    return f"{float(value):.6g}"


def wanted_rows(rows: list[Row], settings: Settings) -> list[Row]:
    """Those rows of a folder that the settings ask for, in their order."""
    order = {name: at for at, name in enumerate(settings.schemes)}
    found = [row for row in rows if row["scheme"] in order]
    return sorted(found, key=lambda row: (order[row["scheme"]], int(row["k"])))


def table(rows: list[Row], settings: Settings) -> str:
    """Var and share at the last block, measured and by the closed form."""
    cells = [["scheme", "ReLU after sum", "Var", "form", "share", "form"]]
    for row in rows:
        if int(row["k"]) == settings.depth:
            cells.append(
                [
                    row["title"],
                    "yes" if row["family"] == "post_activation" else "no",
                    f"{float(row['var']):.3g} ± {float(row['var_error']):.1g}",
                    f"{float(row['form']):.3g}",
                    f"{float(row['share']):.3f}",
                    f"{float(row['form_share']):.3f}",
                ]
            )
    return text_table(cells)


def plot(rows: list[Row], settings: Settings, path: Any) -> None:
    """Draws Var and share for both families."""
    panels = []
    for family, what in (
        ("pre_activation", "pre-activation"),
        ("post_activation", "ReLU after the sum"),
    ):
        own = [row for row in rows if row["family"] == family]
        if not own:
            continue
        second = "form_without_relu" if family == "post_activation" else ""
        panels += [
            (
                f"Forward, {what}",
                own,
                Quantity("var", "Var of the sum", "form", second, "log2", "var_error"),
            ),
            (
                f"Who contributes, {what}",
                own,
                Quantity("share", "branch's share of the sum", "form_share", "", "linear",
                         "share_error"),
            ),
        ]  # fmt: skip
    signal_figure(
        panels,
        path,
        title="Signal propagation at initialisation, and its closed forms",
        subtitle=(
            f"one stage of {settings.depth} blocks, {settings.width} channels, "
            f"{settings.side} x {settings.side} random images; mean and standard error of "
            f"{settings.draws} draws"
        ),
        second_form="without the ReLU",
    )


def main(command: Command) -> int:
    """Measures what is missing, prints the table, draws the figure; returns the exit code."""
    stop_at_once()
    settings = SCALES[command.scale]
    if command.schemes:
        settings = dataclasses.replace(settings, schemes=command.schemes)
    try:
        for name in settings.schemes:
            schemes.fitting(name, "pre_activation")
    except ValueError as error:
        raise SystemExit(str(error)) from None
    out = command.out or Path("runs") / f"theory_signal-{command.scale}"
    folder = ResultsFolder(out, dataclasses.asdict(settings), grid=GRID, columns=COLUMNS, key=KEY)
    out = folder.path
    print(f"Signal propagation, scale {command.scale}; results in {out.resolve()}", flush=True)
    start = time.monotonic()
    make_rows(settings, folder)
    rows = wanted_rows(folder.rows, settings)
    text = table(rows, settings)
    print(f"\nAt block {settings.depth}:\n\n{text}")
    folder.write_text("table.txt", text + "\n")
    folder.draw("figure.png", lambda path: plot(rows, settings, path))
    return last_words(folder, (), start)


if __name__ == "__main__":
    raise SystemExit(
        main(tyro.cli(Command, description="Signal propagation against its closed forms."))
    )
