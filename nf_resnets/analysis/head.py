"""The head drawn at random, where a scheme starts it from zero."""

from __future__ import annotations

from typing import Any

import jax

from nf_resnets import random, roles
from nf_resnets.init.tree import cast_like
from nf_resnets.roles import Leaf, Role, Rules


def random_head(params: Any, key: jax.Array, *, rules: Rules | None = None) -> Any:
    """Draws the head from ``N(0, 1 / fan_in)`` and leaves all else as it is.

    Fixup's zero head keeps the gradient from every other layer in the first step; what its rules do
    to the residual branches shows with the head of a standard initialisation.

    Args:
      params: a parameter tree; the head's weight ``[C, num_classes]``. It is not changed.
      key: a JAX PRNG key.
      rules: what the paths of the tree mean; by default the names of this library's models.

    Returns:
      A tree of the same structure and dtypes, in which the head's bias vector is 0.

    Raises:
      ValueError: if the tree has not one head weight, or does not fit the rules.
      TypeError: if ``key`` is not a PRNG key.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"stem": {"kernel": jnp.ones((3, 3, 1, 8))}, "head": {"kernel": jnp.zeros((8, 4))}}
      >>> drawn = random_head(tree, jax.random.key(0))
      >>> bool((drawn["head"]["kernel"] != 0).all()), bool((drawn["stem"]["kernel"] == 1).all())
      (True, True)
    """
    role_map = roles.assign(params, rules)
    heads = [leaf.path for leaf in role_map.leaves if leaf.role is Role.HEAD and leaf.weight]
    if len(heads) != 1:
        raise ValueError(
            f"{len(heads)} head weights found in params ({', '.join(heads) or 'none'}); expected "
            "one (rules.head names it)."
        )

    def fill(leaf: Leaf, value: Any) -> Any:
        if leaf.role is not Role.HEAD:
            return value
        if not leaf.weight:
            return cast_like(value, 0)
        fan_in, _ = roles.fans(leaf)
        return cast_like(value, fan_in**-0.5 * random.normal(key, leaf.shape, "float32"))

    return role_map.map(fill, params)


__all__ = ["random_head"]
