"""What networks compute in: the numbers that their activations, and products, are made of.

Parameters, optimizer state, running statistics, the statistics of norms, logits and losses are
float32 in either case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp

Dtype = Literal["float32", "bfloat16"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
"""The names; the first is the default."""


def dtype_of(name: str) -> Any:
    """The dtype of a name, as networks take it; refuses others than :data:`DTYPES`."""
    if name not in DTYPES:
        raise ValueError(f"dtype={name!r} found; expected {' or '.join(DTYPES)}.")
    return getattr(jnp, name)


def kept_small(function: Callable[..., Any], x: jax.Array) -> Callable[..., Any]:
    """A function, or a class of modules, whose backward pass computes float32 intermediates again.

    In float32 it is the function itself.
    """
    if x.dtype == jnp.float32:
        return function
    return (nn.remat if isinstance(function, type) else jax.checkpoint)(function)


def added(x: jax.Array, bias: jax.Array) -> jax.Array:
    """``x + bias`` in the dtype of ``x``; the bias's gradient is summed in its own."""
    bias = jnp.asarray(bias)
    wide = jnp.promote_types(x.dtype, bias.dtype)
    return (x.astype(wide) + bias.astype(wide)).astype(x.dtype)


def scaled(x: jax.Array, scalar: jax.Array) -> jax.Array:
    """As :func:`added`, but ``x * scalar``."""
    wide = jnp.promote_types(x.dtype, scalar.dtype)

    def product(x: jax.Array, scalar: jax.Array) -> jax.Array:
        return (x.astype(wide) * scalar.astype(wide)).astype(x.dtype)

    return kept_small(product, x)(x, scalar)
