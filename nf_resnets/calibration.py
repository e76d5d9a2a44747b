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
    """Adds the parameter of that name, a bias ``[C]``; when centring, minus the channels' means.

    Where the collection given holds what earlier passes found, it is minus the average of the means
    of all passes so far, this one's included.

    Args:
      module: the Flax module whose parameter it is.
      name: of the parameter; initialised to 0.
      x: ``[B, H, W, C]``.
    """
    bias = module.param(name, lambda _, shape: jnp.zeros(shape), (x.shape[-1],))
    if module.is_mutable_collection(CENTERING) and not module.is_initializing():
        found = -x.astype(jnp.float32).mean(axis=tuple(range(x.ndim - 1)))
        before = module.get_variable(CENTERING, name, jnp.zeros_like(found))
        count = module.get_variable(CENTERING, f"{name}_count", jnp.zeros(())) + 1
        bias = before + (found - before) / count
        module.put_variable(CENTERING, name, bias)
        module.put_variable(CENTERING, f"{name}_count", count)
    # The bias's gradient is summed in what the bias is, whatever the activations are.
    wide = jnp.promote_types(x.dtype, bias.dtype)
    bias = bias.astype(wide).reshape((1,) * (x.ndim - 1) + (-1,))
    return (x.astype(wide) + bias).astype(x.dtype)


def unit_variance(module: Any, name: str, y: jax.Array) -> jax.Array:
    """Returns a linear layer's output; when calibrating, divided by its standard deviation.

    Args:
      module: the Flax module whose weight it is.
      name: of the weight, which the factor is for.
      y: the layer's output without its bias, of any shape.

    Raises:
      ValueError: if the layer is applied twice in one pass: one factor cannot be right for both.
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
