"""Gradients that are damped at the beginning of training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from nf_resnets import roles
from nf_resnets.roles import Group, Leaf, Role, Rules

CHANNEL_BIASES = Group((Role.CHANNEL_BIAS,))
"""RescaleNet's biases."""


def damped(
    factor: float = 0.01,
    steps: int = 8,
    *,
    leaves: Group = CHANNEL_BIASES,
    rules: Rules | None = None,
) -> optax.GradientTransformation:
    r"""Multiplies the gradients of some leaves by a factor in the first steps.

    ``g <- factor g`` for ``t < steps``. By default they are those of RescaleNet's channel biases,
    in the 8 steps in which its published code finds the biases from the data and adds only a
    hundredth of what is learnt. (Its code multiplies the learnt part itself by 0.01 for so long;
    while that part is small the two are the same.)

    Args:
      factor: at least 0.
      steps: how many, counted from the first; at least 0.
      leaves: those whose gradients are damped.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      An optax gradient transformation, to be chained before the optimizer:
      ``optax.chain(damped(), sgd(0.1, scheme="rescalenet_published"))``.

    Raises:
      ValueError: if a number is out of its range; from the update, if the tree does not fit the
        rules.

    Source: Shao, Hu, Wang, Xue, Raj, *Is normalization indispensable for training deep neural
    networks?*, NeurIPS 2020, published code, hukkai/rescaling, ``models/layers.py``.

    Example:
      >>> grads = {"bias_head": {"vector": jnp.ones(2)}, "head": {"kernel": jnp.ones((2, 2))}}
      >>> damp = damped(steps=1)
      >>> updates, state = damp.update(grads, damp.init(grads))
      >>> round(float(updates["bias_head"]["vector"][0]), 4), float(updates["head"]["kernel"][0, 0])
      (0.01, 1.0)
      >>> float(damp.update(grads, state)[0]["bias_head"]["vector"][0])
      1.0
    """
    if not 0 <= factor < float("inf"):
        raise ValueError(f"factor={factor} found; expected a finite number, 0 or more.")
    if not isinstance(steps, int | np.integer) or steps < 0:  # the count would become a float
        raise ValueError(f"steps={steps} found; expected a whole number, 0 or more.")

    def update(updates: Any, count: jax.Array, params: Any = None) -> tuple[Any, jax.Array]:
        scale = jnp.where(count < steps, factor, 1.0)

        def scaled(leaf: Leaf, grad: Any) -> Any:
            return (grad * scale).astype(grad.dtype) if leaf in leaves else grad

        # No further than it counts: after 2**31 steps it would begin anew.
        later = jnp.minimum(count + 1, steps)
        return roles.assign(updates, rules).map(scaled, updates), later

    return optax.GradientTransformation(lambda params: jnp.zeros((), jnp.int32), update)


__all__ = ["damped"]
