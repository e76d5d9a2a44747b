"""Adaptive gradient clipping that knows the axes of each leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from nf_resnets.optim.groups import role_map_of
from nf_resnets.roles import Leaf, Role, RoleMap, Rules


def adaptive_clip(
    clipping: float,
    *,
    eps: float = 1e-3,
    exempt: tuple[Role, ...] = (Role.HEAD,),
    rules: Rules | RoleMap | None = None,
) -> optax.GradientTransformation:
    r"""Clips the gradient of every unit to a fraction of the unit's own norm.

    ``g_i <- g_i min(1, clipping max(|w_i|, eps) / |g_i|)`` for every unit ``i`` of a leaf, equation
    3: of a weight ``[H, W, C_in, C_out]`` or ``[D_in, D_out]`` a unit is what leads to one output;
    of a vector it is the whole. It is ``optax.adaptive_grad_clip`` with each leaf's axes: in a leaf
    that stacks the blocks of a scanned stage, every block is clipped as it would be alone.

    Args:
      clipping: the largest norm of a unit's gradient over that of the unit, above 0; it may be
        traced. Published for batches of 4,096 images: 0.01.
      eps: the norm that a unit is taken to have at least, above 0. Fixup's zero weights get
        gradients of no more than ``clipping * eps``, and so does every bias that begins at 0: name
        their roles in ``exempt``, or choose a larger one.
      exempt: the roles whose gradients stay as they are; as published, the head's.
      rules: what the paths of the tree mean, or its map; by default the names of this library's
        models.

    Raises:
      ValueError: from ``update``, if there are no parameters or the tree does not fit the rules.

    Source: Brock, De, Smith, Simonyan, *High-Performance Large-Scale Image Recognition Without
    Normalization*, ICML 2021, section 4.1.

    Example:
      >>> params = {"stem": {"kernel": jnp.array([[3.0, 0.3], [4.0, 0.4]])}}
      >>> grads = {"stem": {"kernel": jnp.ones((2, 2))}}
      >>> clip = adaptive_clip(0.1)
      >>> updates, _ = clip.update(grads, clip.init(params), params)
      >>> [round(float(value), 4) for value in updates["stem"]["kernel"][0]]
      [0.3536, 0.0354]
    """

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError("params=None found; expected update(gradients, state, params).")
        values = iter(jax.tree.leaves(params))

        def clipped(leaf: Leaf, grad: Any) -> Any:
            value = next(values)
            if leaf.role in exempt:
                return grad
            # Of a vector a unit is all but the stacked axis, of a weight all but the outputs.
            letters = leaf.axes or "N" * leaf.stacked + "I" * (jnp.ndim(grad) - leaf.stacked)
            axes = tuple(axis for axis, letter in enumerate(letters) if letter not in "NO")
            clip = optax.adaptive_grad_clip(clipping, eps, axis=axes)
            return clip.update(jnp.asarray(grad), state, jnp.asarray(value))[0]

        return role_map_of(params, rules).map(clipped, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)
