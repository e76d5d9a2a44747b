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
branches) and 32 to 128 channels at 2 layers, on the generated sentences of the translation
experiment's laptop scale of up to 12 tokens: batches of 32, 48 steps, five seeds; about 23 minutes
on two idle cores, five of them for compiling 30 programs. `--scale smoke` takes seconds a run and
shows nothing. `--optimizer sgd` needs other rates, such as `--log2_rates -5 -4 -3 -2 -1`.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp

from nf_resnets import models, optim, schemes, training, translation
from nf_resnets.parametrization import COMPLETEP, DEPTH_MUP

from . import fixup_table3_translation, rate_transfer
from .experiment import Point, Setup
from .folder import Row
from .main import run
from .rate_transfer import METRIC
from .table import counted

LINES = {
    "layernorm_pre": schemes.get("layernorm_pre"),
    **{
        each.name: schemes.parametrized("layernorm_pre", each, title=f"{each.title} with LayerNorm")
        for each in (DEPTH_MUP, COMPLETEP)
    },
    **{name: schemes.get(name) for name in ("fixup", "rezero")},
}


@dataclasses.dataclass(frozen=True)
class Command(rate_transfer.Command):
    """Redraw the best learning rate of Transformers against depth and width."""

    scale: Literal["smoke", "laptop"] = "laptop"
    """smoke: seconds; laptop: about 23 minutes on two idle cores."""
    optimizer: optim.Name = "adamw"
    """adamw, as published; sgd, lion or muon, which want other rates than the scale has."""
    lines: tuple[str, ...] = ()
    """Some of layernorm_pre, depth_mup, completep, fixup, rezero."""
    depths: tuple[int, ...] = ()
    """Layers, of encoder and decoder together; by default those of the scale."""
    widths: tuple[int, ...] = ()
    """Channels, at the first of the depths."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the rows depend on."""

    dataset: str = translation.MADE
    lines: tuple[str, ...] = tuple(LINES)
    depths: tuple[int, ...] = (2, 6, 20, 60)  # layers, at the first of the widths
    widths: tuple[int, ...] = (32, 64, 128)  # channels, at the first of the depths
    base_depth: int = 2  # of the network that the schemes of muP carry rates from
    base_width: int = 32
    log2_rates: tuple[int, ...] = (-8, -7, -6, -5, -4)
    extend: int = 6  # rates beyond each end, at most
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    head_width: int = 16  # channels of a head
    vocabulary: int = 400
    max_length: int = 12  # tokens of a sentence
    max_tokens: int = 384  # of a batch
    steps: int = 48
    weight_decay: float = 0.0

    def about(self, by: str) -> str:
        """The settings of a figure."""
        size = f"{self.widths[0]} channels" if by == "depth" else f"{self.depths[0]} layers"
        return (
            f"Transformers of {size} on made sentences, batches of {self.max_tokens:,} tokens, "
            f"{self.steps} steps, {counted(self.seeds, 'seed')}"
        )


SCALES = {
    "smoke": Settings(
        lines=("layernorm_pre", "completep"), depths=(2, 4), widths=(16, 32), base_width=16,
        log2_rates=(-8, -6), extend=0, seeds=(0,), max_tokens=128, steps=4,
    ),
    "laptop": Settings(),
}  # fmt: skip


def load(settings: Settings, command: Command) -> fixup_table3_translation.Sentences:
    """Makes the sentences of the translation experiment, of which the long ones are left out."""
    table3 = fixup_table3_translation.SCALES["laptop"]
    changed = {"vocabulary": settings.vocabulary, "max_length": settings.max_length}
    return fixup_table3_translation.load(dataclasses.replace(table3, **changed), command)


def check(settings: Settings, command: Command) -> Settings:
    """Refuses sizes that no network has."""
    for name, values, unit in (
        ("depths", settings.depths, 2), ("widths", settings.widths, settings.head_width)
    ):  # fmt: skip
        for value in values:
            if value < 1 or value % unit:
                raise ValueError(f"--{name} {value} found; expected multiples of {unit}.")
    rate_transfer.check_rates(settings)
    return settings


@functools.cache
def relative(
    settings: Settings, vocabulary: int, line: str, depth: int, width: int
) -> training.Relative:
    """A network, its scheme and the factors of its rates, beside the smallest network."""

    def network(depth: int, width: int) -> models.Transformer:
        return models.Transformer(
            vocab_size=vocabulary,
            num_layers=depth // 2,
            d_model=width,
            num_heads=width // settings.head_width,
            d_ff=2 * width,
            scheme=LINES[line],
            padding_id=translation.PADDING,
            max_length=settings.max_length,
        )

    tokens = jax.ShapeDtypeStruct((1, 2), jnp.int32)
    base = network(settings.base_depth, settings.base_width)
    return training.relative_to(network(depth, width), base, tokens, tokens)


def relative_at(settings: Settings, sentences: Any, key: Row) -> training.Relative:
    """The network of a run; see :func:`relative`."""
    size = key["line"], key["depth"], key["width"]
    return relative(settings, sentences.vocabulary.target_size, *size)


def setup(settings: Settings, sentences: Any, point: Point) -> Setup:
    """Network, optimizer and steps of one scheme at one size."""
    model, parametrize = relative_at(settings, sentences, point.key)

    def optimizer(hyper: dict[str, Any], name: optim.Name = "adamw") -> Any:
        rule, kind = translation.OPTIMIZERS[name]
        schedule = optim.halving(hyper["learning_rate"], settings.steps)
        made = rule(schedule, weight_decay=settings.weight_decay, scheme=model.scheme)
        return parametrize(made, kind=kind)

    training = translation.TokenTraining(
        max_tokens=settings.max_tokens, num_steps=settings.steps, label_smoothing=0.0
    )
    return Setup(model, optimizer, training, sentences.train)


EXPERIMENT = dataclasses.replace(
    rate_transfer.EXPERIMENT,
    name="rate_transfer_transformer",
    title="Transfer of learning rates, Transformers",
    description="Draw the best learning rate of each Transformer against depth and width.",
    scales=SCALES, command=Command, check=check, load=load, setup=setup,
    columns=(
        "line", "depth", "width", "log2_rate", "seed", "title", "branches", METRIC, "status",
        "steps", "first_loss", "last_loss", "last_grad_norm", "seconds", "seconds_per_step",
    ),
    points=functools.partial(
        rate_transfer.points,
        at=relative_at,
        length=lambda settings, _: {"num_steps": settings.steps, "steps_per_epoch": settings.steps},
        called="{depth} layers of {width} channels",
    ),
    choices={"lines": tuple(LINES)},
    describe=lambda result: f"loss {result['measures']['last_loss']:.2f}",
)  # fmt: skip

if __name__ == "__main__":
    run(EXPERIMENT)
