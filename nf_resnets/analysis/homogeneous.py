"""Positively homogeneous sets: which parameters scale the logits when they are scaled together.

``theta_ph`` is positively homogeneous (p.h.) if ``f(x; alpha theta_ph) = alpha f(x; theta_ph)`` for
every ``alpha > 0``, definition 2 of the Fixup paper. In a ReLU network without normalisation and
with zero biases these are, by its figure 2: a layer before the first branch, the head, and the
union of a convolution on the skip path with one convolution of the branch beside it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import jax

from nf_resnets import roles
from nf_resnets.init.tree import all_zero, is_concrete
from nf_resnets.roles import Leaf, Role, RoleMap, Rules
from nf_resnets.roles.axes import is_bias


@dataclasses.dataclass(frozen=True)
class HomogeneousSet:
    """A positively homogeneous set of weights of one tree.

    Attributes:
      name: the paths of its weights, joined by ``" + "``.
      role: of the weight that it was built from: stem, head or shortcut.
      members: for each weight its position in ``jax.tree.leaves``, and its index on the stacked
        axis or None.
    """

    name: str
    role: Role
    members: tuple[tuple[int, int | None], ...]

    def of(self, tree: Any) -> list[jax.Array]:
        """The set's arrays in a tree like the parameters, such as a gradient."""
        leaves = jax.tree.leaves(tree)
        return [leaves[at] if index is None else leaves[at][index] for at, index in self.members]

    def scale(self, params: Any, alpha: float) -> Any:
        """The parameters with this set times ``alpha`` and all others as they are."""
        leaves = jax.tree.leaves(params)
        for at, index in self.members:
            if index is None:
                leaves[at] = alpha * leaves[at]
            else:
                leaves[at] = leaves[at].at[index].multiply(alpha)
        return jax.tree.unflatten(jax.tree.structure(params), leaves)


def homogeneous_sets(
    params: Any, *, rules: Rules | None = None, shortcuts: bool = True
) -> tuple[HomogeneousSet, ...]:
    """Finds the p.h. sets of figure 2 in a parameter tree, by the roles of its leaves.

    (1) each weight of the stem, (2) the head's weight, (3) for each convolution on a skip path and
    each weight of the branch beside it, the two together. The branch beside a shortcut is the one
    with its channels in and out, and among several the one whose path is most like its own. A
    network whose shortcuts have no weights has no set (3).

    Args:
      params: a parameter tree, or the shapes of one.
      rules: what the paths of the tree mean; by default the names of this library's models.
      shortcuts: whether to look for the sets (3).

    Returns:
      The sets, in this order.

    Raises:
      ValueError: if the tree does not fit the rules, or not just one branch fits a shortcut best.

    Source: Zhang, Dauphin, Ma, ICLR 2019, definition 2 and figure 2.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {"stem": {"kernel": jnp.ones((3, 3, 1, 8))}, "head": {"kernel": jnp.ones((8, 4))}}
      >>> [found.name for found in homogeneous_sets(tree)]
      ['stem/kernel', 'head/kernel']
    """
    role_map = roles.assign(params, rules)
    numbered = list(enumerate(role_map.leaves))
    sets = []
    for role in (Role.STEM, Role.HEAD):
        for at, leaf in numbered:
            if leaf.role is role and leaf.weight:
                sets.append(HomogeneousSet(leaf.path, role, ((at, None),)))
    for at, leaf in numbered:
        if shortcuts and leaf.role is Role.SHORTCUT and leaf.weight:
            for weight, other in _branch_of(leaf, numbered):
                name = f"{leaf.path} + {other.path}"
                for index in range(leaf.shape[0]) if leaf.stacked else [None]:
                    indexed = name if index is None else f"{name} [{index}]"
                    members = ((at, index), (weight, index))
                    sets.append(HomogeneousSet(indexed, Role.SHORTCUT, members))
    return tuple(sets)


def _branch_of(shortcut: Leaf, numbered: Sequence[tuple[int, Leaf]]) -> list[tuple[int, Leaf]]:
    """The weights of the residual branch beside a shortcut's, in order."""
    length = shortcut.shape[0] if shortcut.stacked else 1
    groups: dict[tuple[int, ...], list[tuple[int, Leaf]]] = {}
    for at, leaf in numbered:
        alike = leaf.stacked == shortcut.stacked and len(leaf.branches) == length
        if leaf.role is Role.BRANCH and leaf.weight and alike:
            groups.setdefault(leaf.branches, []).append((at, leaf))
    layers = [sorted(group, key=lambda pair: pair[1].layer) for group in groups.values()]
    own = _channels(shortcut)
    fitting = [
        group for group in layers if (_channels(group[0][1])[0], _channels(group[-1][1])[1]) == own
    ]
    path = shortcut.path.split("/")
    common = [len(os.path.commonprefix([path, g[0][1].path.split("/")])) for g in fitting]
    best = [group for group, n in zip(fitting, common, strict=True) if n == max(common)]
    if len(best) != 1:
        raise ValueError(
            f"{len(best)} residual branches found beside the shortcut {shortcut.path!r} "
            f"({', '.join(group[0][1].path for group in best) or 'none'}); expected one branch of "
            f"its channels, {own[0]} to {own[1]}, whose path is most like its own, or "
            "shortcuts=False."
        )
    return best[0]


def _channels(leaf: Leaf) -> tuple[int, int]:
    """``(C_in, C_out)`` of a weight."""
    roles.axes_of(leaf)  # refuses a layout that is not known
    return leaf.length("I"), leaf.length("O")


def refuse_inhomogeneous(params: Any, role_map: RoleMap) -> None:
    """Refuses a tree whose network is not positively homogeneous, as far as its leaves tell.

    Raises:
      ValueError: if a bias is not 0 (those that are traced cannot be looked at), or the tree has
        parameters of a normalisation layer or of an embedding.
    """
    for leaf, value in zip(role_map.leaves, jax.tree.leaves(params), strict=True):
        if leaf.role in (Role.NORM, Role.EMBEDDING):
            raise ValueError(
                f"leaf {leaf.path!r} ({leaf.role.value}) found; expected a network that is "
                "positively homogeneous, without normalisation or attention, as Theorems 1 and 2 "
                "assume."
            )
        vector = leaf.role in roles.LAYER_ROLES or is_bias(leaf.path)
        bias = (vector and not leaf.weight) or leaf.role in (Role.SCALAR_BIAS, Role.CHANNEL_BIAS)
        if bias and is_concrete(value) and not all_zero(value):
            raise ValueError(
                f"leaf {leaf.path!r} is a bias that is not 0; expected all biases to be 0, as at "
                "initialisation, as Theorems 1 and 2 assume."
            )


__all__ = ["HomogeneousSet", "homogeneous_sets", "refuse_inhomogeneous"]
