"""Two zero factors in a row, in a branch or a head: neither ever gets a gradient."""

from __future__ import annotations

import itertools
import re
from typing import Any

from nf_resnets.init.norms import is_factor
from nf_resnets.init.tree import all_zero, is_concrete, zero_rows
from nf_resnets.roles import Leaf, Role, RoleMap
from nf_resnets.roles.axes import layer_of
from nf_resnets.roles.location import Location
from nf_resnets.schemes import Scheme

# Of the skip path, whose factors do not stand in a row with those of the branch.
_SKIP = re.compile(
    r"shortcut|skip(?!_?(?:gain|init))|downsample|(?:norm|bn)_?proj|proj_?(?:norm|bn)"
)
# Attention with scores of 0 is a mean: its values have a gradient.
_SCORES = re.compile(r"(?:^|[/._])(?:query|key|q|k|wq|wk|[qk]_proj)(?:[/._]|$)")


def refuse_two_zeros(scheme: Scheme, params: Any, role_map: RoleMap) -> None:
    """Refuses a branch or head with two factors of zeros; of traced values nothing can be said.

    The product of two zeros has no gradient with regard to either: a last layer that Fixup sets to
    0 and a norm's scale of 0 behind it, a scalar of 0 behind a layer of zeros, a head of two layers
    that are both 0.

    Args:
      scheme: who made the tree.
      params: the tree as it is to be trained.
      role_map: its roles.

    Raises:
      ValueError: if there is such a branch or head; both leaves are named.
    """
    by_name = role_map.rules is not None  # else a head is the last layer alone
    if by_name:
        _refuse_zero_heads(scheme.title, params, role_map)
    first: dict[int, str] = {}
    for (leaf, value), location in zip(role_map.items(params), role_map.locations, strict=True):
        # A leaf beside several branches stands in a row with one of them, and none knows which.
        multiplies = _multiplies(leaf, location) if by_name else _ends(leaf)
        if len(location.branches) != 1 or not multiplies:
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


def _refuse_zero_heads(title: str, params: Any, role_map: RoleMap) -> None:
    """Refuses two layers of the head that are all zeros and follow each other by their widths."""
    zero = [
        leaf
        for leaf, value in role_map.items(params)
        if leaf.role is Role.HEAD and leaf.weight and leaf.axes
        if is_concrete(value) and all_zero(value)
    ]
    for one, two in itertools.permutations(zero, 2):
        if _module(one) == _module(two) and _follows(one, two):
            raise ValueError(
                f"leaves {one.path!r} {list(one.shape)} and {two.path!r} {list(two.shape)} of the "
                f"head are both zero after {title}, so that neither ever gets a gradient; expected "
                "rules.head to match the last layer alone, and rules.stem the others."
            )


def _module(leaf: Leaf) -> str:
    """The module that holds a leaf's layer."""
    return layer_of(leaf.path).replace(".", "/").rpartition("/")[0]


def _follows(one: Leaf, two: Leaf) -> bool:
    """Whether a layer takes what another gives, and not what that one takes, as one beside it."""
    given, taken = one.length("O"), two.length("I") * two.groups
    numbered = re.sub(r"\d+", "", one.path) == re.sub(r"\d+", "", two.path) and one.path < two.path
    if taken == one.length("I") * one.groups and not numbered:
        return False
    flattened = one.length("DHW") * two.length("DHW") == 1 and len(one.axes) > len(two.axes)
    return given == taken or (flattened and taken % given == 0)


def _ends(leaf: Leaf) -> bool:
    """Whether a leaf that was read off the computation multiplies the end of a branch."""
    last = leaf.role is Role.BRANCH and leaf.weight and leaf.layer == leaf.m
    return last or leaf.role in (Role.ALPHA, Role.MULTIPLIER)


def _multiplies(leaf: Leaf, location: Location) -> bool:
    if leaf.role is Role.BRANCH:
        return leaf.weight and not _SCORES.search(leaf.path)
    if leaf.role in (Role.NORM, Role.KEEP):
        return is_factor(leaf, location) and not _SKIP.search(location.name)
    return leaf.role in (Role.ALPHA, Role.MULTIPLIER)


__all__ = ["refuse_two_zeros"]
