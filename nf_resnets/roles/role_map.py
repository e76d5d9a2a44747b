"""The role map of a tree: the role of every leaf, and the residual branches they form."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.roles import screen
from nf_resnets.roles.axes import refuse_biases, with_axes
from nf_resnets.roles.branches import number_branches
from nf_resnets.roles.leaf import LAYER_ROLES, Branch, Leaf, Role, path_name
from nf_resnets.roles.rules import OUR_RULES, Rules


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
        return "\n".join(screen.lines(self.leaves, self.branches))

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

    def branches_of(self, leaf: Leaf, count: int) -> tuple[int, ...]:
        r"""The branches that a scalar, a norm or a shortcut lies beside, by its path.

        Args:
          leaf: one of the tree's.
          count: how many branches there must be.

        Returns:
          Their numbers ``k``, in the order of the leaf's stacked axis.

        Raises:
          ValueError: if it cannot be told which branches they are.

        Example:
          >>> tree = {f"block_{k}": {"conv_1": np.ones((3, 3, 8, 8)), "alpha": np.ones(())}
          ...         for k in (1, 2)}
          >>> found = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)", alpha="alpha"))
          >>> [found.branches_of(leaf, 1) for leaf in found.leaves if leaf.role == "alpha"]
          [(1,), (2,)]
        """
        branches = self._beside_of[leaf]
        if len(branches) != count:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} ({leaf.role.value}) stands beside the "
                f"branches {', '.join(map(str, branches)) or 'none'}; expected {count} of one "
                "group."
            )
        return branches

    @property
    def has_embedding(self) -> bool:
        """Whether the tree has embeddings, as a Transformer's."""
        return any(leaf.role is Role.EMBEDDING for leaf in self.leaves)

    def items(self, params: Any) -> list[tuple[Leaf, Any]]:
        """The leaves with their values.

        Raises:
          ValueError: if the tree has another number of leaves.
        """
        values = jax.tree.leaves(params)
        if len(values) != len(self.leaves):
            raise ValueError(
                f"params has {len(values)} leaves; expected {len(self.leaves)}, as in the tree "
                "that the roles were assigned for."
            )
        return list(zip(self.leaves, values, strict=True))

    def refuse_other_tree(self, params: Any) -> None:
        """Refuses a tree with other leaves than the one that the roles were assigned for."""
        self.items(params)
        flat, _ = jax.tree_util.tree_flatten_with_path(params)
        for leaf, expected, (path, value) in zip(self.leaves, self._paths, flat, strict=True):
            shape = tuple(getattr(value, "shape", ())) if leaf.shape else leaf.shape
            if (path, shape) != (expected, leaf.shape):
                raise ValueError(
                    f"leaf {path_name(path)!r} {list(shape)} found where the tree that the roles "
                    f"were assigned for has {leaf.path!r} {list(leaf.shape)}; expected that tree, "
                    "or Rules in place of the RoleMap."
                )

    def part(self, params: Any) -> RoleMap:
        """The map of a tree that has some of the leaves, as ``optax.masked`` passes it on.

        Raises:
          ValueError: if a leaf of ``params`` is none of the tree's.
        """
        places = {path: place for place, path in enumerate(self._paths)}
        flat, treedef = jax.tree_util.tree_flatten_with_path(params)
        kept = []
        for path, value in flat:
            place = places.get(path)
            if place is None or getattr(value, "shape", ()) != self.leaves[place].shape:
                raise ValueError(
                    f"leaf {path_name(path)!r} {list(getattr(value, 'shape', ()))} is none of the "
                    "tree that the roles were assigned for; expected that tree or a part of it."
                )
            kept.append(place)
        return RoleMap(
            tuple(self.leaves[place] for place in kept),
            self.branches,
            self.rules,
            treedef,
            tuple(path for path, _ in flat),
            tuple(self.beside[place] for place in kept),
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
            shown = f"{depth!r} " if isinstance(depth, bool | float | str | None) else ""
            raise TypeError(
                f"depth={shown}({type(depth).__name__}) found; expected a Python int, the number "
                "of residual branches L, which under jit is a static argument."
            )
        if depth != self.num_branches:
            raise ValueError(
                f"{self.num_branches} residual branches found, depth={depth} given; depth is L, "
                "the number of residual branches, not of layers (ResNet-110 has L = 54)."
            )


def assign(params: Any, rules: Rules | RoleMap | None = None, *, part: bool = False) -> RoleMap:
    r"""Finds the role of every leaf of a parameter tree.

    Args:
      params: any pytree of arrays: of Flax Linen, NNX, Haiku, Equinox or hand-written. Weights are
        ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``, or as ``rules.layout`` and ``rules.axes`` say,
        with one more leading axis where ``rules.stacked`` says so.
      rules: what the paths mean; by default the names of this library's models. A
        :class:`RoleMap` that was assigned to a tree of this structure is returned as it is, so that
        an initialiser that calls another assigns roles once.
      part: whether ``params`` may be a part of a tree, as inside ``optax.masked``: then expressions
        may match nothing, and branches are not numbered.

    Returns:
      The :class:`RoleMap` of the tree.

    Raises:
      ValueError: if the tree is empty or not that of the :class:`RoleMap`, a weight is matched by
        no rule or a leaf by two, a rule matches nothing, a weight's dtype is not a floating-point
        one, the leaves of a branch contradict each other or words order its layers and
        ``rules.order`` does not, a bias vector has not as many values as its layer has outputs, or
        a kernel of default layout has the taps of the other one.
      TypeError: if ``rules`` is no :class:`Rules`, or ``params`` no tree with arrays in it.

    Example:
      >>> tree = {"block_2": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))},
      ...         "block_10": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))}}
      >>> role_map = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
      >>> [branch.name for branch in role_map.branches]
      ['block_2', 'block_10']
    """
    if isinstance(rules, RoleMap):
        if part:
            return rules.part(params)
        rules.refuse_other_tree(params)
        return rules
    if rules is not None and not isinstance(rules, Rules):
        raise TypeError(f"rules is a {type(rules).__name__}; expected nf_resnets.init.Rules.")
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    if not flat and params is not None:
        raise ValueError("params is an empty tree; expected a tree with at least one weight.")
    if not any(_is_numeric_array(value) for _, value in flat):
        raise TypeError(
            f"params is a {type(params).__name__} without a single array; expected a tree of "
            "arrays, such as model.init(key, images)['params']."
        )
    used = OUR_RULES if rules is None else rules
    leaves = [_classify(path_name(path), value, used) for path, value in flat]
    leaves = with_axes(leaves, used)
    paths = tuple(path for path, _ in flat)
    if part:
        return RoleMap(tuple(leaves), (), used, treedef, paths, ((),) * len(leaves))
    _refuse_unmatched(leaves, used)
    _refuse_same_paths(leaves)
    leaves, branches, beside = number_branches(leaves, used)
    refuse_biases(leaves)
    return RoleMap(tuple(leaves), tuple(branches), used, treedef, paths, tuple(beside))


_SCALARS = (Role.SCALAR_BIAS, Role.MULTIPLIER, Role.ALPHA)


def _classify(path: str, value: Any, rules: Rules) -> Leaf:
    matches = [role for role, pattern in rules.patterns() if re.search(pattern, path)]
    if not _is_numeric_array(value):
        if type(value) in (int, float) and matches and matches[0] in _SCALARS:
            raise ValueError(
                f"leaf {path!r} ({matches[0].value}) is the Python number {value!r}; expected an "
                "array."
            )
        return Leaf(path, Role.KEEP)
    if len(matches) > 1:
        raise ValueError(
            f"leaf {path!r} is matched by two rules, rules.{matches[0].value} and "
            f"rules.{matches[1].value}; expected one."
        )
    stacked = rules.stacked is not None and re.search(rules.stacked, path) is not None
    shape = tuple(value.shape)
    if stacked and not shape:
        raise ValueError(
            f"leaf {path!r} is a scalar but rules.stacked matches it; expected a leading axis that "
            "runs over branches."
        )
    role = matches[0] if matches else Role.KEEP
    if 0 in shape and role is not Role.KEEP:
        raise ValueError(f"leaf {path!r} has shape {shape}; expected no axis of length 0.")
    if role is not Role.KEEP and not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"leaf {path!r} ({role.value}) has dtype {value.dtype}; expected a floating-point one."
        )
    return Leaf(path, role, shape, stacked, weight=len(shape) - stacked >= 2)


def _is_numeric_array(value: Any) -> bool:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return False
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _refuse_unmatched(leaves: Sequence[Leaf], rules: Rules) -> None:
    """Refuses weights that no rule matches, and rules that match no leaf."""
    given = rules != OUR_RULES
    unknown = [
        f"{leaf.path!r} {list(leaf.shape)}"
        for leaf in leaves
        if leaf.role is Role.KEEP and leaf.weight and not re.search(rules.keep or "(?!)", leaf.path)
    ]
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if unknown[5:] else "")
        advice = (
            "name it in rules=, in keep= if it is to stay as it is"
            if given
            else "these are not the names of this library's models, so pass network= and inputs=, "
            "or rules=init.Rules(...)"
        )
        raise ValueError(f"no rule says what the weight {shown} is; {advice}.")
    if not given:
        return
    named = [(role.value, pattern) for role, pattern in rules.patterns()]
    named += [("axes", pattern) for pattern in dict(rules.axes)]
    named += [("stacked", rules.stacked)] if rules.stacked is not None else []
    for name, pattern in named:
        # What was taken over from our own rules serves all of our networks.
        may_miss = name in rules.optional or pattern == getattr(OUR_RULES, name)
        if not may_miss and not any(re.search(pattern, leaf.path) for leaf in leaves):
            raise ValueError(
                f"rules.{name}={pattern!r} matches no leaf of params; its paths are like "
                + ", ".join(repr(leaf.path) for leaf in leaves[:3])
                + "."
            )


def _refuse_same_paths(leaves: Sequence[Leaf]) -> None:
    """Refuses layers of one path, as of ``{"a/b": {"w": ...}, "a": {"b/w": ...}}``."""
    seen = set()
    for leaf in leaves:
        if leaf.role in LAYER_ROLES and leaf.path in seen:
            raise ValueError(f"two leaves have the path {leaf.path!r}; expected one.")
        seen.add(leaf.path)


__all__ = ["RoleMap", "assign"]
