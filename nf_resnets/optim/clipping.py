"""Adaptive gradient clipping, which knows what the axes of a leaf are."""

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
    of a vector it is the whole, a scalar by itself. In a leaf that stacks the blocks of a scanned
    stage, every block is clipped as it would be alone; ``optax.adaptive_grad_clip`` would take a
    stack of kernels for the kernel of a three-dimensional convolution.

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
      ValueError: if a number is not above 0; from the update, if there are no parameters or the
        tree does not fit the rules.

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
    numbers: dict[str, Any] = {"clipping": clipping, "eps": eps}
    for name, value in numbers.items():
        if not isinstance(value, jax.core.Tracer) and not 0 < value < float("inf"):
            raise ValueError(f"{name}={value} found; expected a finite number above 0.")

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        if params is None:
            raise ValueError(
                "params=None found; adaptive clipping compares a gradient with its parameters: "
                "update(updates, state, params)."
            )
        role_map = role_map_of(params, rules)
        values = iter(jax.tree.leaves(params))

        def clipped(leaf: Leaf, grad: Any) -> Any:
            value = next(values)
            if leaf.role in exempt or not hasattr(value, "shape"):
                return grad
            largest = clipping * jnp.maximum(_unit_norms(leaf, value), eps)
            norms = _unit_norms(leaf, grad)
            # Where nothing is to be clipped the gradient is left bit for bit as it is.
            factor = jnp.where(norms > largest, largest / jnp.maximum(norms, 1e-30), 1.0)
            return (grad * factor).astype(grad.dtype)

        return role_map.map(clipped, updates), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def _unit_norms(leaf: Leaf, value: Any) -> jax.Array:
    """The norm of every unit, with axes of length 1 where it was summed over; in float32."""
    # Of a vector everything but the stacked axis is summed, of a weight what leads to one output.
    whole = "N" * leaf.stacked + "I" * (value.ndim - leaf.stacked)
    letters = leaf.axes or whole  # of a weight that is kept, too
    summed = tuple(axis for axis, letter in enumerate(letters) if letter not in "NO")
    squares = jnp.square(value.astype(jnp.float32))
    return jnp.sqrt(squares.sum(axis=summed, keepdims=True))


__all__ = ["adaptive_clip"]
