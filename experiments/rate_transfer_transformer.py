r"""Whose best learning rate stays when a Transformer grows thirtyfold in depth, or in width?

The question of `rate_transfer`, asked of Transformers with AdamW, for which CompleteP was published
(2505.01618). `layernorm_pre` is the standard network, with LayerNorm before each branch;
`depth_mup` and `completep` are the same with branches times `(L / L_0)**-a`, and with rates and
epsilon that follow width and depth. Fixup and ReZero have no LayerNorm.

Expected by theory: AdamW's updates have one size, so that at one rate every branch changes the sum
equally, `L` branches change it `L` times as much, and the best rate falls with the depth. In the
standard network it falls by less, since its LayerNorms divide by a sum that also grows; in Fixup
and ReZero, whose branches start at 0, it does so from the first step on. With Fixup AdamW need not
be the only reason: its `m = 4` of attention gives the path of the values `L**(-1/6)`, where theorem
4 asks for `L**(-1/2)` of a path of two matrices. Under depth-muP and CompleteP the change does not
depend on `L`; under CompleteP every layer of a branch also keeps learning. The three networks with
LayerNorm are equal at the smallest size; across widths the last two have muP's rates.

Rates, their selection, ranges and schedule are those of `rate_transfer`; beta_2 is 0.98, and there
is no weight decay, no warm-up and no label smoothing. The smallest network of the scale is the
base network, whichever sizes are trained.

`--scale laptop` trains 2 to 60 layers of 32 channels (encoder and decoder together, 5 to 150
branches) and 32 to 128 channels at 2 layers, on generated sentences of up to 12 tokens for 48
steps; about 23 minutes on two idle cores, five of them for compiling 30 programs. `--grid
optimizer=sgd` needs other rates, such as `peak_lr=2^-5:2^-1`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from nf_resnets import models, optim, schemes, training, translation
from nf_resnets.parametrization import COMPLETEP, DEPTH_MUP
from nf_resnets.sweep.engine import Execution

from . import fixup_table3_translation as table3
from . import rate_transfer
from .experiment import Row
from .grid import Point, grid
from .main import Command, run
from .task import HostTask, Setup, shared

PARAMETRIZED = tuple(
    schemes.parametrized(
        "layernorm_pre", each, name=f"{each.name}_layernorm", title=f"{each.title} with LayerNorm"
    )
    for each in (DEPTH_MUP, COMPLETEP)
)
SCHEMES = ("layernorm_pre", *(scheme.name for scheme in PARAMETRIZED), "fixup", "rezero")
BASE = {
    "dataset": translation.MADE, "source": "", "vocabulary": 400, "joint": True, "head_width": 16,
    "base_layers": 1, "base_width": 32, "max_length": 12, "max_tokens": 384, "steps": 48,
    "weight_decay": 0.0, "optimizer": "adamw", "dtype": "float32",
}  # fmt: skip
"""``base_*`` are of the network that the schemes of muP carry rates from."""


def scale(
    base: Point, sizes: Sequence[tuple[int, int]], names: Sequence[str], rates: Sequence[float],
    seeds: Sequence[int],
) -> list[Point]:  # fmt: skip
    """Every scheme and rate at sizes of layers, of encoder and decoder together, and channels."""
    return [
        point
        for layers, width in sizes
        for point in grid(
            {**base, "model": f"transformer-{layers // 2}", "d_model": width},
            scheme=names, peak_lr=rates, seed=seeds,
        )
    ]  # fmt: skip


SIZES = [(2, 32), (2, 64), (2, 128), (6, 32), (20, 32), (60, 32)]
SCALES = {
    "smoke": scale(
        BASE | {"base_width": 16, "max_tokens": 128, "steps": 4}, [(2, 16), (2, 32), (4, 16)],
        (SCHEMES[0], SCHEMES[2]), [2**-8, 2**-6], [0],
    ),
    "laptop": scale(BASE, SIZES, SCHEMES, [2.0**power for power in range(-8, -3)], range(5)),
}  # fmt: skip


def task(points: Sequence[Point], command: Command) -> HostTask:
    """The runs on the sentences of the translation experiment, without the long ones."""
    return HostTask(table3.load(shared(points, *table3.DATA), command.data_dir), setup)


def setup(point: Point, sentences: translation.Sentences) -> Setup:
    """Network, optimizer and steps of a point, beside the smallest network."""

    def network(layers: int, width: int) -> models.Transformer:
        return models.Transformer(
            vocab_size=sentences.vocabulary.target_size,
            num_layers=layers,
            d_model=width,
            num_heads=width // point["head_width"],
            d_ff=2 * width,
            scheme=schemes.get(point["scheme"]),
            padding_id=translation.PADDING,
            max_length=point["max_length"],
            dtype=models.dtype_of(point["dtype"]),
        )

    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    base = network(point["base_layers"], point["base_width"])
    large = network(int(point["model"].split("-")[1]), point["d_model"])
    model, parametrize = training.relative_to(large, base, tokens, tokens)

    def optimizer(hyper: Mapping[str, Any]) -> Any:
        rule, kind = translation.OPTIMIZERS[point["optimizer"]]
        schedule = optim.halving(hyper["learning_rate"], point["steps"])
        made = rule(schedule, weight_decay=point["weight_decay"], scheme=model.scheme)
        return parametrize(made, kind=kind)

    how = translation.TokenTraining(point["max_tokens"], point["steps"], label_smoothing=0.0)
    build, source = translation.token_program, sentences.train
    return Setup(build, model, source, optimizer, how, point["steps"])


def columns(row: Row) -> Row:
    """Layers of encoder and decoder, channels, and the training loss at the end."""
    shared = rate_transfer.columns(row)
    return {**shared, "depth": 2 * int(row["model"].split("-")[1]), "width": row["d_model"]}


EXPERIMENT = dataclasses.replace(
    rate_transfer.EXPERIMENT, name="rate_transfer_transformer", scales=SCALES, columns=columns,
    schemes=PARAMETRIZED, task=task, typed=dict, execution=Execution(runs_per_device=1),
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
