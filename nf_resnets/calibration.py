"""Numbers that are set once from a batch: each layer finds its own while the batch passes through.

Applied with one of these collections mutable, a network computes with the numbers that it is just
finding, so that one pass sets all layers in order, each on the outputs of those before it that are
set already. The collection comes back beside the output, with the names of the parameters that the
numbers are for; :mod:`nf_resnets.init` puts them there.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

CENTERING = "centering"
"""The Flax collection of the biases that make a batch's channel means 0."""

UNIT_VARIANCE = "unit_variance"
"""The Flax collection of the factors that make the variance of a layer's output 1."""


def centered(module: Any, name: str, x: jax.Array) -> jax.Array:
    """Adds a module's bias of that name, ``[C]``, from 0; when centring, minus the channels' means.

    Where the collection holds earlier passes' values, it is minus the average of the means of all
    passes so far, this one's included.
    """
    bias = module.param(name, lambda _, shape: jnp.zeros(shape), (x.shape[-1],))
    if module.is_mutable_collection(CENTERING) and not module.is_initializing():
        shift = -x.astype(jnp.float32).mean(axis=tuple(range(x.ndim - 1)))
        before = module.get_variable(CENTERING, name, jnp.zeros_like(shift))
        count = module.get_variable(CENTERING, f"{name}_count", jnp.zeros(())) + 1
        bias = before + (shift - before) / count
        module.put_variable(CENTERING, name, bias)
        module.put_variable(CENTERING, f"{name}_count", count)
    # The bias's gradient is summed in what the bias is, whatever the activations are.
    wide = jnp.promote_types(x.dtype, bias.dtype)
    bias = bias.astype(wide).reshape((1,) * (x.ndim - 1) + (-1,))
    return (x.astype(wide) + bias).astype(x.dtype)


def unit_variance(module: Any, name: str, y: jax.Array) -> jax.Array:
    """Returns a layer's output without its bias; when calibrating, divided by its deviation.

    ``name`` is that of the module's weight, which the factor is for. A layer that is applied twice
    in one pass is refused: one factor cannot be right for both.
    """
    if module.is_mutable_collection(UNIT_VARIANCE) and not module.is_initializing():
        if module.has_variable(UNIT_VARIANCE, name):
            raise ValueError(
                f"layer {'/'.join(module.path)!r} is applied twice in one pass; expected one "
                "output, whose variance is set to 1."
            )
        variance = y.astype(jnp.float32).var()
        # Of an output that is constant nothing can be said: its weight stays as it is. (What is not
        # finite must not pass for constant.)
        factor = jnp.where(variance == 0, 1.0, lax.rsqrt(jnp.maximum(variance, 1e-30)))
        module.put_variable(UNIT_VARIANCE, name, factor)
        y = y * factor.astype(y.dtype)
    return y


__all__ = ["CENTERING", "UNIT_VARIANCE", "centered", "unit_variance"]
