"""What is alike in schemes that tune one factor for each weight by gradient descent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from nf_resnets import roles
from nf_resnets.init.tree import refuse_not_finite, scaled
from nf_resnets.roles import LAYER_ROLES, Leaf, RoleMap, Rules


def tunable(params: Any, batch: Any, rules: Rules | RoleMap | None) -> RoleMap:
    """The roles of a tree that has a weight to tune.

    Raises:
      ValueError: if the batch has no image, the tree no weight or not finite ones, or it is the
        tree of all variables.
    """
    shapes = [jnp.shape(of) for of in jax.tree.leaves(batch)]
    if not shapes or not all(shape and shape[0] for shape in shapes):
        shown = shapes[0] if len(shapes) == 1 else shapes
        raise ValueError(f"a batch of shape {shown} found; expected one image or more.")
    if isinstance(params, Mapping) and "params" in params:
        raise ValueError("params has the key 'params'; expected the tree under it.")
    role_map = roles.assign(params, rules)
    refuse_not_finite(params, role_map)
    if not any(map(is_tuned, role_map.leaves)):
        raise ValueError("no layer's weight found in params; expected at least one to tune.")
    return role_map


def is_tuned(leaf: Leaf) -> bool:
    """Whether a leaf has a factor."""
    return leaf.weight and leaf.role in LAYER_ROLES


def times(role_map: RoleMap, factors: Mapping[str, Any], params: Any) -> Any:
    """The tree with the leaves at these paths multiplied."""
    return role_map.map(
        lambda leaf, value: scaled(value, factors[leaf.path]) if leaf.path in factors else value,
        params,
    )


__all__ = ["is_tuned", "times", "tunable"]
