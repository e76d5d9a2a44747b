"""What the experiments on untrained networks have in common: data, network, rows."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data, schemes
from nf_resnets.models.blocks import Layers, PostActivationBlock, PreActivationBlock
from nf_resnets.models.head import head
from nf_resnets.models.layers import relu
from nf_resnets.models.stage import stages
from nf_resnets.training.program import quick_compile

from .folder import ResultsFolder, Row


@dataclasses.dataclass(frozen=True)
class Command:
    """The options of an experiment that has no others."""

    scale: Literal["smoke", "laptop", "paper"] = "laptop"
    """smoke: seconds; laptop: a few minutes on two cores; paper: deep and wide, for a GPU."""
    out: Path | None = None
    """The results folder; by default runs/NAME-SCALE."""


def fill(
    folder: ResultsFolder, key: Row, label: str, rows: Callable[..., Iterable[Row]], *arguments: Any
) -> None:
    """Adds ``rows(*arguments)`` to a folder, unless it has a row with the values of ``key``."""
    if not folder.has(**key):
        start = time.monotonic()
        made = rows(*arguments)
        # An earlier version could leave a part of them behind.
        folder.add(*(r for r in made if not folder.has(**{name: r[name] for name in folder.key})))
        print(f"  {label}: {time.monotonic() - start:.0f} s", flush=True)


def digits(value: Any) -> str:
    """Six of them."""
    return f"{float(value):.6g}"


def in_order(rows: Iterable[Row], **values: Sequence[Any]) -> list[Row]:
    """The rows whose columns are among some values, in the order of these.

    >>> in_order([{"a": "1"}, {"a": "2"}, {"a": "3"}], a=(3, 1))
    [{'a': '3'}, {'a': '1'}]
    """
    order = {name: {str(value): at for at, value in enumerate(of)} for name, of in values.items()}
    kept = [row for row in rows if all(str(row[name]) in at for name, at in order.items())]
    return sorted(kept, key=lambda row: [at[str(row[name])] for name, at in order.items()])


def quick_jit(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles what runs a few times: on a CPU what counts is how long it takes to compile."""
    return jax.jit(function, compiler_options=quick_compile(jax.devices()[0]))


def digits_batch(batch_size: int) -> tuple[jax.Array, jax.Array]:
    """The first images of the 8x8 digits, normalised, and their labels."""
    dataset = data.load("digits")
    images = dataset.train.images[:batch_size].astype(np.float32)
    images = (images - np.float32(dataset.mean)) / np.float32(dataset.std)
    return jnp.asarray(images), jnp.asarray(dataset.train.labels[:batch_size])


def normalized(dataset: data.Dataset, images: np.ndarray, side: int) -> jax.Array:
    """Images, normalised and resized where that changes them: ``[B, side, side, C]``."""
    mean, std = jnp.asarray(dataset.mean), jnp.asarray(dataset.std)
    found = data.normalize(jnp.asarray(images), mean, std)
    shape = (len(images), side, side, images.shape[-1])
    return found if found.shape == shape else jax.image.resize(found, shape, "linear")


def random_signs(batch_size: int, side: int) -> jax.Array:
    """Images ``[B, side, side, 3]`` of -1 and 1."""
    values = np.random.default_rng(0).choice([-1.0, 1.0], (batch_size, side, side, 3))
    return jnp.asarray(values, jnp.float32)


def initial(model: Any, key: jax.Array, images: jax.Array) -> tuple[Any, Any]:
    """The parameters that the scheme of a network draws, and the other variables."""
    variables = dict(model.init(key, images[:1]))
    params = variables.pop("params")
    scheme = schemes.get(model.scheme)
    return scheme.init(params, model.num_branches, key=jax.random.fold_in(key, 1)), variables


class OneStage(nn.Module):
    """A stem, one stage of blocks of one width, and a head."""

    num_branches: int
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
        post = self.family == "post_activation"
        layers = Layers(self, schemes.get(self.scheme).anatomy, train)
        x = layers.conv(self.width, after_relu=False, name="stem")(images)
        x = stages(
            self,
            functools.partial(PostActivationBlock, projection=False)
            if post
            else PreActivationBlock,
            relu(x) if post else x,
            layers,
            sizes=(self.num_branches,),
            widths=(self.width,),
            strides=(1,),
        )
        return head(self, x, layers, None)


__all__ = [
    "Command", "OneStage", "digits", "digits_batch", "fill", "in_order", "initial", "normalized",
    "quick_jit", "random_signs",
]  # fmt: skip
