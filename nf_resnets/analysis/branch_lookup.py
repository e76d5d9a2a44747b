"""Which residual branches a leaf of a tree stands beside, by the likeness of their paths."""

from __future__ import annotations

from nf_resnets.roles import Leaf, Role, RoleMap


def lookup_branches(leaf: Leaf, role_map: RoleMap, *, count: int) -> tuple[int, ...]:
    r"""The branches whose layers have most keys of their paths in common with a leaf.

    Args:
      leaf: a scalar of a branch, or a weight on the skip path.
      role_map: the roles of the tree that it is from.
      count: how many branches there must be.

    Returns:
      Their numbers ``k``, in the order of the leaf's stacked axis.

    Raises:
      ValueError: if it cannot be told which branches they are.

    Example:
      >>> from nf_resnets import roles
      >>> import numpy as np
      >>> tree = {f"block_{k}": {"conv_1": np.ones((3, 3, 8, 8)), "alpha": np.ones(())}
      ...         for k in (1, 2)}
      >>> found = roles.assign(tree, roles.Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha"))
      >>> [lookup_branches(leaf, found, count=1) for leaf in found.leaves if leaf.role == "alpha"]
      [(1,), (2,)]
    """
    layers = [other for other in role_map.leaves if other.role is Role.BRANCH]
    likeness = [_common_keys(leaf.path, other.path) for other in layers]
    found = {
        other.branches
        for other, like in zip(layers, likeness, strict=True)
        if like == max(likeness)
    }
    if len(found) != 1 or len(next(iter(found))) != count:
        raise ValueError(
            f"leaf {leaf.path!r} ({leaf.role.value}) stands beside the branches "
            f"{', '.join(map(str, sorted(found))) or 'none'}; expected {count} of one group."
        )
    return found.pop()


def _common_keys(first: str, second: str) -> int:
    ours, theirs = first.split("/"), second.split("/")
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


__all__ = ["lookup_branches"]
