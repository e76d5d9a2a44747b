"""The residual blocks, each with whatever the scheme's anatomy asks for.

A block computes ``identity * shortcut + residual * scalar * F(x)`` (see
:class:`nf_resnets.schemes.Anatomy`); what differs between architectures is where the activations
stand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets.models.layers import Conv, GhostBatchNorm, GroupNorm
from nf_resnets.schemes import Anatomy


class BasicBlock(nn.Module):
    r"""The post-activation block of a CIFAR ResNet, with two 3x3 convolutions (``m = 2``).

    With Fixup's anatomy it is the published block::

        h = relu(conv_1(x + bias_1a) + bias_1b)
        h = multiplier * conv_2(h + bias_2a) + bias_2b
        y = relu(h + shortcut)

    Where the shape changes, the shortcut is every second pixel of ``x + bias_1a``, with zeros for
    the new channels.

    Attributes:
      features: ``C_out``.
      stride: of the first convolution and the shortcut.
      anatomy: what the scheme asks for.
      bn_groups: into how many slices BatchNorm cuts the batch.
      train: whether BatchNorm uses the batch's statistics.
      dtype: what the convolutions compute in.

    Source: Zhang, Dauphin, Ma, ICLR 2019, figure 1 right; He et al., CVPR 2016, section 4.2.
    """

    features: int
    stride: int
    anatomy: Anatomy
    bn_groups: int = 1
    train: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        conv, norm, shift = layers_for(self, self.anatomy, train=self.train)
        biased = shift(x, "bias_1a")
        h = conv(self.features, stride=self.stride, name="conv_1")(biased)
        h = nn.relu(shift(norm(h, "norm_1"), "bias_1b"))
        h = conv(self.features, name="conv_2")(shift(h, "bias_2a"))
        h = shift(_scale_branch(self, norm(h, "norm_2")), "bias_2b")

        shortcut = biased if self.stride > 1 or x.shape[-1] != self.features else x
        shortcut = shortcut[:, :: self.stride, :: self.stride]
        new_channels = self.features - x.shape[-1]
        shortcut = jnp.pad(shortcut, ((0, 0), (0, 0), (0, 0), (0, new_channels)))
        return nn.relu(_merge(self.anatomy, shortcut, h))


class PreActivationBlock(nn.Module):
    r"""The pre-activation block of a Wide ResNet, with two 3x3 convolutions (``m = 2``).

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
      dtype: what the convolutions compute in.

    Source: He et al., *Identity Mappings*, ECCV 2016; Zagoruyko and Komodakis, BMVC 2016.
    """

    features: int
    stride: int
    anatomy: Anatomy
    bn_groups: int = 1
    train: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), features]``."""
        conv, norm, shift = layers_for(self, self.anatomy, train=self.train)
        activated = nn.relu(shift(norm(x, "norm_1"), "bias_1"))
        shortcut = x
        if self.stride > 1 or x.shape[-1] != self.features:
            shortcut = conv(self.features, size=1, stride=self.stride, name="shortcut")(activated)
        h = conv(self.features, stride=self.stride, name="conv_1")(shift(activated, "bias_2"))
        h = nn.relu(shift(norm(h, "norm_2"), "bias_3"))
        h = conv(self.features, name="conv_2")(shift(h, "bias_4"))
        return _merge(self.anatomy, shortcut, _scale_branch(self, h))


def layers_for(
    module: Any, anatomy: Anatomy, *, train: bool
) -> tuple[Callable[..., Conv], Callable[..., jax.Array], Callable[..., jax.Array]]:
    """The layers that an anatomy asks for, as functions to build a network or a block from.

    Args:
      module: the module whose layers they become; its ``bn_groups`` and ``dtype`` are used.
      anatomy: what the scheme asks for.
      train: whether BatchNorm uses the batch's statistics.

    Returns:
      ``conv(features, **options)``, a :class:`Conv` with or without bias vector; ``norm(x, name)``,
      which normalises, and ``shift(x, name)``, which adds one of Fixup's scalar biases, where the
      anatomy has them: else they return ``x``.
    """

    def norm(x: jax.Array, name: str) -> jax.Array:
        if anatomy.norm == "batch":
            return GhostBatchNorm(groups=module.bn_groups, train=train, name=name)(x)
        if anatomy.norm == "group":
            return GroupNorm(name=name)(x)
        return x

    def shift(x: jax.Array, name: str) -> jax.Array:
        if not anatomy.scalar_biases:
            return x
        return x + module.param(name, nn.initializers.zeros, ()).astype(x.dtype)

    return partial(Conv, use_bias=anatomy.conv_biases, dtype=module.dtype), norm, shift


def _scale_branch(block: Any, h: jax.Array) -> jax.Array:
    """Multiplies the branch by its learnable scalar."""
    for present, name in ((block.anatomy.multiplier, "multiplier"), (block.anatomy.alpha, "alpha")):
        if present:
            h = h * block.param(name, nn.initializers.ones, ()).astype(h.dtype)
    return h


def _merge(anatomy: Anatomy, shortcut: jax.Array, branch: jax.Array) -> jax.Array:
    """``identity * shortcut + residual * branch``."""
    if anatomy.identity != 1:
        shortcut = shortcut * anatomy.identity
    if anatomy.residual != 1:
        branch = branch * anatomy.residual
    return shortcut + branch


__all__ = ["BasicBlock", "PreActivationBlock", "layers_for"]
