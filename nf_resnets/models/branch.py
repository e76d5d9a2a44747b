"""How a residual branch of a Transformer begins and ends, with whatever the anatomy asks for."""

from __future__ import annotations

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets import random
from nf_resnets.models.blocks import divided, scaled_branch
from nf_resnets.models.dtypes import added, kept_small
from nf_resnets.models.dynamic_tanh import DynamicTanh
from nf_resnets.models.parts import shifted, times
from nf_resnets.schemes import TRANSFORMER_NORMS, Anatomy, BranchConstants
from nf_resnets.taps import merge


def xavier_uniform(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws ``[D_in, D_out]`` uniformly with variance ``2 / (D_in + D_out)``."""
    return random.uniform(key, shape, jnp.float32, (6 / sum(shape)) ** 0.5)


class Linear(nn.Module):
    """A linear layer on the last axis, Xavier-uniform as ``init`` draws it.

    Attributes:
      features: ``D_out``; the kernel is ``[D_in, D_out]``.
      use_bias: whether it has a bias vector ``[D_out]``.
      dtype: what it computes in; the parameters are float32.
    """

    features: int
    use_bias: bool = False
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, T, D_in]`` to ``[B, T, features]``."""
        kernel = self.param("kernel", xavier_uniform, (x.shape[-1], self.features))
        y = x.astype(self.dtype) @ kernel.astype(self.dtype)
        if self.use_bias:
            bias = self.param("bias", nn.initializers.zeros, (self.features,))
            y = added(y, bias.reshape(1, 1, -1))
        return y


def norm_stands(anatomy: Anatomy, place: Literal["pre", "post"]) -> bool:
    """Whether there is a norm as a branch begins (``"pre"``) or after its sum (``"post"``)."""
    return anatomy.norm in TRANSFORMER_NORMS and anatomy.norm_place == place


def normalized(anatomy: Anatomy, x: jax.Array) -> jax.Array:
    """Layer normalisation, Ba, Kiros and Hinton 2016, over the last axis of ``[B, T, D]``.

    With ``norm="dyt"`` or ``"derf"`` it is a :class:`DynamicTanh` in its place. It computes in
    float32, whatever ``x`` is in.
    """
    if anatomy.norm != "layer":
        return kept_small(DynamicTanh, x)(erf=anatomy.norm == "derf", name="norm")(x)
    # The two-pass variance, for E[x^2] - E[x]^2 cancels where the mean is large.
    norm = kept_small(nn.LayerNorm, x)
    options = {"epsilon": 1e-5, "use_fast_variance": False, "dtype": jnp.float32}
    return norm(**options, name="norm")(x).astype(x.dtype)


def shift(module: Any, anatomy: Anatomy, x: jax.Array, name: str) -> jax.Array:
    """Adds one of Fixup's scalar biases, where the anatomy has them."""
    return shifted(module, name, x) if anatomy.scalar_biases else x


def begin(module: Any, x: jax.Array, constants: BranchConstants) -> jax.Array:
    """A branch's input ``x / beta``, normalised in a network with the norm there, ``[B, T, D]``."""
    x = divided(x, constants.beta)
    return normalized(module.anatomy, x) if norm_stands(module.anatomy, "pre") else x


def end(
    module: Any, x: jax.Array, branch: jax.Array, constants: BranchConstants, *, train: bool
) -> jax.Array:
    """``identity * x + residual * scalar * dropout(branch)``, ``[B, T, D]``.

    It is normalised in a network with the norm after the sum.
    """
    branch = nn.Dropout(module.dropout, deterministic=not train)(branch)
    branch = scaled_branch(module, branch)
    y = merge(module, times(x, constants.identity), times(branch, constants.residual))
    return normalized(module.anatomy, y) if norm_stands(module.anatomy, "post") else y


__all__ = ["Linear", "begin", "end", "norm_stands", "normalized", "shift", "xavier_uniform"]
