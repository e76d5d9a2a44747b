"""The residual blocks, each with whatever the scheme's anatomy asks for.

A block computes ``identity * shortcut + residual * scalar * F(x / beta)`` (see
:class:`nf_resnets.schemes.Anatomy`); what differs between architectures is where the activations
stand. The activations of every block can be looked at (see :mod:`nf_resnets.taps`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.models.layers import ChannelBias, Conv, GhostBatchNorm, GroupNorm
from nf_resnets.models.noise import NO_NOISE, BranchNoise, dropped, surviving
from nf_resnets.models.parts import learnt_scalar, shifted, times
from nf_resnets.schemes import NO_CONSTANTS, Anatomy, BranchConstants
from nf_resnets.taps import merge, tap


class BasicBlock(nn.Module):
    r"""The post-activation block with two 3x3 convolutions (``m = 2``).

    With Fixup's anatomy it is the published block::

        h = relu(conv_1(x + bias_1a) + bias_1b)
        h = multiplier * conv_2(h + bias_2a) + bias_2b
        y = relu(h + shortcut)

    Where the shape changes, the shortcut is a 1x1 convolution of ``x + bias_1a``; in a CIFAR ResNet
    every second pixel of it, with zeros for the new channels.

    Attributes:
      features: ``C_out``.
      stride: of the first convolution and the shortcut.
      anatomy: what the scheme asks for.
      projection: whether a shortcut that changes the shape is a convolution.
      bn_groups: into how many slices BatchNorm cuts the batch.
      train: whether BatchNorm uses the batch's statistics.
      dropout: the rate of dropout of whole channels after each convolution of the branch.
      dtype: what the convolutions compute in.

    Source: Zhang, Dauphin, Ma, ICLR 2019, figure 1 right; He et al., CVPR 2016, section 4.2.
    """

    features: int
    stride: int
    anatomy: Anatomy
    projection: bool = False
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        constants: BranchConstants = NO_CONSTANTS,
        noise: BranchNoise = NO_NOISE,
    ) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        x = tap(self, "input", x)
        layers = layers_for(self, self.anatomy, train=self.train, noise=noise)
        biased = layers.center(x, "bias_1a")
        if self.projection or self.anatomy.pooled_shortcut:
            shortcut = projected_shortcut(self, layers, x, biased)
        elif self.stride == 1 and x.shape[-1] == self.features:
            shortcut = x
        else:
            shortcut = biased[:, :: self.stride, :: self.stride]
            new_channels = self.features - x.shape[-1]
            shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, new_channels)))
        if not self.anatomy.branches:
            return nn.relu(shortcut)

        h = layers.conv(self.features, stride=self.stride, name="conv_1")(
            divided(biased, constants.beta)
        )
        h = layers.dropped(h, 1)
        h = nn.relu(layers.shift(layers.norm(h, "norm_1"), "bias_1b"))
        h = layers.center(h, "bias_2a")
        h = last_conv(self, layers, h, "conv_2", layer=2, norm="norm_2")
        h = layers.shift(h, "bias_2b")
        return nn.relu(layers.merged(shortcut, h, constants))


class PreActivationBlock(nn.Module):
    r"""The pre-activation block with two 3x3 convolutions (``m = 2``).

    With Fixup's anatomy::

        h = conv_1(relu(x + bias_1) + bias_2)
        h = conv_2(relu(h + bias_3) + bias_4)
        y = x + multiplier * h

    Where the shape changes, the shortcut is a 1x1 convolution of the activated input.

    Attributes:
      features: ``C_out``.
      stride: of the first convolution and the shortcut.
      anatomy: what the scheme asks for.
      bn_groups: into how many slices BatchNorm cuts the batch.
      train: whether BatchNorm uses the batch's statistics.
      dropout: the rate of dropout of whole channels after each convolution of the branch.
      dtype: what the convolutions compute in.

    Source: He et al., *Identity Mappings*, ECCV 2016; Zagoruyko and Komodakis, BMVC 2016.
    """

    features: int
    stride: int
    anatomy: Anatomy
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        constants: BranchConstants = NO_CONSTANTS,
        noise: BranchNoise = NO_NOISE,
    ) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        x = tap(self, "input", x)
        layers = layers_for(self, self.anatomy, train=self.train, noise=noise)
        activated = divided(x, constants.beta)
        activated = nn.relu(layers.shift(layers.norm(activated, "norm_1"), "bias_1"))
        shortcut = x
        if self.stride > 1 or x.shape[-1] != self.features:
            shortcut = layers.projected(activated, self.features, self.stride)
        if not self.anatomy.branches:
            return shortcut

        h = layers.conv(self.features, stride=self.stride, name="conv_1")(
            layers.center(activated, "bias_2")
        )
        h = layers.dropped(h, 1)
        h = nn.relu(layers.shift(layers.norm(h, "norm_2"), "bias_3"))
        h = last_conv(self, layers, layers.center(h, "bias_4"), "conv_2", layer=2)
        return layers.merged(shortcut, h, constants)


class Layers(NamedTuple):
    """The layers that an anatomy asks for, as functions to build a network or a block from.

    What the anatomy does not ask for returns its input.

    Attributes:
      conv: ``conv(features, **options)``, a :class:`Conv` with or without bias vector.
      norm: ``norm(x, name, at=("default", "merge"))`` normalises, if the norm's place is one of
        ``at``.
      shift: ``shift(x, name)`` adds Fixup's scalar bias before an activation.
      center: ``center(x, name)`` adds the bias before a layer, a scalar or one for each channel.
      projected: ``projected(x, features, stride)``: a shortcut by 1x1 convolution, strided, or of
        the pooled and biased input, as the anatomy has it.
      dropped: ``dropped(h, layer)``: dropout after the branch's convolution of that number, where
        the block has it.
      merged: ``merged(shortcut, branch, constants)``: ``identity * shortcut + residual * branch``,
        recorded, and normalised where the anatomy normalises sums; without the branch where
        stochastic depth has left it out.
    """

    conv: Callable[..., Any]
    norm: Callable[..., jax.Array]
    shift: Callable[..., jax.Array]
    center: Callable[..., jax.Array]
    projected: Callable[..., jax.Array]
    dropped: Callable[..., jax.Array]
    merged: Callable[..., jax.Array]


def layers_for(
    module: Any, anatomy: Anatomy, *, train: bool, noise: BranchNoise = NO_NOISE
) -> Layers:
    """The layers that an anatomy asks for.

    Args:
      module: the module whose layers they become; its ``bn_groups``, ``dtype`` and, of a block,
        ``dropout`` are used.
      anatomy: what the scheme asks for.
      train: whether BatchNorm uses the batch's statistics.
      noise: what the branch draws at random.
    """
    conv = partial(
        Conv,
        use_bias=anatomy.conv_biases,
        standardized=anatomy.standardized,
        same_padding=anatomy.same_padding,
        dtype=module.dtype,
    )

    def norm(x: jax.Array, name: str, at: tuple[str, ...] = ("default", "merge")) -> jax.Array:
        if anatomy.norm_place not in at:
            return x
        if anatomy.norm == "batch":
            return GhostBatchNorm(groups=module.bn_groups, train=train, name=name)(x)
        if anatomy.norm == "group":
            return GroupNorm(name=name)(x)
        return x

    def shift(x: jax.Array, name: str) -> jax.Array:
        if not anatomy.scalar_biases:
            return x
        return shifted(module, name, x)

    def center(x: jax.Array, name: str) -> jax.Array:
        return ChannelBias(name=name)(x) if anatomy.channel_biases else shift(x, name)

    def projected(x: jax.Array, features: int, stride: int) -> jax.Array:
        if anatomy.pooled_shortcut:
            x, stride = center(average_pool(x, stride), "bias_shortcut"), 1
        return conv(features, size=1, stride=stride, name="shortcut")(x)

    def dropped_after(h: jax.Array, layer: int) -> jax.Array:
        return dropped(h, noise, module.dropout, layer)

    def merged(shortcut: jax.Array, branch: jax.Array, constants: BranchConstants) -> jax.Array:
        branch = surviving(branch, noise)
        shortcut = times(shortcut, constants.identity)
        branch = times(branch, constants.residual)
        return norm(merge(module, shortcut, branch), "norm_merge", at=("merge",))

    return Layers(conv, norm, shift, center, projected, dropped_after, merged)


def projected_shortcut(block: Any, layers: Layers, x: jax.Array, biased: jax.Array) -> jax.Array:
    """The shortcut of a post-activation block: ``x``, or where the shape changes a 1x1 convolution.

    Args:
      block: the block; its ``features``, ``stride`` and ``anatomy`` are used.
      layers: the block's layers.
      x: ``[B, H, W, C_in]`` as it enters the block.
      biased: ``x`` with the bias of the first convolution, which the shortcut shares unless the
        anatomy gives it one of its own behind the pooling.

    Returns:
      ``[B, ceil(H / stride), ceil(W / stride), features]``, normalised where the block normalises.
    """
    if block.stride == 1 and x.shape[-1] == block.features:
        return x
    source = x if block.anatomy.pooled_shortcut else biased
    return layers.norm(layers.projected(source, block.features, block.stride), "norm_shortcut")


def average_pool(x: jax.Array, size: int) -> jax.Array:
    """The means over ``size x size`` squares of ``[B, H, W, C]``; those at the edge are smaller.

    The output has ``ceil(H / size)`` by ``ceil(W / size)`` positions, as a strided convolution's.
    """
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


def last_conv(
    block: Any,
    layers: Layers,
    h: jax.Array,
    name: str,
    *,
    layer: int,
    size: int = 3,
    norm: str | None = None,
) -> jax.Array:
    """The branch's last convolution, what stands behind it, and the branch's learnable scalar.

    Args:
      block: the block; its ``features`` and ``anatomy`` are used.
      layers: the block's layers.
      h: ``[B, H, W, C]``.
      name: of the convolution.
      layer: its number in the branch, from 1.
      size: of its kernel.
      norm: the norm's name, if there can be one.

    Returns:
      ``[B, H, W, features]``.
    """
    conv = layers.conv(block.features, size=size, name=name)
    if norm is not None and block.anatomy.normalized:
        return scaled_branch(block, layers.norm(layers.dropped(conv(h), layer), norm))
    return layers.dropped(conv(h, branch_scalar(block)), layer)


def scaled_branch(block: Any, h: jax.Array) -> jax.Array:
    """Multiplies the branch by its learnable scalar."""
    scalar = branch_scalar(block)
    return h if scalar is None else h * scalar.astype(h.dtype)


def branch_scalar(block: Any) -> jax.Array | None:
    """The learnable scalar of the block's branch, if the anatomy has one."""
    for present, name in ((block.anatomy.multiplier, "multiplier"), (block.anatomy.alpha, "alpha")):
        if present:
            return learnt_scalar(block, name)
    return None


def divided(x: jax.Array, beta: Any) -> jax.Array:
    """``x / beta``, where a scheme asks for it."""
    return x if beta is None else x / beta.astype(x.dtype)


__all__ = [
    "BasicBlock",
    "Layers",
    "PreActivationBlock",
    "average_pool",
    "divided",
    "last_conv",
    "layers_for",
    "projected_shortcut",
    "scaled_branch",
]
