"""The residual branches of a tree: which leaves are whose layers, and in which order."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from nf_resnets.roles.leaf import Branch, Leaf, Role
from nf_resnets.roles.rules import Rules


class _Group(NamedTuple):
    """A branch, or a stack of them, that the outer groups of ``rules.branch`` name."""

    outer: tuple[str, ...]  # what the outer groups match
    layers: dict[str, list[int]]  # the leaves' positions in the tree, by what the last one matches
    leaf: Leaf  # one of them
    prefix: str  # the path of its block


def number_branches(
    leaves: Sequence[Leaf], rules: Rules
) -> tuple[list[Leaf], list[Branch], list[tuple[int, ...]]]:
    """Groups the branch leaves by the groups of ``rules.branch`` and numbers them from 1.

    Returns:
      The leaves with ``branches``, ``layer`` and ``m``; the branches by their numbers; and for each
      leaf the numbers of the branches in whose block it is by its path.
    """
    texts: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for position, leaf in enumerate(leaves):
        if leaf.role is Role.BRANCH:
            *outer, last = _search(rules, leaf.path).groups("")
            texts.setdefault(tuple(outer), {}).setdefault(last, []).append(position)
    groups = [_group(outer, layers, leaves, rules) for outer, layers in texts.items()]
    groups.sort(key=lambda group: _natural(group.outer, rules.order))

    scans: dict[Any, list[_Group]] = {}
    for group in groups:
        key = _scan(group.leaf, rules) if group.leaf.stacked else group.outer
        scans.setdefault(key, []).append(group)
    branches: list[Branch] = []
    numbered = list(leaves)
    blocks: dict[str, list[int]] = {}  # a path that ends in / is that of one block
    for scan in scans.values():
        start = len(branches)
        for turn, group in enumerate(scan):
            numbers = tuple(start + 1 + turn + len(scan) * at for at in range(group.leaf.count))
            m, name = len(group.layers), group.prefix or group.leaf.path
            blocks[f"{group.prefix}/"] = []
            path = group.prefix
            while path:
                blocks.setdefault(path, []).extend(numbers)
                path = _parent(path)
            in_order = sorted(group.layers, key=lambda text: _natural((text,), rules.order))
            for j, layer in enumerate(in_order, start=1):
                for i in group.layers[layer]:
                    numbered[i] = dataclasses.replace(leaves[i], branches=numbers, layer=j, m=m)
            stacked = group.leaf.stacked
            branches += [
                Branch(k, f"{name}[{index}]" if stacked else name, m)
                for index, k in enumerate(numbers)
            ]
    beside = [leaf.branches or _beside(leaf, blocks, len(branches)) for leaf in numbered]
    return numbered, sorted(branches, key=lambda branch: branch.k), beside


def _search(rules: Rules, path: str) -> re.Match[str]:
    match = re.search(rules.branch or "", path)
    assert match is not None
    return match


def _group(
    outer: tuple[str, ...], layers: dict[str, list[int]], leaves: Sequence[Leaf], rules: Rules
) -> _Group:
    """A group of leaves as a branch, refused if they contradict each other."""
    members = [leaves[position] for at in layers.values() for position in at]
    prefix = _prefix(members, rules)
    name = prefix or members[0].path
    lengths = {leaf.count for leaf in members}
    if len(lengths) > 1:
        raise ValueError(
            f"the leaves of branch {name!r} are stacked over "
            f"{' and '.join(map(str, sorted(lengths)))} branches; expected one number."
        )
    for at in layers.values():
        count = sum(leaves[position].weight for position in at)
        if count != 1 or len(at) > 2:
            raise ValueError(
                f"leaf {leaves[at[0]].path!r} is in a layer of {count} weights and "
                f"{len(at) - count} vectors by the groups of rules.branch; expected one weight of "
                "two axes or more and at most one bias vector (a group that orders nothing is "
                "written (?:...))."
            )
    words = {re.sub(r"\d+", "", text) for text in layers}
    if len(words) > 1 and not set(layers) <= set(rules.order):
        raise ValueError(
            f"layers {', '.join(map(repr, sorted(layers)))} of residual branch {name!r} are told "
            "apart by words; expected rules.order to name them from the first to the last."
        )
    return _Group(outer, layers, members[0], prefix)


def _prefix(members: Sequence[Leaf], rules: Rules) -> str:
    """The path up to the key in which the outer groups end, or the layer's begins."""
    for leaf in members:
        match = _search(rules, leaf.path)
        start = match.start(match.re.groups)
        if start >= 0:
            end = max((match.end(at) for at in range(1, match.re.groups)), default=-1)
            key_end = re.compile(r"[/.]|$").search(leaf.path, max(end, 0))
            if end >= 0 and key_end and key_end.start() < start:
                return leaf.path[: key_end.start()]
            return _parent(leaf.path[:start])
    return ""


def _beside(leaf: Leaf, blocks: dict[str, list[int]], count: int) -> tuple[int, ...]:
    """The branches of the innermost path that holds both a leaf and blocks.

    What is beside all branches of the tree, and not stacked as they are, is in none.
    """
    path = leaf.path
    while path := _parent(path):
        if path in blocks:
            inside = len(blocks[path]) < count or leaf.stacked or f"{path}/" in blocks
            return tuple(sorted(blocks[path])) if inside else ()
    return ()


def _parent(path: str) -> str:
    return re.sub(r"(?:^|[/.])[^/.]*$", "", path)


def _natural(names: Sequence[str], order: tuple[str, ...]) -> tuple[Any, ...]:
    """Orders ``""`` before ``"2"`` before ``"10"`` before ``"b2"`` before ``"b10"``.

    Names in ``order`` stand before all others, as they stand there.
    """
    return tuple(
        ((-1, order.index(name), ""),)
        if name in order
        else tuple(
            (0, int(part), "") if part.isdecimal() else (1, 0, part)
            for part in re.findall(r"\d+|\D+", name)
        )
        for name in names
    )


def _scan(leaf: Leaf, rules: Rules) -> tuple[Any, ...]:
    """What the branches of one scan have in common, the length of the scan included."""
    match = re.search(rules.stacked or "", leaf.path)
    assert match is not None
    if match.re.groups:
        return ("", *match.groups(""), str(leaf.count))
    # A match may end within a key, as "stage_" in "stage_1/conv_1": the scan is "stage_1/".
    end = match.end()
    if match.group() and not match.group().endswith("/"):
        end = leaf.path.find("/", end) + 1 or end
    return leaf.path[:end], leaf.count


__all__ = ["number_branches"]
