"""Two zero factors in one branch: neither ever gets a gradient, and the branch never moves."""

from __future__ import annotations

import re
from typing import Any

from nf_resnets.init.norms import is_factor
from nf_resnets.init.tree import is_concrete, zero_rows
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.roles.location import Location
from nf_resnets.schemes import Scheme

# Of the skip path, whose factors do not stand in a row with those of the branch.
_SKIP = re.compile(
    r"shortcut|skip(?!_?(?:gain|init))|downsample|(?:norm|bn)_?proj|proj_?(?:norm|bn)"
)
# Attention with scores of 0 is a mean: its values have a gradient.
_SCORES = re.compile(r"(?:^|[/._])(?:query|key|q|k|wq|wk|[qk]_proj)(?:[/._]|$)")


def refuse_two_zeros(scheme: Scheme, params: Any, role_map: RoleMap) -> None:
    """Refuses a branch of which two factors are all zeros; of traced values nothing can be said.

    The product of two zeros has no gradient with regard to either: a last layer that Fixup sets to
    0 and a norm's scale of 0 behind it, a scalar of 0 behind a layer of zeros.

    Args:
      scheme: who made the tree.
      params: the tree as it is to be trained.
      role_map: its roles.

    Raises:
      ValueError: if there is such a branch; both leaves are named.
    """
    first: dict[int, str] = {}
    for (leaf, value), location in zip(role_map.items(params), role_map.locations, strict=True):
        # A leaf beside several branches stands in a row with one of them, and none knows which.
        if len(location.branches) != 1 or not _multiplies(leaf, location):
            continue
        if not is_concrete(value) or not hasattr(value, "dtype"):
            continue
        zero, branches = zero_rows(value, stacked=leaf.stacked), location.branches[0]
        if leaf.stacked and len(zero) != len(branches):
            continue
        for index, k in enumerate(branches):
            if not zero[index if leaf.stacked else 0]:
                continue
            if k in first:
                raise ValueError(
                    f"leaves {first[k]!r} and {leaf.path!r} of residual branch "
                    f"{role_map.branches[k - 1].name!r} are both zero after {scheme.title}, so "
                    "that neither ever gets a gradient; expected one zero factor in a branch at "
                    "most."
                )
            first[k] = leaf.path


def _multiplies(leaf: Leaf, location: Location) -> bool:
    if leaf.role is Role.BRANCH:
        return leaf.weight and not _SCORES.search(leaf.path)
    if leaf.role in (Role.NORM, Role.KEEP):
        return is_factor(leaf, location) and not _SKIP.search(location.name)
    return leaf.role in (Role.ALPHA, Role.MULTIPLIER)


__all__ = ["refuse_two_zeros"]
