"""The two linear layers at every position, as a residual branch."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets.models.branch import Linear, begin, end, shift
from nf_resnets.models.layers import relu
from nf_resnets.schemes import Anatomy, BranchConstants
from nf_resnets.taps import tap


class FeedForward(nn.Module):
    r"""A residual branch of ``m = 2`` layers: ``F(x) = linear_2(relu(linear_1(x)))``.

    Vaswani et al.'s equation 2. With Fixup's anatomy::

        h = relu(linear_1(x + bias_1) + bias_relu)
        y = x + multiplier * linear_2(h + bias_2)

    Attributes:
      d_ff: the features between the two.
      anatomy: what the scheme asks for.
      dropout: rate, at the end of the branch.
      dtype: what the layers compute in.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017; Zhang, Dauphin, Ma, ICLR
    2019, section 4.3.
    """

    d_ff: int
    anatomy: Anatomy
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self, x: jax.Array, constants: BranchConstants, *, train: bool = False
    ) -> jax.Array:
        """The sum of skip and branch, ``[B, T, D]`` to the same shape."""
        x = tap(self, "input", x)
        linear = partial(Linear, use_bias=self.anatomy.conv_biases, dtype=self.dtype)
        h = shift(self, self.anatomy, begin(self, x, constants), "bias_1")
        h = linear(self.d_ff, name="linear_1")(h)
        h = relu(shift(self, self.anatomy, h, "bias_relu"))
        h = linear(x.shape[-1], name="linear_2")(shift(self, self.anatomy, h, "bias_2"))
        return end(self, x, h, constants, train=train)


__all__ = ["FeedForward"]
