"""Parameter groups as label trees: which leaves are weights, which are Fixup's scalars."""

from __future__ import annotations

from typing import Any

from nf_resnets import roles
from nf_resnets.roles import Leaf, Role, Rules

SCALARS = (Role.SCALAR_BIAS, Role.MULTIPLIER)
"""The roles that train at a tenth of the learning rate, by the Fixup paper's code."""


def label_tree(
    params: Any, rules: Rules | None = None, *, scalars: tuple[Role, ...] = SCALARS
) -> Any:
    """Labels each leaf ``"scalar"`` or ``"weight"``.

    Args:
      params: a parameter tree.
      rules: what its paths mean; by default the names of this library's models.
      scalars: the roles labelled ``"scalar"``; ``(*SCALARS, Role.ALPHA)`` adds SkipInit's.

    Returns:
      A tree of the same structure with a string for each leaf, as ``optax.multi_transform`` takes
      it.

    Raises:
      ValueError: if the tree does not fit the rules (see :func:`nf_resnets.roles.assign`).

    Example:
      >>> import jax.numpy as jnp
      >>> label_tree({"stem": {"kernel": jnp.ones((3, 3, 3, 16))}, "bias_stem": jnp.zeros(())})
      {'bias_stem': 'scalar', 'stem': {'kernel': 'weight'}}
    """

    def label(leaf: Leaf) -> str:
        return "scalar" if leaf.role in scalars else "weight"

    return roles.assign(params, rules).labels(label)


__all__ = ["SCALARS", "label_tree"]
