"""The layers that networks are made of: convolution, dense, channel bias, norms, dropout."""

from __future__ import annotations

import math
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets import random
from nf_resnets.models.conv import conv
from nf_resnets.models.dtypes import added, kept_small

RELU_GAIN = (2 / (1 - 1 / math.pi)) ** 0.5
"""``1 / std(relu(z))`` of ``z ~ N(0, 1)``, Brock, De, Smith, ICLR 2021, section 4.1."""

TIMM_GAIN = 1.7139588594436646
"""The same in timm, and in DeepMind's code, of a sample of random numbers."""

EPSILON, MOMENTUM = 1e-5, 0.9
"""Of BatchNorm: what is added to the variance, and what is kept of the running statistics."""


def he_fan_out(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws ``[K, K, C_in, C_out]`` or ``[D_in, D_out]`` from ``N(0, 2 / fan_out)``."""
    fan_out = math.prod((*shape[:-2], shape[-1]))
    return (2 / fan_out) ** 0.5 * random.normal(key, shape, jnp.float32)


def lecun_fan_in(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Draws a head's kernel ``[C, num_classes]`` from ``N(0, 1 / C)``."""
    return shape[0] ** -0.5 * random.normal(key, shape, jnp.float32)


def relu(x: jax.Array) -> jax.Array:
    """``max(x, 0)``, with a slope of 0 at 0; NaN stays NaN.

    XLA turns the NaN of a ``jax.nn.relu`` into 0 where it fuses it into a sum on a CPU, as in the
    mean before a head, so that a network that has overflowed has a finite loss.

    Example:
      >>> jax.jit(lambda x: relu(x).mean(axis=1))(jnp.array([[-1.0, 2.0], [jnp.nan, 1.0]])).tolist()
      [1.0, nan]
    """
    return jnp.where(x <= 0, jnp.zeros((), x.dtype), x)


class Conv(nn.Module):
    """A convolution of odd size; the kernel is ``[size, size, C_in, features]``.

    Attributes:
      features: ``C_out``.
      size: ``K``.
      stride: of the output positions.
      use_bias: whether it has a bias vector ``[C_out]``.
      standardized: whether it computes with :func:`standardized_kernel`, times a learnable
        ``gain [C_out]``: ``True``, or ``"timm"`` for timm's way.
      after_relu: whether its input is a ReLU's output, for which a standardised kernel makes up.
      dtype: what it computes in; the parameters are float32.
    """

    features: int
    size: int = 3
    stride: int = 1
    use_bias: bool = False
    standardized: bool | Literal["timm"] = False
    after_relu: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array, scalar: jax.Array | None = None) -> jax.Array:
        """``[B, H, W, C_in]`` to a scalar times ``[B, ceil(H/stride), ceil(W/stride), C_out]``."""
        shape = (self.size, self.size, x.shape[-1], self.features)
        kernel = self.param("kernel", he_fan_out, shape)
        if self.standardized:
            timm = self.standardized == "timm"
            of_relu = TIMM_GAIN if timm else RELU_GAIN if self.after_relu else 1.0
            scale = self.param("gain", nn.initializers.ones, (self.features,)) * of_relu
            kernel = standardized_kernel(kernel, timm=timm) * scale.reshape(1, 1, 1, -1)
        if scalar is not None:
            kernel = scalar * kernel
        x, kernel = x.astype(self.dtype), kernel.astype(self.dtype)
        y = conv(x, kernel, self.stride)
        # XLA's CPU compiler of jax 0.12 may merge several bfloat16 convolutions, and a pool, into
        # one kernel that returns NaN; over a barrier it merges nothing.
        if y.dtype == jnp.bfloat16:
            y = lax.platform_dependent(y, cpu=lax.optimization_barrier, default=lambda y: y)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            bias = bias if scalar is None else scalar * bias
            y = added(y, bias.reshape(1, 1, 1, -1))
        return y


def standardized_kernel(kernel: jax.Array, *, timm: bool = False) -> jax.Array:
    r"""``(W - mean) / (std sqrt(fan_in))`` of each output channel, scaled weight standardisation.

    Equation 1 of Brock, De, Smith, *Characterizing signal propagation to close the performance gap
    in unnormalized ResNets*, ICLR 2021, of a kernel ``[K, K, C_in, C_out]``. The quotient is finite
    by a least divisor or, in ``timm``, by what is added to the variance.
    """
    fan_in = math.prod(kernel.shape[:3])
    centered = kernel - kernel.mean(axis=(0, 1, 2), keepdims=True)
    variance = jnp.square(centered).mean(axis=(0, 1, 2), keepdims=True)
    if timm:
        return centered * lax.rsqrt((variance + 1e-5) * fan_in)
    return centered * lax.rsqrt(jnp.maximum(variance * fan_in, 1e-4))


def max_pool(x: jax.Array, size: int, stride: int, padding: int = 0) -> jax.Array:
    """The maxima over ``size x size`` windows."""
    pads = ((padding, padding), (padding, padding))
    return nn.max_pool(x, (size, size), strides=(stride, stride), padding=pads)


class ChannelBias(nn.Module):
    """A bias ``vector [C]``, which RescaleNet sets to minus a batch's channel means.

    Example:
      >>> ChannelBias().init(jax.random.key(0), jnp.ones((1, 2)))["params"]["vector"].tolist()
      [0.0, 0.0]
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C]`` to the same shape."""
        bias = self.param("vector", nn.initializers.zeros, (x.shape[-1],))
        return added(x, bias.reshape((1,) * (x.ndim - 1) + (-1,)))


def dropout(
    x: jax.Array, keys: jax.Array | None, rate: float, *, whole_channels: bool = False
) -> jax.Array:
    """Sets each number to 0 with probability ``rate`` and divides the others by ``1 - rate``.

    The PRNG ``keys [B]`` are one for each example of ``x [B, ..., C]``. With ``whole_channels`` one
    draw decides for all positions of a channel.

    Source: Srivastava et al., JMLR 2014; of whole channels: Tompson et al., *Efficient Object
    Localization Using Convolutional Networks*, CVPR 2015, section 3.2.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"dropout={rate} found; expected 0 <= dropout < 1.")
    if keys is None:
        raise missing_keys("dropout")
    drawn = x.shape[1:]
    if whole_channels:
        drawn = (1,) * (x.ndim - 2) + x.shape[-1:]
    keep = jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, drawn))(keys)
    return jnp.where(keep, x / (1 - rate), 0)


def missing_keys(what: str) -> ValueError:
    """The error of a network that is to draw at random and was given no keys."""
    return ValueError(
        f"keys=None found; a network with {what} needs one PRNG key for each example in training: "
        "model.apply(variables, images, train=True, keys=jax.random.split(key, B))."
    )


class GhostBatchNorm(nn.Module):
    r"""Batch normalization over each of ``groups`` equal slices of the batch.

    ``y = scale (x - mean) / sqrt(var + epsilon) + bias``, Ioffe and Szegedy's algorithm 1, with the
    mean and variance of one slice (a *ghost batch*, Hoffer et al. 2017). Running statistics are the
    average over the slices, the variance unbiased. The numbers do not depend on how many devices
    the slices are spread over.

    Attributes:
      groups: how many slices the batch is cut into.
      train: whether to use the batch's statistics (and update the running ones).
    """

    groups: int = 1
    train: bool = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C]`` to the same shape."""
        features = x.shape[-1]
        scale = self.param("scale", nn.initializers.ones, (features,))
        bias = self.param("bias", nn.initializers.zeros, (features,))
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, (features,))
        running_var = self.variable("batch_stats", "var", jnp.ones, (features,))

        if not self.train:
            factor = scale * lax.rsqrt(running_var.value + EPSILON)
            shift = bias - running_mean.value * factor
            return (x * factor.reshape(1, 1, 1, -1) + shift.reshape(1, 1, 1, -1)).astype(x.dtype)

        if x.shape[0] % self.groups:
            raise ValueError(
                f"a batch of {x.shape[0]} images cannot be cut into bn_groups={self.groups} equal "
                "parts for BatchNorm."
            )

        def normalized(
            x: jax.Array, scale: jax.Array, bias: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            parts = x.reshape(self.groups, -1, *x.shape[1:]).astype(jnp.float32)
            mean = parts.mean(axis=(1, 2, 3), keepdims=True)
            # The two-pass variance: E[x^2] - E[x]^2 cancels where the mean is large.
            var = jnp.square(parts - mean).mean(axis=(1, 2, 3), keepdims=True)
            y = (parts - mean) * lax.rsqrt(var + EPSILON)
            y = y * scale.reshape(1, 1, 1, 1, -1) + bias.reshape(1, 1, 1, 1, -1)
            return y.reshape(x.shape).astype(x.dtype), mean, var

        y, mean, var = kept_small(normalized, x)(x, scale, bias)
        if not self.is_initializing():
            count = x.size // (self.groups * features)
            unbiased = var.mean(axis=0).ravel() * (count / max(count - 1, 1))
            kept = 1 - MOMENTUM
            running_mean.value += kept * (mean.mean(axis=0).ravel() - running_mean.value)
            running_var.value += kept * (unbiased - running_var.value)
        return y


class GroupNorm(nn.Module):
    """Group normalization, Wu and He 2018, with at least four channels in a group.

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
        options = {"num_groups": groups, "epsilon": 1e-5, "use_fast_variance": False}
        return kept_small(nn.GroupNorm, x)(**options, name="norm")(x).astype(x.dtype)


class Dense(nn.Module):
    """A linear layer on the last axis, ``[..., D_in]`` to ``[..., features]``.

    Its ``kernel [D_in, features]`` is drawn by ``draw``, a head's by :func:`lecun_fan_in`; it and
    the ``bias [features]`` are float32, whatever ``dtype`` it computes in.
    """

    features: int
    draw: Any = he_fan_out
    use_bias: bool = True
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Multiplies by ``kernel`` and adds ``bias``, if there is one."""
        kernel = self.param("kernel", self.draw, (x.shape[-1], self.features))
        y = x.astype(self.dtype) @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = added(y, bias.reshape((1,) * (y.ndim - 1) + (-1,)))
        return y


def checked_images(images: Any) -> Any:
    """Returns images; refuses other shapes than ``[B, H, W, C]``, channels first above all."""
    shape = jnp.shape(images)
    first = len(shape) == 4 and shape[1] in (1, 3) and min(shape[2:]) > 4
    if len(shape) != 4 or first:
        raise ValueError(
            f"images of shape {list(shape)} found{', which look like [B, C, H, W]' * first}; "
            "expected [B, H, W, C]."
        )
    return images
