r"""Signal propagation at initialisation against its closed forms, one line for each scheme.

Claim (De, Smith 2020, section 2; Zhang, Dauphin, Ma 2019, section 2; Shao et al. 2020, section 4):
in a pre-activation network the second moment `Var` of the sum doubles with every block under He's
initialisation, grows to about `e` with `alpha = L**-0.5`, linearly with BatchNorm in the branch,
and is constant under `(x + F)/sqrt(2)`, `alpha = 0`, Fixup and RescaleNet; and the branch's
share of the k-th sum is 1/2, `1/(L + 1)`, `1/(k + 1)`, 1/2, 0, 0 and `1/(k + L)`.

Setting: one stage of `L` blocks of two 3x3 convolutions, images of random signs, new weights for
each of several draws; all biases are 0, RescaleNet's too. Dots are means over draws, bars their
standard errors. Lines are the recursion of `nf_resnets.analysis.closed_form` from the first block's
input on, with the sizes of the drawn weights and the padding of these small images. (BatchNorm's
line before the activation is about 4% too high: 16.2 for 15.5 at the last block.) The lower panels
have the ReLU after the sum, as in CIFAR ResNets; the dotted line is the recursion without that
ReLU. `--scale laptop` takes less than two minutes on two cores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np

from nf_resnets import analysis, schemes
from nf_resnets.plotting.curves import Panel, curves_figure, curves_of

from .experiment import Experiment, Results, Row
from .grid import Point, grid
from .main import run
from .table import text_table
from .untrained import OneStage, digits, forward, initial, quick_jit, random_signs

FAMILIES = {"pre_activation": "pre-activation", "post_activation": "ReLU after the sum"}
SCHEMES = (
    "alpha_one", "alpha_rsqrt_depth", "batchnorm", "sqrt_half", "skipinit", "fixup", "rescalenet",
)  # fmt: skip


def scale(**sizes: int) -> list[Point]:
    """Every scheme in each family that it fits."""
    points = grid(sizes, family=list(FAMILIES), scheme=SCHEMES)
    return [point for point in points if point["family"] in schemes.get(point["scheme"]).fits]


SCALES = {
    "smoke": scale(depth=3, width=8, side=4, batch_size=4, draws=2),
    "laptop": scale(depth=16, width=48, side=8, batch_size=8, draws=8),
}


def measure(point: Point, _: str | None) -> list[Row]:
    """Measures a scheme's network, and asks the recursion what it should have been."""
    name, family = point["scheme"], point["family"]
    scheme = schemes.get(name)
    model = OneStage(point["depth"], point["width"], scheme, family)
    images = random_signs(point["batch_size"], point["side"])

    @quick_jit
    def one(key: jax.Array) -> tuple[Any, Any, analysis.Signal]:
        params, variables = initial(model, key, images)
        _, activations = analysis.observe(forward(model, variables), params, images)
        return params, activations, analysis.signal_of(activations)

    moments = []
    for key in jax.random.split(jax.random.key(0), point["draws"]):
        params, activations, signal = one(key)
        # The biases are 0 here, RescaleNet's too, which are set from data otherwise.
        form = analysis.predicted(params, scheme, activations, family=family, centered=False)
        forms = np.full((3, point["depth"]), np.nan)
        if form is not None:
            forms = np.stack([form.sum, form.share, without_relu(form, scheme)])
        moments.append(np.stack([signal.sum.second, signal.share, *forms]))
    draws = np.array(moments, np.float64)  # [draws, quantity, block]
    means, errors = draws.mean(axis=0), draws.std(axis=0, ddof=1) / len(draws) ** 0.5
    columns = {
        "var": means[0], "var_error": errors[0], "share": means[1], "share_error": errors[1],
        "form": means[2], "form_share": means[3], "form_without_relu": means[4],
    }  # fmt: skip
    return [
        {"family": family, "scheme": name, "k": at + 1, "title": scheme.title}
        | {column: digits(values[at]) for column, values in columns.items()}
        for at in range(point["depth"])
    ]


def without_relu(form: analysis.ClosedForm, scheme: schemes.Scheme) -> np.ndarray:
    """``Var`` of the sums by the same gains, if no ReLU followed them."""
    anatomy = scheme.anatomy
    # After a norm the branch does not depend on what it gets.
    constant = anatomy.normalized and anatomy.norm_place == "default"
    q, variances = form.input[0], []
    for at in range(len(form.sum)):
        branch = form.branch[at] if constant else q * form.branch[at] / form.input[at]
        q = q * form.skip[at] / form.input[at] + branch
        variances.append(q)
    return np.array(variances)


def table(results: Results) -> str:
    """Var and share at the last block, measured and by the closed form."""
    cells = [["scheme", "ReLU after sum", "Var", "form", "share", "form"]]
    last = max(int(row["k"]) for row in results.rows)
    for row in results.rows:
        if int(row["k"]) == last:
            after = "yes" if row["family"] == "post_activation" else "no"
            var = f"{float(row['var']):.3g} ± {float(row['var_error']):.1g}"
            share, form = (f"{float(row[name]):.3f}" for name in ("share", "form_share"))
            cells.append([row["title"], after, var, f"{float(row['form']):.3g}", share, form])
    return text_table(cells)


def figure(results: Results, path: Path) -> None:
    """Draws Var and share for both families."""
    panels, point = [], results.points[0]
    for family, what in FAMILIES.items():
        rows = [row for row in results.rows if row["family"] == family]
        for name, form, heading, label, base in (
            ("var", "form", "Forward", "Var of the sum", 2),
            ("share", "form_share", "Who contributes", "branch's share of the sum", 0),
        ):
            curves = curves_of(rows, "k", name, "dots", error=f"{name}_error")
            curves += curves_of(rows, "k", form, "--")
            if name == "var" and family == "post_activation":
                curves += curves_of(rows, "k", "form_without_relu", ":")
            if rows:
                heading = f"{heading}, {what}"
                panels.append(Panel("block $k$", label, curves, y_base=base, heading=heading))
    curves_figure(
        panels,
        path,
        title="Second moments and their closed forms",
        subtitle=(
            f"One stage of {point['depth']} blocks, {point['width']} channels, {point['side']} x "
            f"{point['side']} random images; mean and standard error of {point['draws']} draws"
        ),
        columns=2,
        legend={"--": "closed form", ":": "without the ReLU"},
    )


EXPERIMENT = Experiment("theory_signal", SCALES, table, figure, measure=measure)

if __name__ == "__main__":
    run(EXPERIMENT)
