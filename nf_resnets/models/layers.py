"""The layers that blocks are made of: convolution, ghost batch norm, group norm, head."""

from __future__ import annotations

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets import draws
from nf_resnets.models.conv import conv


def he_fan_out(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws ``[K, K, C_in, C_out]`` from ``N(0, 2 / fan_out)``, the standard of convolutions."""
    return (2 / math.prod((*shape[:2], shape[3]))) ** 0.5 * draws.normal(key, shape, jnp.float32)


def lecun_fan_in(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws ``[C, num_classes]`` from ``N(0, 1 / C)``, the standard of heads."""
    return shape[0] ** -0.5 * draws.normal(key, shape, jnp.float32)


class Conv(nn.Module):
    """A convolution of odd size, padded alike on all sides.

    Attributes:
      features: ``C_out``.
      size: ``K``; the kernel is ``[K, K, C_in, C_out]``.
      stride: of the output positions.
      use_bias: whether it has a bias vector ``[C_out]``.
      dtype: what it computes in; the parameters are float32.
    """

    features: int
    size: int = 3
    stride: int = 1
    use_bias: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", he_fan_out, shape)
        y = conv(x.astype(self.dtype), kernel.astype(self.dtype), self.stride)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + bias.astype(self.dtype).reshape(1, 1, 1, -1)
        return y


class GhostBatchNorm(nn.Module):
    r"""Batch normalisation over each of ``groups`` equal slices of the batch.

    ``y = scale (x - mean) / sqrt(var + epsilon) + bias``, Ioffe and Szegedy's algorithm 1, with the
    mean and variance of one slice (a *ghost batch*, Hoffer et al. 2017). Running statistics are the
    average over the slices, the variance unbiased. With one slice on each device this is what
    ``pmap`` does; with a fixed number of slices the numbers do not depend on the number of devices.

    Attributes:
      groups: how many slices the batch is cut into.
      train: whether to use the batch's statistics (and update the running ones).
      momentum: of the running statistics.
      epsilon: added to the variance.
    """

    groups: int = 1
    train: bool = True
    momentum: float = 0.9
    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C]`` to the same shape."""
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))

        if not self.train:
            factor = scale * lax.rsqrt(running_var.value + self.epsilon)
            shift = bias - running_mean.value * factor
            return (x * factor.reshape(1, 1, 1, -1) + shift.reshape(1, 1, 1, -1)).astype(x.dtype)

        if x.shape[0] % self.groups:
            raise ValueError(
                f"a batch of {x.shape[0]} images cannot be cut into bn_groups={self.groups} equal "
                "parts for BatchNorm."
            )
        parts = x.reshape(self.groups, -1, *x.shape[1:]).astype(jnp.float32)
        mean = parts.mean(axis=(1, 2, 3), keepdims=True)
        # The two-pass variance: E[x^2] - E[x]^2 cancels where the mean is large.
        var = jnp.square(parts - mean).mean(axis=(1, 2, 3), keepdims=True)
        if not self.is_initializing():
            count = parts.size // (self.groups * features)
            unbiased = var.mean(axis=0).ravel() * (count / max(count - 1, 1))
            running_mean.value += (1 - self.momentum) * (
                mean.mean(axis=0).ravel() - running_mean.value
            )
            running_var.value += (1 - self.momentum) * (unbiased - running_var.value)
        y = (parts - mean) * lax.rsqrt(var + self.epsilon)
        y = y * scale.reshape(1, 1, 1, 1, -1) + bias.reshape(1, 1, 1, 1, -1)
        return y.reshape(x.shape).astype(x.dtype)


class GroupNorm(nn.Module):
    """Group normalisation, Wu and He 2018, with at least four channels in a group.

    There are 32 groups, as in the paper, or the largest power of two below that divides the
    channels and leaves four in a group (64 channels: 16 groups).
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C]`` to the same shape."""
        groups = math.gcd(32, x.shape[-1])
        # A group of one channel would turn 1 x 1 images into zeros.
        while groups > 1 and x.shape[-1] // groups < 4:
            groups //= 2
        # The two-pass variance, for E[x^2] - E[x]^2 cancels where the mean is large.
        norm = nn.GroupNorm(num_groups=groups, epsilon=1e-5, use_fast_variance=False, name="norm")
        return norm(x).astype(x.dtype)


class Head(nn.Module):
    """The classification layer: ``[B, C]`` to logits ``[B, num_classes]``, in float32."""

    num_classes: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiplies by ``kernel [C, num_classes]`` and adds ``bias [num_classes]``."""
        kernel = self.param("kernel", lecun_fan_in, (x.shape[-1], self.num_classes))
        bias = self.param("bias", nn.initializers.zeros, (self.num_classes,))
        return x.astype(jnp.float32) @ kernel + bias.reshape(1, -1)


__all__ = ["Conv", "GhostBatchNorm", "GroupNorm", "Head", "he_fan_out"]
