"""The residual branches of a Transformer, each with whatever the scheme's anatomy asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.special import erf

from nf_resnets import random
from nf_resnets.models.blocks import Layers, divided, scaled_branch
from nf_resnets.models.dtypes import kept_small
from nf_resnets.models.layers import Dense, relu
from nf_resnets.models.parts import times
from nf_resnets.schemes import TRANSFORMER_NORMS, Anatomy, BranchConstants

CACHE = "cache"
"""The collection of variables in which keys and values are kept while a sequence is continued."""

START = 0.5
"""What DyT's and Derf's ``input_scale`` starts from, as published for all but language models."""


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


def xavier_uniform(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Draws ``[D_in, D_out]`` uniformly with variance ``2 / (D_in + D_out)``."""
    return random.uniform(key, shape, jnp.float32, (6 / sum(shape)) ** 0.5)


def linear_of(module: Any) -> Callable[..., Dense]:
    """The linear layers of a branch: ``linear_of(module)(features, name=)``."""
    biases = module.anatomy.conv_biases
    return partial(Dense, draw=xavier_uniform, use_bias=biases, dtype=module.dtype)


def norm_stands(anatomy: Anatomy, place: Literal["pre", "post"]) -> bool:
    """Whether there is a norm as a branch begins (``"pre"``) or after its sum (``"post"``)."""
    return anatomy.norm in TRANSFORMER_NORMS and anatomy.norm_place == place


def normalized(anatomy: Anatomy, x: jax.Array) -> jax.Array:
    """Layer normalization, Ba, Kiros and Hinton 2016, or what the anatomy has in its place.

    It is over the last axis of ``[B, T, D]`` and computes in float32.
    """
    if anatomy.norm != "layer":
        return kept_small(DynamicTanh, x)(erf=anatomy.norm == "derf", name="norm")(x)
    # The two-pass variance, for E[x^2] - E[x]^2 cancels where the mean is large.
    norm = kept_small(nn.LayerNorm, x)
    options = {"epsilon": 1e-5, "use_fast_variance": False, "dtype": jnp.float32}
    return norm(**options, name="norm")(x).astype(x.dtype)


def begin(module: Any, x: jax.Array, constants: BranchConstants) -> jax.Array:
    """A branch's input ``x / beta``, normalized in a network with the norm there, ``[B, T, D]``."""
    x = divided(x, constants.beta)
    return normalized(module.anatomy, x) if norm_stands(module.anatomy, "pre") else x


def end(
    module: Any, x: jax.Array, branch: jax.Array, constants: BranchConstants, *, train: bool
) -> jax.Array:
    """``identity * x + residual * scalar * dropout(branch)``, then the norm if it stands there."""
    branch = nn.Dropout(module.dropout, deterministic=not train)(branch)
    branch = scaled_branch(module, branch)
    y = times(x, constants.identity) + times(branch, constants.residual)
    return normalized(module.anatomy, y) if norm_stands(module.anatomy, "post") else y


class Attention(nn.Module):
    r"""A residual branch of ``m = 4`` layers: query, key, value and out.

    ``F(x) = out(concat_h softmax(q_h k_h^T / sqrt(d_h)) v_h)``, Vaswani et al.'s section 3.2.2,
    with the key and the value of ``x`` itself (self-attention) or of the encoder's output (cross-
    attention). With Fixup's anatomy::

        h = attend(query(x + bias_in), key(x + bias_in), value(x + bias_in))
        y = x + multiplier * out(h + bias_out)

    In cross-attention the encoder has added a bias to its output. The softmax is no elementwise
    activation, and has no bias before it. (The authors' code has no ``bias_out`` either; the
    paper's rule 3 asks for it.)

    Each of the ``num_heads`` has ``D / num_heads`` channels. ``dropout`` stands at the end of the
    branch. The softmax is in float32, whatever ``dtype`` the layers compute in.
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
        """The sum of skip and branch, ``[B, T, D]`` to the same shape.

        The ``mask``, bool ``[B or 1, 1, T or 1, S]``, says which positions may be attended to:
        those of the encoder's output ``memory [B, S, D]`` in cross-attention, else of ``x``. The
        ``position``, int32 [], is where the one token of ``x`` stands in a sequence of at most
        ``S`` tokens, of which the ``CACHE`` holds the keys and values so far.
        """
        linear = partial(linear_of(self), x.shape[-1])
        shift = Layers(self, self.anatomy).shift
        h = shift(begin(self, x, constants), "bias_in")
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
        h = linear(name="out")(shift(h, "bias_out"))
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
    r"""``softmax(q k^T / sqrt(d)) v [B, T, heads, d]``, Vaswani et al.'s equation 1.

    Key and value are ``[B, S, heads, d]``; a row of the mask without any True attends to all alike.

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


class FeedForward(nn.Module):
    r"""A residual branch of ``m = 2`` layers: ``F(x) = linear_2(relu(linear_1(x)))``.

    Vaswani et al.'s equation 2. With Fixup's anatomy::

        h = relu(linear_1(x + bias_1) + bias_relu)
        y = x + multiplier * linear_2(h + bias_2)

    ``d_ff`` are the features between the two; the other attributes are :class:`Attention`'s.
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
        linear, shift = linear_of(self), Layers(self, self.anatomy).shift
        h = shift(begin(self, x, constants), "bias_1")
        h = linear(self.d_ff, name="linear_1")(h)
        h = relu(shift(h, "bias_relu"))
        h = linear(x.shape[-1], name="linear_2")(shift(h, "bias_2"))
        return end(self, x, h, constants, train=train)
