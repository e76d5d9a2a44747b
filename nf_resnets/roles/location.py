"""Which residual branches a leaf lies in that is no layer of theirs: a norm, a scalar, a bias.

Rules name the layers of the branches, and nothing says where a block begins. But a leaf of a block
shares its path with the layers: ``block_3/bn_1/scale`` lies beside ``block_3/conv_1/kernel``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import NamedTuple

from nf_resnets.roles.leaf import Leaf, Role
from nf_resnets.roles.rules import Rules

Path = tuple[str, ...]


class Location(NamedTuple):
    """Where a leaf lies.

    Attributes:
      branches: the numbers ``k`` of the branches beside it. A tuple for each group of branches
        that one path holds: one number, or those along a stacked axis.
      inside: whether it is in a block at all.
      name: what its path adds to that of the block.
    """

    branches: tuple[tuple[int, ...], ...] = ()
    inside: bool = False
    name: str = ""


def locate(leaves: Sequence[Leaf], rules: Rules) -> tuple[Location, ...]:
    """The location of every leaf of a tree."""
    pattern = re.compile(rules.branch or "(?!)")
    for separators in ("/.", "/._"):
        holders = _holders(leaves, pattern, separators)
        if all(holders):
            break
    blocks = _Blocks(holders)
    found = []
    for leaf in leaves:
        path = _split(leaf.path, separators)
        if leaf.role is Role.BRANCH:
            found.append(Location((leaf.branches,), True, path[-1]))
            continue
        block = blocks.around(path)
        if block is None:
            found.append(Location((), leaf.stacked, leaf.path))
        else:
            groups = tuple(dict.fromkeys(blocks.branches(block)))
            found.append(Location(groups, True, "/".join(path[len(block) :])))
    return tuple(found)


def _split(path: str, separators: str) -> Path:
    return tuple(filter(None, re.split(f"[{re.escape(separators)}]", path)))


def _holders(
    leaves: Sequence[Leaf], pattern: re.Pattern[str], separators: str
) -> dict[Path, list[tuple[int, ...]]]:
    """The paths that hold the layers of a branch, with the branches' numbers."""
    paths: dict[tuple[int, ...], list[str]] = {}
    for leaf in leaves:
        if leaf.role is Role.BRANCH:
            match = pattern.search(leaf.path)
            assert match is not None
            # Up to the group that orders the layers, where it took part.
            end = match.start(pattern.groups)
            paths.setdefault(leaf.branches, []).append(leaf.path[:end] if end >= 0 else leaf.path)
    holders: dict[Path, list[tuple[int, ...]]] = {}
    for branches, starts in paths.items():
        start = os.path.commonprefix(starts)
        cut = max(start.rfind(separator) for separator in separators)
        holders.setdefault(_split(start[: max(cut, 0)], separators), []).append(branches)
    return holders


class _Blocks:
    """The tree of the paths that hold branches."""

    def __init__(self, holders: dict[Path, list[tuple[int, ...]]]) -> None:
        self.holders = holders
        self.below: dict[Path, dict[str, None]] = {}
        for path in holders:
            for end in range(len(path)):
                self.below.setdefault(path[:end], {})[path[end]] = None
        self.common: Path = tuple(os.path.commonprefix(list(holders))) if holders else ()
        # Names of blocks that are told apart by their numbers alone, as in block_1, block_2.
        self.listed = {
            _stem(next(iter(names)))
            for names in self.below.values()
            if len(names) > 1 and len({_stem(name) for name in names}) == 1
        }
        self.known: dict[Path, bool] = {}

    def around(self, path: Path) -> Path | None:
        """The longest part of a path that is a block's, if there is one."""
        for end in range(len(path) - 1, -1, -1):
            start = path[:end]
            if start in self.holders or start in self.below:
                if start not in self.known:
                    self.known[start] = self._is_block(start)
                return start if self.known[start] else None
        return None

    def branches(self, block: Path) -> list[tuple[int, ...]]:
        if block in self.holders:
            return self.holders[block]
        return [found for name in self.below[block] for found in self.branches((*block, name))]

    def _is_block(self, path: Path) -> bool:
        if path in self.holders:
            return bool(path)
        # What all branches have in common is the network; a number may still make it a block.
        if len(path) <= len(self.common) and not (path and re.search(r"\d", path[-1])):
            return False
        inner = path
        while len(self.below.get(inner, ())) == 1 and inner not in self.holders:
            inner = (*inner, *self.below[inner])
        if inner in self.holders:
            between = inner[len(path) :]
            return not any(
                re.search(r"\d", name) and _stem(name) in self.listed for name in between
            )
        # A list has entries of one name; a block has branches of several, attention and mlp.
        return len({_stem(name) for name in self.below[inner]}) > 1


def _stem(name: str) -> str:
    return re.sub(r"\d+", "", name)


__all__ = ["Location", "locate"]
