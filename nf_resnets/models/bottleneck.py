"""The bottleneck blocks of deep ImageNet networks, three convolutions a branch."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets.models.blocks import divided, last_conv, layers_for, projected_shortcut
from nf_resnets.models.noise import NO_NOISE, BranchNoise
from nf_resnets.schemes import NO_CONSTANTS, Anatomy, BranchConstants
from nf_resnets.taps import tap

EXPANSION = 4
"""Channels of a block's output over those inside its branch."""


class Bottleneck(nn.Module):
    r"""The post-activation block with 1x1, 3x3 and 1x1 convolutions (``m = 3``).

    With Fixup's anatomy it is the published block, six scalar biases and a multiplier::

        h = relu(conv_1(x + bias_1a) + bias_1b)
        h = relu(conv_2(h + bias_2a) + bias_2b)
        h = multiplier * conv_3(h + bias_3a) + bias_3b
        y = relu(h + shortcut)

    The stride is the 3x3 convolution's. Where the shape changes, the shortcut is a 1x1 convolution
    of ``x + bias_1a``.

    Attributes:
      features: ``C_out``; the branch has a quarter as many inside, times ``width``.
      stride: of the second convolution and the shortcut.
      anatomy: what the scheme asks for.
      bn_groups: into how many slices BatchNorm cuts the batch.
      train: whether BatchNorm uses the batch's statistics.
      dropout: the rate of dropout of whole channels after each convolution of the branch.
      dtype: what the convolutions compute in.
      width: how many times as many channels the branch has inside.

    Source: He et al., CVPR 2016, figure 5 right; Zhang, Dauphin, Ma, ICLR 2019, figure 1.
    """

    features: int
    stride: int
    anatomy: Anatomy
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32
    width: int = 1

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
        shortcut = projected_shortcut(self, layers, x, biased)
        if not self.anatomy.branches:
            return nn.relu(shortcut)

        inner = self.width * (self.features // EXPANSION)
        h = layers.conv(inner, size=1, name="conv_1")(divided(biased, constants.beta))
        h = layers.dropped(h, 1)
        h = nn.relu(layers.shift(layers.norm(h, "norm_1"), "bias_1b"))
        h = layers.conv(inner, stride=self.stride, name="conv_2")(layers.center(h, "bias_2a"))
        h = layers.dropped(h, 2)
        h = nn.relu(layers.shift(layers.norm(h, "norm_2"), "bias_2b"))
        h = layers.center(h, "bias_3a")
        h = last_conv(self, layers, h, "conv_3", layer=3, size=1, norm="norm_3")
        h = layers.shift(h, "bias_3b")
        return nn.relu(layers.merged(shortcut, h, constants))


class PreActivationBottleneck(nn.Module):
    r"""The pre-activation block with 1x1, 3x3 and 1x1 convolutions (``m = 3``).

    With Fixup's anatomy, which no one has published for this block, after that of a Wide ResNet::

        h = conv_1(relu(x + bias_1) + bias_2)
        h = conv_2(relu(h + bias_3) + bias_4)
        h = conv_3(relu(h + bias_5) + bias_6)
        y = x + multiplier * h

    The stride is the 3x3 convolution's. Where the shape changes, the shortcut is a 1x1 convolution
    of the activated input.

    Attributes:
      features: ``C_out``; the branch has a quarter as many inside, times ``width``.
      stride: of the second convolution and the shortcut.
      anatomy: what the scheme asks for.
      bn_groups: into how many slices BatchNorm cuts the batch.
      train: whether BatchNorm uses the batch's statistics.
      dropout: the rate of dropout of whole channels after each convolution of the branch.
      dtype: what the convolutions compute in.
      width: how many times as many channels the branch has inside.

    Source: He et al., *Identity Mappings*, ECCV 2016.
    """

    features: int
    stride: int
    anatomy: Anatomy
    bn_groups: int = 1
    train: bool = False
    dropout: float = 0.0
    dtype: Any = jnp.float32
    width: int = 1

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
        activated = layers.norm(divided(x, constants.beta), "norm_1")
        activated = nn.relu(layers.shift(activated, "bias_1"))
        shortcut = x
        if self.stride > 1 or x.shape[-1] != self.features:
            shortcut = layers.projected(activated, self.features, self.stride)
        if not self.anatomy.branches:
            return shortcut

        inner = self.width * (self.features // EXPANSION)
        h = layers.conv(inner, size=1, name="conv_1")(layers.center(activated, "bias_2"))
        h = layers.dropped(h, 1)
        h = nn.relu(layers.shift(layers.norm(h, "norm_2"), "bias_3"))
        h = layers.conv(inner, stride=self.stride, name="conv_2")(layers.center(h, "bias_4"))
        h = layers.dropped(h, 2)
        h = nn.relu(layers.shift(layers.norm(h, "norm_3"), "bias_5"))
        h = last_conv(self, layers, layers.center(h, "bias_6"), "conv_3", layer=3, size=1)
        return layers.merged(shortcut, h, constants)


__all__ = ["EXPANSION", "Bottleneck", "PreActivationBottleneck"]
