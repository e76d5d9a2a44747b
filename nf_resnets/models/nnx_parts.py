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
from nf_resnets.models.layers import STANDARDIZATIONS, he_fan_out, standardized_kernel
from nf_resnets.models.parts import times


class ScalarBias(nnx.Module):
    """Fixup's scalar bias: adds one learnable number ``bias_scalar []``, from 0.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3, rule 3.

    Example:
      >>> ScalarBias()(jnp.ones(2)).tolist()
      [1.0, 1.0]
    """

    def __init__(self) -> None:
        self.bias_scalar = nnx.Param(jnp.zeros(()))

    def __call__(self, x: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return x + self.bias_scalar[...].astype(x.dtype)


class Multiplier(nnx.Module):
    """Fixup's and RescaleNet's scalar on a branch: a learnable ``multiplier []``, from 1.

    Source: Zhang, Dauphin, Ma, ICLR 2019, section 3, rule 3; Shao et al., NeurIPS 2020, section 4.
    """

    def __init__(self) -> None:
        self.multiplier = nnx.Param(jnp.ones(()))

    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return times(branch, self.multiplier[...])


class SkipInit(nnx.Module):
    """SkipInit's scalar at the end of a branch: a learnable ``alpha []``.

    Args:
      alpha: what it starts from.

    Source: De, Smith, NeurIPS 2020, section 3; Bachlechner et al., UAI 2021, equation 1.
    """

    def __init__(self, alpha: float = 0.0) -> None:
        self.alpha = nnx.Param(jnp.full((), alpha, jnp.float32))

    def __call__(self, branch: jax.Array) -> jax.Array:
        """An array of any shape to the same shape."""
        return times(branch, self.alpha[...])


class ResidualScale(nnx.Module):
    """The sum of both paths times constants: ``identity * shortcut + residual * branch``.

    Those of the k-th branch of RescaleNet are at ``[k - 1]`` of
    ``schemes.get("rescalenet").constants(L)``. It has no parameters.

    Args:
      residual: a number.
      identity: a number.

    Source: Shao et al., NeurIPS 2020, section 4.
    """

    def __init__(self, residual: float = 1.0, identity: float = 1.0) -> None:
        self.residual, self.identity = float(residual), float(identity)

    def __call__(self, shortcut: jax.Array, branch: jax.Array) -> jax.Array:
        """Two arrays of one shape to their sum."""
        return times(shortcut, self.identity) + times(branch, self.residual)


class ScaledWSConv(nnx.Module):
    """A convolution of odd size with scaled standardised weights, padded alike on all sides.

    The kernel ``[K, K, C_in, C_out]`` is standardised in the forward pass and multiplied by a
    learnable ``gain [C_out]``, and by what makes up for a ReLU before it.

    Args:
      in_features: ``C_in``.
      features: ``C_out``.
      size: ``K``.
      stride: of the output positions.
      use_bias: whether it has a bias vector ``[C_out]``.
      after_relu: whether its input is the output of a ReLU.
      dtype: what it computes in; the parameters are float32.
      rngs: whose ``params`` the kernel is drawn with, from He (fan_out).

    Source: Brock, De, Smith, ICLR 2021, equation 1 and section 4.1.
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
        self.relu_gain = STANDARDIZATIONS[True].relu_gain if after_relu else 1.0

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, H, W, C_in]`` to ``[B, ceil(H / stride), ceil(W / stride), C_out]``."""
        scale = (self.gain[...] * self.relu_gain).reshape(1, 1, 1, -1)
        kernel = standardized_kernel(self.kernel[...]) * scale
        y = conv(x.astype(self.dtype), kernel.astype(self.dtype), self.stride)
        if self.bias is not None:
            y = y + self.bias[...].astype(self.dtype).reshape(1, 1, 1, -1)
        return y


__all__ = ["Multiplier", "ResidualScale", "ScalarBias", "ScaledWSConv", "SkipInit"]
