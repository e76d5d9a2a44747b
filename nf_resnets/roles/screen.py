"""A role map in a screen: the branches with their layers, and what is outside of them."""

from __future__ import annotations

from collections.abc import Sequence

from nf_resnets.roles.leaf import Branch, Leaf, Role

MOST_BRANCHES = 12
MOST_PATHS = 5
_OUTSIDE = (Role.EMBEDDING, Role.STEM, Role.SHORTCUT, Role.HEAD)
_BESIDE = (Role.SCALAR_BIAS, Role.CHANNEL_BIAS, Role.MULTIPLIER, Role.ALPHA, Role.NORM, Role.KEEP)


def lines(leaves: Sequence[Leaf], branches: Sequence[Branch]) -> list[str]:
    """The lines that show a role map.

    Args:
      leaves: all leaves of the tree.
      branches: the residual branches in order.
    """
    layers: dict[int, list[Leaf]] = {branch.k: [] for branch in branches}
    for leaf in leaves:
        if leaf.role is Role.BRANCH and leaf.weight:
            for k in leaf.branches:
                layers[k].append(leaf)
    shown = [f"{len(branches)} residual branches{_sizes(branches)}"]
    groups: dict[str, list[int]] = {}
    for branch in branches:
        groups.setdefault(_names(layers[branch.k]), []).append(branch.k)
    for names, ks in [*groups.items()][:MOST_BRANCHES]:
        shown.append(f"  {_numbers(ks)}: {names}")
    hidden = sum(map(len, [*groups.values()][MOST_BRANCHES:]))
    if hidden:
        shown.append(f"  and {hidden} more")
    for role in _OUTSIDE:
        paths = [leaf.path for leaf in leaves if leaf.role is role and leaf.weight]
        if paths:
            shown.append(f"{role.value}: {_listed(paths)}")
    counts = [(role.value, sum(leaf.role is role for leaf in leaves)) for role in _BESIDE]
    others = [f"{count} {name}" for name, count in counts if count]
    return shown + (["leaves of no layer: " + ", ".join(others)] if others else [])


def _sizes(branches: Sequence[Branch]) -> str:
    found = sorted({branch.m for branch in branches})
    words = " or ".join(map(str, found))
    return f", each of {words} layer{'s' * (found != [1])}" if found else ""


def _numbers(ks: Sequence[int]) -> str:
    if len(ks) < 3:
        return ", ".join(map(str, ks))
    return f"{ks[0]}..{ks[-1]}" if ks[1] == ks[0] + 1 else f"{ks[0]}, {ks[1]}..{ks[-1]}"


def _names(layers: Sequence[Leaf]) -> str:
    ordered = sorted(layers, key=lambda leaf: leaf.layer)
    return _listed([leaf.path for leaf in ordered])


def _listed(paths: Sequence[str]) -> str:
    text = ", ".join(map(repr, paths[:MOST_PATHS]))
    return text + (f" and {len(paths) - MOST_PATHS} more" if paths[MOST_PATHS:] else "")


__all__ = ["lines"]
