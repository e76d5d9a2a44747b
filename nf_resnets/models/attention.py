"""Multi-head attention as a residual branch."""

from __future__ import annotations

from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax

from nf_resnets.models.branch import Linear, begin, end, shift
from nf_resnets.models.dtypes import kept_small
from nf_resnets.schemes import Anatomy, BranchConstants
from nf_resnets.taps import tap

CACHE = "cache"
"""The collection of variables in which keys and values are kept while a sequence is continued."""


class Attention(nn.Module):
    r"""A residual branch of ``m = 4`` layers: query, key, value and out.

    ``F(x) = out(concat_h softmax(q_h k_h^T / sqrt(d_h)) v_h)``, Vaswani et al.'s section 3.2.2,
    with the key and the value of ``x`` itself (self-attention) or of the encoder's output (cross-
    attention). With Fixup's anatomy::

        h = attend(query(x + bias_in), key(x + bias_in), value(x + bias_in))
        y = x + multiplier * out(h + bias_out)

    In cross-attention key and value take the encoder's output, to which the encoder has added its
    bias. The softmax is no elementwise activation, and has no bias before it. (The authors' code
    has no ``bias_out`` either; the paper's rule 3 asks for it, and it starts at 0.)

    Attributes:
      num_heads: how many; each has ``D / num_heads`` channels.
      anatomy: what the scheme asks for.
      dropout: rate, at the end of the branch.
      dtype: what the layers compute in; the softmax is in float32.

    Source: Vaswani et al., *Attention Is All You Need*, NeurIPS 2017; Zhang, Dauphin, Ma, ICLR
    2019, section 4.3.
    """

    num_heads: int
    anatomy: Anatomy
    dropout: float = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: jax.Array,
        mask: jax.Array,
        constants: BranchConstants,
        memory: jax.Array | None = None,
        *,
        position: jax.Array | None = None,
        train: bool = False,
    ) -> jax.Array:
        """The sum of skip and branch, of the shape of ``x``.

        Args:
          x: ``[B, T, D]``.
          mask: bool ``[B or 1, 1, T or 1, S]``, whether a position of the keys may be attended to.
          constants: those of this branch.
          memory: the encoder's output ``[B, S, D]`` in cross-attention; else ``S = T``.
          position: int32 [], where the one token of ``x`` (``T = 1``) stands in a sequence of
            which the ``CACHE`` holds the keys and values before it; ``S`` is then the longest that
            the sequence may become. None for whole sequences.
          train: whether there is dropout.
        """
        x = tap(self, "input", x)
        linear = partial(Linear, x.shape[-1], use_bias=self.anatomy.conv_biases, dtype=self.dtype)
        h = shift(self, self.anatomy, begin(self, x, constants), "bias_in")
        query = self._heads(linear(name="query")(h))
        if position is None or (memory is not None and not self.has_variable(CACHE, "keys")):
            source = h if memory is None else memory
            key = self._heads(linear(name="key")(source))
            value = self._heads(linear(name="value")(source))
            if position is not None:
                # The encoder's output stays as it is: its keys and values are computed once.
                self.put_variable(CACHE, "keys", key)
                self.put_variable(CACHE, "values", value)
        elif memory is not None:
            key, value = self.get_variable(CACHE, "keys"), self.get_variable(CACHE, "values")
        else:
            key = self._kept("keys", self._heads(linear(name="key")(h)), mask, position)
            value = self._kept("values", self._heads(linear(name="value")(h)), mask, position)
        h = kept_small(attend, query)(query, key, value, mask).reshape(x.shape)
        h = linear(name="out")(shift(self, self.anatomy, h, "bias_out"))
        return end(self, x, h, constants, train=train)

    def _heads(self, x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:2], self.num_heads, -1)

    def _kept(self, name: str, new: jax.Array, mask: jax.Array, position: jax.Array) -> jax.Array:
        """Puts one token's keys or values where it stands, and gives those of the sequence."""
        shape = (new.shape[0], mask.shape[-1], *new.shape[2:])
        kept = self.variable(CACHE, name, jnp.zeros, shape, new.dtype)
        kept.value = lax.dynamic_update_slice_in_dim(kept.value, new, position, axis=1)
        return kept.value


def attend(query: jax.Array, key: jax.Array, value: jax.Array, mask: jax.Array) -> jax.Array:
    r"""``softmax(q k^T / sqrt(d)) v`` for every head, Vaswani et al.'s equation 1.

    Args:
      query: ``[B, T, heads, d]``.
      key: ``[B, S, heads, d]``.
      value: ``[B, S, heads, d]``.
      mask: bool ``[B or 1, 1, T or 1, S]``. A row without any True attends to all alike.

    Returns:
      ``[B, T, heads, d]``.

    Example:
      >>> ones = jnp.ones((1, 2, 1, 4))
      >>> value = jnp.arange(8.0).reshape(1, 2, 1, 4)
      >>> attend(ones, ones, value, jnp.tri(2, dtype=bool).reshape(1, 1, 2, 2))[0, :, 0].tolist()
      [[0.0, 1.0, 2.0, 3.0], [2.0, 3.0, 4.0, 5.0]]
    """
    scores = jnp.einsum("bthd,bshd->bhts", query * query.shape[-1] ** -0.5, key)
    scores = scores.astype(jnp.float32)
    # Not -inf: a row of nothing but padding would become NaN, and spoil every gradient.
    scores = jnp.where(mask, scores, jnp.finfo(jnp.float32).min)
    weights = jax.nn.softmax(scores).astype(value.dtype)
    return jnp.einsum("bhts,bshd->bthd", weights, value)


__all__ = ["CACHE", "Attention", "attend"]
