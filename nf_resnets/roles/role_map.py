"""The role map of a tree: the role of every leaf, and the residual branches they form."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.roles import screen
from nf_resnets.roles.axes import ends_in_bias, with_axes
from nf_resnets.roles.branch_checks import (
    orders_by_text,
    refuse_layers_beside,
    refuse_missing_skips,
    refuse_order_of_names,
    refuse_unused_order,
)
from nf_resnets.roles.branches import number_branches
from nf_resnets.roles.grouped import with_groups
from nf_resnets.roles.layout import refuse_broken_chain
from nf_resnets.roles.leaf import LAYER_ROLES, Branch, Leaf, Role, path_name
from nf_resnets.roles.location import Location, locate
from nf_resnets.roles.rules import OUR_RULES, Rules
from nf_resnets.roles.vectors import refuse_factors


@dataclasses.dataclass(frozen=True)
class RoleMap:
    """The role of every leaf of one tree, and the residual branches they form.

    Attributes:
      leaves: one :class:`Leaf` for each leaf, in the order of ``jax.tree.leaves``.
      branches: the residual branches in order, ``branches[k - 1]`` being the k-th.
      rules: those that it was assigned by, None if it was read off the network's computation.
    """

    leaves: tuple[Leaf, ...]
    branches: tuple[Branch, ...]
    rules: Rules | None
    _treedef: Any
    _paths: tuple[Any, ...]
    _locations: tuple[Location, ...] | None = None

    def __str__(self) -> str:
        return "\n".join(screen.lines(self.leaves, self.branches))

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        return len(self.branches)

    @property
    def orders_by_text(self) -> list[tuple[str, ...]]:
        """The names of layers, in order, of each kind of branch in which their letters order."""
        return [] if self.rules is None else orders_by_text(self.leaves, self.rules)

    @property
    def is_ours(self) -> bool:
        """Whether the names are those of this library's models."""
        return self.rules == OUR_RULES

    @functools.cached_property
    def locations(self) -> tuple[Location, ...]:
        """Which branches each leaf lies beside."""
        if self._locations is not None:
            return self._locations
        assert self.rules is not None
        return locate(self.leaves, self.rules)

    @functools.cached_property
    def _location_of(self) -> dict[Leaf, Location]:
        return dict(zip(self.leaves, self.locations, strict=True))

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
        found = self._location_of[leaf].branches
        if len(found) != 1 or len(found[0]) != count:
            raise ValueError(
                f"leaf {leaf.path!r} {list(leaf.shape)} ({leaf.role.value}) stands beside the "
                "branches "
                f"{', '.join(map(str, sorted(found))) or 'none'}; expected {count} of one group."
            )
        return found[0]

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
                "the number of residual branches, not of layers (ResNet-110 has L = 54)"
                f"{self._forgotten_axis(int(depth)) or self._one_group()}."
            )

    def _one_group(self) -> str:
        """What to say of an expression that names no branches."""
        if self.rules is None:
            return ""
        given = self.rules.branch is not None and re.compile(self.rules.branch).groups == 1
        return given * (
            "; the groups before the last one of rules.branch tell the branches apart, and it has "
            "one group"
        )

    def _forgotten_axis(self, depth: int) -> str:
        """What to say of leading axes that would run over the branches that are missing."""
        members: dict[tuple[int, ...], list[Leaf]] = {}
        for leaf in self.leaves:
            if leaf.branches:
                members.setdefault(leaf.branches, []).append(leaf)
        lengths = {k: _common_length(of_one) for k, of_one in members.items()}
        longest = [of_one[0] for k, of_one in members.items() if lengths[k] > 1]
        if not longest or sum(lengths[k] * len(k) for k in lengths) != depth:
            return ""
        leaf = longest[0]
        if leaf.stacked:
            return (
                f"; the second axis of leaf {leaf.path!r} {list(leaf.shape)} looks stacked, too, "
                "as of a scan within a scan, and rules.stacked says it of the first one alone: "
                f"reshape the two to one of {math.prod(leaf.shape[:2])}"
            )
        return (
            f"; leaf {leaf.path!r} {list(leaf.shape)} looks stacked over {leaf.shape[0]} branches, "
            "which rules.stacked must say"
        )


def _common_length(leaves: Sequence[Leaf]) -> int:
    """The axis that all leaves of a branch have before those of their layers, or 1."""
    found = set()
    for leaf in leaves:
        own = leaf.own_shape
        # A convolution along one axis has as many axes as a stack of dense layers; one in a plane
        # has equal taps.
        in_plane = len(own) == 4 and own[0] == own[1]
        spare = len(own) >= 3 and not in_plane if leaf.weight else len(own) == 2
        found.add(own[0] if spare else 1)
    return found.pop() if len(found) == 1 else 1


def assign(params: Any, rules: Rules | RoleMap | None = None) -> RoleMap:
    r"""Finds the role of every leaf of a parameter tree.

    Args:
      params: any pytree of arrays: of Flax Linen, NNX, Haiku, Equinox or hand-written. Weights are
        ``[H, W, C_in, C_out]`` or ``[C_in, C_out]``, or as ``rules.layout`` and ``rules.axes`` say,
        with one more leading axis where ``rules.stacked`` says so.
      rules: what the paths mean; by default the names of this library's models. A
        :class:`RoleMap` that was assigned to a tree of this structure is returned as it is, so that
        an initialiser that calls another assigns roles once.

    Returns:
      The :class:`RoleMap` of the tree.

    Raises:
      ValueError: if the tree is empty or not that of the :class:`RoleMap`, a weight is matched by
        no rule or a leaf by two, a factor by that of a layer, a rule matches nothing, a weight's
        dtype is not a floating-point one, the leaves of a branch contradict each other, names put
        its layers in an order that its widths speak against, one of them is a shortcut, a gate or
        a layer that feeds the output by its looks, they are those of two branches, or a branch has
        no skip path by its.
      TypeError: if ``rules`` is no :class:`Rules`, or ``params`` no tree with arrays in it.

    Example:
      >>> tree = {"block_2": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))},
      ...         "block_10": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))}}
      >>> role_map = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
      >>> [branch.name for branch in role_map.branches]
      ['block_2', 'block_10']
    """
    if isinstance(rules, RoleMap):
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
    leaves = with_axes(leaves, used, params, [path for path, _ in flat])
    _refuse_unmatched(leaves, used)
    _refuse_same_paths(leaves)
    _refuse_ensemble(leaves, used)
    leaves, branches = number_branches(leaves, used)
    refuse_factors(leaves)
    leaves = with_groups(leaves, used)
    refuse_broken_chain(leaves)
    refuse_layers_beside(leaves, branches, used)
    refuse_order_of_names(leaves, branches, used)
    refuse_missing_skips(leaves, branches, used)
    if "order" not in used.optional and used.order != OUR_RULES.order:
        refuse_unused_order(leaves, used)
    paths = tuple(path for path, _ in flat)
    return RoleMap(tuple(leaves), tuple(branches), used, treedef, paths)


_SCALARS = (Role.SCALAR_BIAS, Role.MULTIPLIER, Role.ALPHA)
_IN_A_LIST_OF_LISTS = re.compile(r"[/.\[]\d+\]?[/.\[]\d+\]?$")


def _classify(path: str, value: Any, rules: Rules) -> Leaf:
    matches = [role for role, pattern in rules.patterns() if re.search(pattern, path)]
    if not _is_numeric_array(value):
        # One of a layer is that of a list of lists; a module may hold others, as a dropout's rate.
        numbered = matches and matches[0] in LAYER_ROLES and _IN_A_LIST_OF_LISTS.search(path)
        if type(value) in (int, float) and matches and (matches[0] in _SCALARS or numbered):
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
    if stacked and role is Role.HEAD and len(shape) == 2 and not ends_in_bias(path):
        raise ValueError(
            f"leaf {path!r} {list(shape)} (head) is matched by rules.stacked, which takes its "
            "first axis for one over branches; expected rules.stacked not to match it."
        )
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


def _refuse_ensemble(leaves: Sequence[Leaf], rules: Rules) -> None:
    """Refuses a tree whose leaves all have one more axis, the dense head too: that of networks."""
    layers = [leaf for leaf in leaves if leaf.role in LAYER_ROLES and leaf.shape]
    first = {leaf.shape[0] for leaf in layers}
    heads = [leaf for leaf in layers if leaf.role is Role.HEAD and leaf.weight]
    of_dense = (
        bool(heads) and len(layers) > len(heads) and all(len(leaf.shape) == 3 for leaf in heads)
    )
    if of_dense and len(first) == 1 < min(first) and not rules.axes:
        raise ValueError(
            f"all layers, {heads[0].path!r} {list(heads[0].shape)} too, have a first axis of "
            f"{min(first)}, as of {min(first)} networks in one tree; expected one network, and "
            "jax.vmap of the initialiser for several (rules.axes says it if they are taps)."
        )


__all__ = ["RoleMap", "assign"]
