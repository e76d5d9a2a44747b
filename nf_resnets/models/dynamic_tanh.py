"""DyT and Derf: elementwise functions that stand in the place of a Transformer's LayerNorm."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.scipy.special import erf

START = 0.5
"""What ``input_scale`` starts from, as published for all but language models."""


class DynamicTanh(nn.Module):
    r"""``scale * tanh(input_scale * x) + bias``, elementwise: no statistic of ``x`` goes into it.

    The slope at 0 is ``scale * input_scale``. Derf, ``erf=True``, is ``scale * erf(input_scale * x
    + input_shift) + bias``, of a slope ``2 / sqrt(pi)`` times that. ``scale`` and ``bias [D]`` are
    one for each channel, from 1 and 0, ``input_scale`` and ``input_shift []`` one number, from 0.5
    and 0. It replaces LayerNorm and RMSNorm, and is not meant for BatchNorm.

    Attributes:
      erf: whether it is Derf.

    Source: Zhu, Chen, He, LeCun, Liu, *Transformers without Normalization*, CVPR 2025, section 4;
    Chen, Lu, Zhu, Sun, Liu, *Stronger Normalization-Free Transformers*, 2025.

    Example:
      >>> x = jnp.array([[1e-3, 1e3]])
      >>> DynamicTanh().init_with_output(jax.random.key(0), x)[0].tolist()
      [[0.0005, 1.0]]
    """

    erf: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., D]`` to the same shape, computed in float32."""
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, x.shape[-1:])
        y = x.astype(jnp.float32) * self.param("input_scale", nn.initializers.constant(START), ())
        if self.erf:
            y = erf(y + self.param("input_shift", nn.initializers.zeros, ()))
        else:
            y = jnp.tanh(y)
        each = (1,) * (x.ndim - 1) + (-1,)
        return (y * scale.reshape(each) + bias.reshape(each)).astype(x.dtype)


__all__ = ["START", "DynamicTanh"]
