"""The parts that make a block of one's own norm-free, as Flax NNX modules.

They compute what their namesakes in :mod:`nf_resnets.models` compute, from parameters of the same
names.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nf_resnets.models.conv import conv
from nf_resnets.models.dtypes import added, scaled
from nf_resnets.models.layers import RELU_GAIN, he_fan_out, standardized_kernel


class ScalarBias(nnx.Module):
    """As :class:`nf_resnets.models.ScalarBias`."""

    def __init__(self) -> None:
        self.bias_scalar = nnx.Param(jnp.zeros(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return added(x, self.bias_scalar[...])


class Multiplier(nnx.Module):
    """As :class:`nf_resnets.models.Multiplier`."""

    def __init__(self) -> None:
        self.multiplier = nnx.Param(jnp.ones(()))

    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return scaled(branch, self.multiplier[...])


class FixupNorm(nnx.Module):
    """As :class:`nf_resnets.models.FixupNorm`, called as NNX's norms are.

    Example:
      >>> FixupNorm(2, rngs=nnx.Rngs(0))(jnp.ones(2)).tolist()
      [1.0, 1.0]
    """

    def __init__(
        self,
        num_features: int,
        *,
        use_bias: bool = True,
        use_scale: bool = True,
        bias_init: Any = nnx.initializers.zeros,
        scale_init: Any = nnx.initializers.ones,
        dtype: Any = None,
        param_dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
        **of_statistics: Any,
    ) -> None:
        def scalar(init: Any) -> nnx.Param:
            return nnx.Param(init(rngs.params(), (), param_dtype))

        self.multiplier = scalar(scale_init) if use_scale else None
        self.bias_scalar = scalar(bias_init) if use_bias else None
        self.dtype = dtype

    def __call__(
        self, x: jax.Array, use_running_average: bool | None = None, *, mask: Any = None
    ) -> jax.Array:
        """An array of any shape to the same shape."""
        x = x if self.dtype is None else x.astype(self.dtype)
        if self.multiplier is not None:
            x = scaled(x, self.multiplier[...])
        return x if self.bias_scalar is None else added(x, self.bias_scalar[...])


class SkipInit(nnx.Module):
    """As :class:`nf_resnets.models.SkipInit`, with ``alpha`` for what it starts from."""

    def __init__(self, alpha: float = 0.0) -> None:
        self.alpha = nnx.Param(jnp.full((), alpha, jnp.float32))

    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return scaled(branch, self.alpha[...])


class ScaledWSConv(nnx.Module):
    """As :class:`nf_resnets.models.ScaledWSConv`, but with ``in_features`` and ``rngs``.

    The kernel is drawn from He (fan_out) with ``rngs.params``.

    Example:
      >>> conv = ScaledWSConv(3, 8, 3, rngs=nnx.Rngs(0))
      >>> jax.eval_shape(conv, jnp.ones((1, 4, 4, 3))).shape
      (1, 4, 4, 8)
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        size: int = 3,
        stride: int = 1,
        *,
        use_bias: bool = True,
        after_relu: bool = True,
        dtype: Any = jnp.float32,
        rngs: nnx.Rngs,
    ) -> None:
        shape = (size, size, in_features, features)
        self.kernel = nnx.Param(he_fan_out(rngs.params(), shape))
        self.gain = nnx.Param(jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features)) if use_bias else None
        self.stride, self.dtype = stride, dtype
        self.relu_gain = RELU_GAIN if after_relu else 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``."""
        scale = (self.gain[...] * self.relu_gain).reshape(1, 1, 1, -1)
        kernel = standardized_kernel(self.kernel[...]) * scale
        y = conv(x.astype(self.dtype), kernel.astype(self.dtype), self.stride)
        if self.bias is not None:
            y = added(y, self.bias[...].reshape(1, 1, 1, -1))
        return y
