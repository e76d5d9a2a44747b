"""How many times as large as in a base network each leaf is: its inputs, outputs and depth."""

from __future__ import annotations

import math
from typing import NamedTuple

from nf_resnets.roles.leaf import Leaf, Role
from nf_resnets.roles.role_map import RoleMap

IN_BRANCH = (
    Role.BRANCH, Role.SCALAR_BIAS, Role.CHANNEL_BIAS, Role.MULTIPLIER, Role.ALPHA, Role.NORM,
)  # fmt: skip
"""The roles of which a leaf inside a residual block is a part of the branch."""


class Sizes(NamedTuple):
    """Ratios of one leaf to the same leaf of a base network."""

    inputs: float = 1.0  # of the inputs of a unit, taps included; 1 for embeddings and vectors
    outputs: float = 1.0  # of the outputs; for a vector, of its length
    depth: float = 1.0  # of the numbers of residual branches, L / L_base; 1 outside of branches
    role: Role = Role.BRANCH  # what the leaf is for
    weight: bool = True  # whether it is a weight, and no vector or scalar
    multiplier: float = 1.0  # of a constant by which the network multiplies what the leaf gives


def sizes(role_map: RoleMap, base: RoleMap, base_depth: int | None = None) -> list[Sizes]:
    """The ratios of every leaf, in the order of ``jax.tree.leaves``.

    The axes of each weight tell inputs from outputs, so that a stacked kernel is one of its layers.
    A ``keep=`` leaf counts as a vector. This library's networks multiply embeddings by the root of
    their width, which is the ``multiplier``; others are taken to multiply by nothing.

    Args:
      role_map: of the network.
      base: of the base network's tree, which has all leaves of the network, in other sizes: it
        may have more. Stacked kernels may be of another depth.
      base_depth: ``L_base``, the number of residual branches at which rates are tuned; by default
        those of ``base``.

    Raises:
      ValueError: if the base lacks a leaf, or ``base_depth`` is below 1.

    Example:
      >>> import numpy as np
      >>> from nf_resnets import roles
      >>> small, large = ({"head": {"kernel": np.ones((n, 10))}} for n in (16, 64))
      >>> ratios = sizes(roles.assign(large), roles.assign(small))
      >>> ratios[0].inputs, ratios[0].outputs
      (4.0, 1.0)
    """
    if base_depth is not None and not (isinstance(base_depth, int | float) and base_depth >= 1):
        raise ValueError(f"base_depth={base_depth!r} found; expected 1 or more.")
    others = {leaf.path: leaf for leaf in base.leaves}
    for leaf in role_map.leaves:
        other = others.get(leaf.path)
        if other is None or (len(other.shape), other.stacked) != (len(leaf.shape), leaf.stacked):
            size = "not there" if other is None else f"{list(other.shape)}"
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} is {size} in base; expected all leaves of "
                "params in other sizes, as in a network of this depth and the base's width "
                "(base_depth= says at which depth rates are tuned)."
            )
    depth = role_map.num_branches / (base_depth or base.num_branches or 1)
    stacked = {k for leaf in role_map.leaves if leaf.stacked for k in leaf.branches}
    ratios = []
    for leaf, branches in zip(role_map.leaves, role_map.beside, strict=True):
        # Of a stack of blocks, what is not stacked stands after it.
        inside = branches and (leaf.stacked or not {*branches} <= stacked)
        factor = depth if inside and leaf.role in IN_BRANCH else 1.0
        ratios.append(_of_leaf(leaf, others[leaf.path], factor, ours=role_map.is_ours))
    return ratios


def _of_leaf(leaf: Leaf, base: Leaf, depth: float, *, ours: bool) -> Sizes:
    if leaf.weight and leaf.role not in (Role.EMBEDDING, Role.KEEP):
        inputs, outputs = (leaf.length(axes) / base.length(axes) for axes in ("DHWI", "O"))
        return Sizes(inputs, outputs, depth, leaf.role)
    outputs = math.prod(leaf.own_shape) / math.prod(base.own_shape)
    multiplied = ours and leaf.role is Role.EMBEDDING
    return Sizes(1.0, outputs, depth, leaf.role, False, outputs**0.5 if multiplied else 1.0)
