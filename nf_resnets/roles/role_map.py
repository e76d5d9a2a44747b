"""The role map of a tree: the role of every leaf, and the residual branches they form."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from nf_resnets.roles.leaf import Branch, Leaf, Role, is_numeric, path_name
from nf_resnets.roles.rules import OUR_RULES, Rules

_MOST_BRANCHES = 12
_MOST_PATHS = 5
_OUTSIDE = (Role.EMBEDDING, Role.STEM, Role.SHORTCUT, Role.HEAD)
_BESIDE = (Role.SCALAR_BIAS, Role.CHANNEL_BIAS, Role.MULTIPLIER, Role.ALPHA, Role.NORM, Role.KEEP)


@dataclasses.dataclass(frozen=True)
class RoleMap:
    """The role of every leaf of one tree, and the residual branches they form.

    Attributes:
      leaves: one :class:`Leaf` for each leaf, in the order of ``jax.tree.leaves``.
      branches: the residual branches in order, ``branches[k - 1]`` being the k-th.
      rules: those that it was assigned by, None if it was read off the network's computation.
      beside: for each leaf the numbers ``k`` of the branches that it lies in, in the order of its
        stacked axis; none outside. Of rules they are those of the layers below the innermost path
        that it shares with some, if it does not share it with all.
    """

    leaves: tuple[Leaf, ...]
    branches: tuple[Branch, ...]
    rules: Rules | None
    _treedef: Any
    _paths: tuple[Any, ...]
    beside: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return "\n".join(_screen(self.leaves, self.branches))

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        return len(self.branches)

    @property
    def is_ours(self) -> bool:
        """Whether the names are those of this library's models."""
        return self.rules == OUR_RULES

    @functools.cached_property
    def _beside_of(self) -> dict[Leaf, tuple[int, ...]]:
        return dict(zip(self.leaves, self.beside, strict=True))

    def branches_of(self, leaf: Leaf, count: int, *, shared: bool = False) -> tuple[int, ...]:
        """The branches that a leaf lies in or beside, in the order of its stacked axis.

        Raises:
          ValueError: if there are not ``count`` or, of a leaf that may be ``shared``, as many for
            each slice.
        """
        branches = self._beside_of[leaf]
        if not branches or (len(branches) % count if shared else len(branches) != count):
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} ({leaf.role.value}) stands beside the "
                f"branches {', '.join(map(str, branches)) or 'none'}; expected {count}."
            )
        return branches

    @property
    def has_embedding(self) -> bool:
        """Whether the tree has embeddings, as a Transformer's."""
        return any(leaf.role is Role.EMBEDDING for leaf in self.leaves)

    def items(self, params: Any) -> list[tuple[Leaf, Any]]:
        """The leaves with their values."""
        return list(zip(self.leaves, jax.tree.leaves(params), strict=True))

    def part(self, params: Any, *, whole: bool = False) -> RoleMap:
        """The map of a tree that has some of the leaves, as ``optax.masked`` passes it on.

        Raises:
          ValueError: if a leaf of ``params`` is none of the tree's, or the tree must be ``whole``
            and is not.
        """
        places = {path: place for place, path in enumerate(self._paths)}
        flat, treedef = jax.tree_util.tree_flatten_with_path(params)
        kept = []
        for path, value in flat:
            place = places.get(path)
            shape = tuple(value.shape) if is_numeric(value) else ()
            if place is None or shape != self.leaves[place].shape:
                raise ValueError(
                    f"leaf {path_name(path)!r} {list(shape)} is none of the "
                    "tree that the roles were assigned for; expected that tree, or Rules in place "
                    "of the RoleMap."
                )
            kept.append(place)
        if whole and len(kept) < len(self.leaves):
            raise ValueError(
                f"params has {len(kept)} leaves; expected {len(self.leaves)}, as in the tree that "
                "the roles were assigned for."
            )
        if treedef == self._treedef:
            return self
        return dataclasses.replace(
            self,
            leaves=tuple(self.leaves[place] for place in kept),
            _treedef=treedef,
            _paths=tuple(path for path, _ in flat),
            beside=tuple(self.beside[place] for place in kept),
        )

    def map(self, function: Callable[[Leaf, Any], Any], params: Any) -> Any:
        """Applies ``function(leaf, value)`` to every leaf and returns a tree of the same kind."""
        return self._treedef.unflatten([function(*item) for item in self.items(params)])

    def labels(self, label: Callable[[Leaf], str] = lambda leaf: leaf.role.value) -> Any:
        """Returns a tree of strings, as ``optax.multi_transform`` takes it."""
        return self._treedef.unflatten([label(leaf) for leaf in self.leaves])

    def check_depth(self, depth: int) -> None:
        """Refuses a ``depth`` that is not the number of residual branches of the tree."""
        if isinstance(depth, bool) or not isinstance(depth, int | np.integer):
            raise TypeError(
                f"depth is a {type(depth).__name__}; expected a Python int, the number of residual "
                "branches L, which under jit is a static argument."
            )
        if depth != self.num_branches:
            raise ValueError(
                f"{self.num_branches} residual branches found, depth={depth} given; depth is L, "
                "the number of residual branches, not of layers (ResNet-110 has L = 54)."
            )


def _screen(leaves: Sequence[Leaf], branches: Sequence[Branch]) -> list[str]:
    """The branches with their layers, and what is outside of them, in a screen."""
    layers: dict[int, list[str]] = {branch.k: [] for branch in branches}
    outside: dict[Role, list[str]] = {role: [] for role in _OUTSIDE}
    for leaf in sorted(leaves, key=lambda leaf: leaf.layer):
        if leaf.role is Role.BRANCH and leaf.weight:
            for k in leaf.branches:
                layers[k].append(leaf.path)
        elif leaf.role in outside and leaf.weight:
            outside[leaf.role].append(leaf.path)
    sizes = sorted({branch.m for branch in branches})
    of_size = f", each of {' or '.join(map(str, sizes))} layer{'s' * (sizes != [1])}"
    shown = [f"{len(branches)} residual branches{of_size if sizes else ''}"]
    groups: dict[str, list[int]] = {}
    for k, paths in layers.items():
        groups.setdefault(_listed(paths), []).append(k)
    for names, ks in [*groups.items()][:_MOST_BRANCHES]:
        shown.append(f"  {_numbers(ks)}: {names}")
    hidden = sum(map(len, [*groups.values()][_MOST_BRANCHES:]))
    if hidden:
        shown.append(f"  and {hidden} more")
    shown += [f"{role.value}: {_listed(paths)}" for role, paths in outside.items() if paths]
    counts = [(role.value, sum(leaf.role is role for leaf in leaves)) for role in _BESIDE]
    others = [f"{count} {name}" for name, count in counts if count]
    return shown + (["leaves of no layer: " + ", ".join(others)] if others else [])


def _numbers(ks: Sequence[int]) -> str:
    if len(ks) < 3:
        return ", ".join(map(str, ks))
    return f"{ks[0]}..{ks[-1]}" if ks[1] == ks[0] + 1 else f"{ks[0]}, {ks[1]}..{ks[-1]}"


def _listed(paths: Sequence[str]) -> str:
    text = ", ".join(map(repr, paths[:_MOST_PATHS]))
    return text + (f" and {len(paths) - _MOST_PATHS} more" if paths[_MOST_PATHS:] else "")
