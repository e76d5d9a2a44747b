"""What the experiments on untrained networks have in common: data and networks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import data, schemes
from nf_resnets.analysis import growth
from nf_resnets.models.blocks import Layers, PostActivationBlock, PreActivationBlock
from nf_resnets.models.layers import relu
from nf_resnets.models.resnet import head
from nf_resnets.models.stage import stages
from nf_resnets.training.program import quick_jit as quick_jit


def digits(value: Any) -> str:
    """Six of them."""
    return f"{float(value):.6g}"


def slope(rows: Iterable[Mapping[str, Any]], x: str, y: str) -> float:
    """The least-squares ``p`` of ``y ~ x**p``, as :func:`nf_resnets.analysis.growth`.

    >>> round(slope([{"l": l, "ratio": 3 * l**-0.5} for l in range(1, 9)], "l", "ratio"), 6)
    -0.5
    """
    rows = list(rows)
    return growth(*([float(row[name]) for row in rows] for name in (x, y)))


def digits_batch(batch_size: int) -> tuple[jax.Array, jax.Array]:
    """The first images of the 8x8 digits, normalized, and their labels."""
    dataset = data.load("digits")
    images = dataset.train.images[:batch_size].astype(np.float32)
    images = (images - np.float32(dataset.mean)) / np.float32(dataset.std)
    return jnp.asarray(images), jnp.asarray(dataset.train.labels[:batch_size])


def normalized(dataset: data.Dataset, images: np.ndarray, side: int) -> jax.Array:
    """Images, normalized and resized where that changes them: ``[B, side, side, C]``."""
    normal = data.normalize(images, dataset.mean, dataset.std)
    shape = (len(images), side, side, images.shape[-1])
    return normal if normal.shape == shape else jax.image.resize(normal, shape, "linear")


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


def forward(model: nn.Module, variables: Any = None) -> Callable[..., Any]:
    """``network(params, *inputs)`` of a model; with variables BatchNorm uses the batch."""
    rest = dict(variables or {})

    def network(params: Any, *inputs: jax.Array) -> Any:
        state = {"params": params, **rest}
        return model.apply(state, *inputs, train=bool(rest), mutable=list(rest))[0]

    return network


class OneStage(nn.Module):
    """A stem, one stage of blocks of one width, and a head."""

    num_branches: int
    width: int
    scheme: Any
    family: str = "pre_activation"
    num_classes: int = 10
    bn_groups: int = 1
    remat: bool = False
    dropout: float = 0.0
    conv_dropout: float = 0.0
    dtype: Any = jnp.float32

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.num_branches,)

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
            widths=(self.width,),
            strides=(1,),
        )
        return head(self, x, layers, None)
