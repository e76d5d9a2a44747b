"""The residual blocks of image networks, each with whatever the scheme's anatomy asks for.

A block computes ``identity * shortcut + residual * scalar * F(x / beta)`` (see
:class:`nf_resnets.schemes.Anatomy`); what differs between architectures is where the activations
stand.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.models.dtypes import scaled
from nf_resnets.models.layers import (
    ChannelBias,
    Conv,
    GhostBatchNorm,
    GroupNorm,
    dropout,
    missing_keys,
    relu,
)
from nf_resnets.models.parts import learnt_scalar, shifted, times
from nf_resnets.schemes import NO_CONSTANTS, Anatomy, BranchConstants

# The head's dropout draws from the images' keys themselves, and VGG's layers fold small numbers.
_BRANCHES = 0x5D_0000


def branch_keys(network: Any, keys: jax.Array | None, num_blocks: int) -> jax.Array | None:
    """PRNG keys ``[L, B]`` for dropout in the branches, of the images' ``[B]``; None without."""
    if not network.conv_dropout:
        return None
    if keys is None:
        raise missing_keys("dropout in its branches")
    numbers = _BRANCHES + jnp.arange(num_blocks)
    return jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (None, 0))(keys, numbers)


def dropped(h: jax.Array, keys: jax.Array | None, rate: float, layer: int) -> jax.Array:
    """Dropout of whole channels of ``[B, H, W, C]`` after the branch's convolution of a number."""
    if not rate or keys is None:
        return h
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, layer)
    return dropout(h, keys, rate, whole_channels=True)


class PostActivationBlock(nn.Module):
    r"""The block with a ReLU after the sum: by default two 3x3 convolutions (``m = 2``).

    With Fixup's anatomy it is the published block::

        h = relu(conv_1(x + bias_1a) + bias_1b)
        h = multiplier * conv_2(h + bias_2a) + bias_2b
        y = relu(h + shortcut)

    and with three convolutions each but the last is as ``conv_1``. Where the shape changes, the
    shortcut is a 1x1 convolution of ``x + bias_1a``; in a CIFAR ResNet every second pixel of it,
    with zeros for the new channels.

    Attributes:
      features: ``C_out``.
      stride: of the shortcut and the first convolution that is larger than 1x1.
      kernels: the sizes of the branch's convolutions; ``(1, 3, 1)`` is a bottleneck (``m = 3``).
      expansion: ``C_out`` over the channels between the convolutions; 4 in a bottleneck.
      width: how many times as many channels are between them.
      projection: whether a shortcut that changes the shape is a convolution.
      dropout: the rate of dropout of whole channels after each convolution of the branch.

    Source: Zhang, Dauphin, Ma, ICLR 2019, figure 1 right; He et al., CVPR 2016, section 4.2.
    """

    features: int
    stride: int
    anatomy: Anatomy
    kernels: tuple[int, ...] = (3, 3)
    expansion: int = 1
    width: int = 1
    projection: bool = True
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        constants: BranchConstants = NO_CONSTANTS,
        keys: jax.Array | None = None,
    ) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        layers = Layers(self, self.anatomy, self.train, keys)
        biased = layers.center(x, "bias_1a")
        shortcut = self._shortcut(layers, x, biased)
        if not self.anatomy.branches:
            return relu(shortcut)

        h, m = divided(biased, constants.beta), len(self.kernels)
        for i in range(1, m):
            h = layers.norm(layers.branch_conv(h, i), f"norm_{i}")
            h = relu(layers.shift(h, f"bias_{i}b"))
            h = layers.center(h, f"bias_{i + 1}a")
        if self.anatomy.normalized:
            h = scaled_branch(self, layers.norm(layers.branch_conv(h, m), f"norm_{m}"))
        else:
            h = layers.branch_conv(h, m, branch_scalar(self))
        h = layers.shift(h, f"bias_{m}b")
        return relu(layers.merged(shortcut, h, constants))

    def _shortcut(self, layers: Layers, x: jax.Array, biased: jax.Array) -> jax.Array:
        if self.stride == 1 and x.shape[-1] == self.features:
            return x
        if self.projection or self.anatomy.pooled_shortcut:
            # Behind the pooling stands a bias of its own.
            source = x if self.anatomy.pooled_shortcut else biased
            return layers.norm(layers.projected(source), "norm_shortcut")
        shortcut = biased[:, :: self.stride, :: self.stride]
        new_channels = self.features - x.shape[-1]
        return jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, new_channels)))


class PreActivationBlock(nn.Module):
    r"""The block with the activation before each convolution: by default two of 3x3 (``m = 2``).

    With Fixup's anatomy, and likewise with three convolutions, for which no one has published it::

        h = conv_1(relu(x + bias_1) + bias_2)
        h = conv_2(relu(h + bias_3) + bias_4)
        y = x + multiplier * h

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input, without the
    bias before it that Fixup's rule 3 asks for. The attributes are those of
    :class:`PostActivationBlock`.

    Source: He et al., *Identity Mappings*, ECCV 2016; Zagoruyko and Komodakis, BMVC 2016.
    """

    features: int
    stride: int
    anatomy: Anatomy
    kernels: tuple[int, ...] = (3, 3)
    expansion: int = 1
    width: int = 1
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        constants: BranchConstants = NO_CONSTANTS,
        keys: jax.Array | None = None,
    ) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        shortcut = x
        layers = Layers(self, self.anatomy, self.train, keys)
        h, m = divided(x, constants.beta), len(self.kernels)
        for i in range(1, m + 1):
            h = relu(layers.shift(layers.norm(h, f"norm_{i}"), f"bias_{2 * i - 1}"))
            if i == 1 and (self.stride > 1 or x.shape[-1] != self.features):
                shortcut = layers.projected(h)
            if not self.anatomy.branches:
                return shortcut
            scalar = branch_scalar(self) if i == m else None
            h = layers.branch_conv(layers.center(h, f"bias_{2 * i}"), i, scalar)
        return layers.merged(shortcut, h, constants)


@dataclasses.dataclass(frozen=True)
class Layers:
    """The layers that an anatomy asks for; what it does not ask for returns its input.

    They become layers of ``module``, a network or a block.
    """

    module: Any
    anatomy: Anatomy
    train: bool = False
    keys: jax.Array | None = None  # of the branch, for each image

    def conv(self, features: int, **options: Any) -> Conv:
        """A convolution with the anatomy's weights and bias vector."""
        return Conv(
            features,
            use_bias=self.anatomy.conv_biases,
            standardized=self.anatomy.standardized,
            dtype=self.module.dtype,
            **options,
        )

    def norm(self, x: jax.Array, name: str, at: Sequence[str] = ("default", "merge")) -> jax.Array:
        """Normalizes, if the norm's place is one of ``at``."""
        if self.anatomy.norm_place not in at:
            return x
        if self.anatomy.has_batch_norm:
            return GhostBatchNorm(groups=self.module.bn_groups, train=self.train, name=name)(x)
        return GroupNorm(name=name)(x) if self.anatomy.norm == "group" else x

    def shift(self, x: jax.Array, name: str) -> jax.Array:
        """Adds Fixup's scalar bias before an activation."""
        return shifted(self.module, name, x) if self.anatomy.scalar_biases else x

    def center(self, x: jax.Array, name: str) -> jax.Array:
        """Adds the bias before a layer, a scalar or one for each channel."""
        return ChannelBias(name=name)(x) if self.anatomy.channel_biases else self.shift(x, name)

    def projected(self, x: jax.Array) -> jax.Array:
        """A block's shortcut by 1x1 convolution, strided, or of the pooled and biased input."""
        stride = self.module.stride
        if self.anatomy.pooled_shortcut:
            x, stride = self.center(average_pool(x, stride), "bias_shortcut"), 1
        return self.conv(self.module.features, size=1, stride=stride, name="shortcut")(x)

    def branch_conv(self, h: jax.Array, layer: int, scalar: jax.Array | None = None) -> jax.Array:
        """The block's convolution of a number, times the branch's scalar, and its dropout."""
        block = self.module
        last, inner = layer == len(block.kernels), block.width * (block.features // block.expansion)
        strided = next(i for i, size in enumerate(block.kernels, start=1) if size > 1)
        conv = self.conv(
            block.features if last else inner,
            size=block.kernels[layer - 1],
            stride=block.stride if layer == strided else 1,
            name=f"conv_{layer}",
        )
        return dropped(conv(h, scalar), self.keys, block.dropout, layer)

    def merged(
        self, shortcut: jax.Array, branch: jax.Array, constants: BranchConstants
    ) -> jax.Array:
        """``identity * shortcut + residual * branch``, normalized where sums are."""
        branch = times(branch, constants.residual)
        y = times(shortcut, constants.identity) + branch
        return self.norm(y, "norm_merge", at=("merge",))


def average_pool(x: jax.Array, size: int) -> jax.Array:
    """The means over ``size x size`` squares of ``[B, H, W, C]``; those at the edge are smaller."""
    if size == 1:
        return x
    batch, height, width, channels = x.shape
    sides = [(length, -length % size) for length in (height, width)]
    padded = jnp.pad(x, ((0, 0), (0, sides[0][1]), (0, sides[1][1]), (0, 0)))
    rows, columns = ((length + pad) // size for length, pad in sides)
    sums = padded.reshape(batch, rows, size, columns, size, channels).sum(axis=(2, 4))
    counts = [
        np.minimum(size, length - size * np.arange(-(-length // size))) for length, _ in sides
    ]
    area = np.multiply.outer(counts[0], counts[1]).reshape(1, rows, columns, 1)
    return sums / jnp.asarray(area, x.dtype)


def scaled_branch(block: Any, h: jax.Array) -> jax.Array:
    """Multiplies the branch by its learnable scalar, if the anatomy has one."""
    scalar = branch_scalar(block)
    return h if scalar is None else scaled(h, scalar)


def branch_scalar(block: Any) -> jax.Array | None:
    """The learnable scalar of the block's branch, if the anatomy has one."""
    for name in ("multiplier", "alpha"):
        if getattr(block.anatomy, name):
            return learnt_scalar(block, name)
    return None


def divided(x: jax.Array, beta: Any) -> jax.Array:
    """``x / beta``, where a scheme asks for it."""
    return x if beta is None else x / beta.astype(x.dtype)
