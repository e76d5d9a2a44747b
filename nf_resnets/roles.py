"""What each leaf of a parameter tree is: stem, branch, shortcut, head, scalar, norm.

Every scheme in :mod:`nf_resnets.init` asks one question first: which leaves are the layers of
which residual branch, and which are not. The answer comes from the leaf's *path* (its keys joined
by ``/``) through the regular expressions of a :class:`Rules`, never from the order of a dict, in
which ``block_10`` stands before ``block_2``.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


class Role(enum.StrEnum):
    """What a leaf is for; a scheme decides by role what becomes of it."""

    STEM = "stem"
    BRANCH = "branch"
    SHORTCUT = "shortcut"
    HEAD = "head"
    SCALAR_BIAS = "scalar_bias"
    MULTIPLIER = "multiplier"
    ALPHA = "alpha"
    NORM = "norm"
    KEEP = "keep"


LAYER_ROLES = (Role.STEM, Role.BRANCH, Role.SHORTCUT, Role.HEAD)
"""The roles whose leaves are layers, drawn by the standard initialisations."""

_LAYOUTS = {"HWIO": "[H, W, C_in, C_out]", "OIHW": "[C_out, C_in, H, W]"}


@dataclasses.dataclass(frozen=True)
class Rules:
    r"""Regular expressions that say what each leaf is, searched for in its ``/``-joined path.

    Args:
      branch: the layers of the residual branches. Its last group orders the layers within a
        branch, the groups before it name and order the branches; groups of digits are ordered as
        numbers, others as text. ``r"stage(\d+)/block_(\d+)/conv_(\d+)/kernel"`` makes ``block_10``
        follow ``block_9``.
      head: the classification layer, weight and bias.
      stem: the layers before the first branch.
      shortcut: the layers on the skip path, such as 1x1 down-sampling convolutions.
      scalar_bias: Fixup's scalar biases.
      multiplier: Fixup's (and RescaleNet's) learnable branch multipliers.
      alpha: SkipInit's learnable scalar, one for each branch.
      norm: parameters of normalisation layers.
      keep: whatever a scheme must not touch. Vectors and scalars that no rule names are kept too;
        a *weight* that no rule names is an error.
      stacked: leaves with a leading axis that runs over branches (parameters of scanned blocks);
        that axis orders the branches within what the groups of ``branch`` name.
      layout: ``"HWIO"`` where the last two axes of a weight are ``[C_in, C_out]`` (Flax, Haiku),
        ``"OIHW"`` where the first two are ``[C_out, C_in]`` (Equinox).

    Raises:
      ValueError: if an expression does not compile, if ``branch`` has no group, or if the layout
        is not one of the two.

    Example:
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)/kernel", head=r"^dense/", keep=r"^stem/")
      >>> rules.layout
      'HWIO'
    """

    branch: str | None = None
    head: str | None = None
    stem: str | None = None
    shortcut: str | None = None
    scalar_bias: str | None = None
    multiplier: str | None = None
    alpha: str | None = None
    norm: str | None = None
    keep: str | None = None
    stacked: str | None = None
    layout: str = "HWIO"

    def __post_init__(self) -> None:
        for name in (*(role.value for role in Role), "stacked"):
            pattern = getattr(self, name)
            if pattern is None:
                continue
            try:
                groups = re.compile(pattern).groups
            except (re.error, TypeError) as error:
                raise ValueError(
                    f"rules.{name}={pattern!r} is not a regular expression: {error}."
                ) from None
            if name == "branch" and groups == 0:
                raise ValueError(
                    f"rules.branch={pattern!r} has no group; its last group must order the layers "
                    r"of a branch, the groups before it the branches, as in "
                    r"'block_(\d+)/conv_(\d+)/kernel'."
                )
        if self.layout not in _LAYOUTS:
            raise ValueError(
                f"rules.layout={self.layout!r} found; expected one of "
                + ", ".join(f"{name!r} for {axes}" for name, axes in _LAYOUTS.items())
                + "."
            )

    def patterns(self) -> Iterator[tuple[Role, str]]:
        """Yields each role that has an expression, with it."""
        for role in Role:
            pattern = getattr(self, role.value)
            if pattern is not None:
                yield role, pattern


OUR_RULES = Rules(
    branch=r"stage_(\d+)/(first|rest)/conv_(\d+)/(?:kernel|bias)$",
    head=r"(?:^|/)head/(?:kernel|bias)$",
    stem=r"(?:^|/)stem/(?:kernel|bias)$",
    shortcut=r"/shortcut/(?:kernel|bias)$",
    scalar_bias=r"(?:^|/)bias_\w+$",
    multiplier=r"/multiplier$",
    alpha=r"/alpha$",
    norm=r"(?:^|/)norm(?:_\w+)?/\w+$",
    stacked=r"stage_\d+/rest/",
)
"""The names of this library's own models."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One leaf of a tree and what it is.

    Attributes:
      path: the leaf's keys joined by ``/``.
      role: what it is for.
      shape: its shape, with the leading axis if it is stacked.
      stacked: whether its leading axis runs over branches.
      weight: whether it is a weight, with at least two axes beside the stacked one. A leaf with a
        layer's role that is no weight is that layer's bias vector.
      branches: the branches it belongs to, numbered ``k = 1..L`` from the input; one for an
        ordinary leaf, as many as its leading axis is long for a stacked one, none outside.
      layer: its place ``1..m`` among the layers of the branch, 0 outside branches.
      m: how many layers its branch has, 0 outside branches.
      layout: how the axes of a weight are ordered, ``"HWIO"`` or ``"OIHW"``.
    """

    path: str
    role: Role
    shape: tuple[int, ...] = ()
    stacked: bool = False
    weight: bool = False
    branches: tuple[int, ...] = ()
    layer: int = 0
    m: int = 0
    layout: str = "HWIO"


@dataclasses.dataclass(frozen=True)
class Branch:
    """One residual branch: its number ``k = 1..L``, a name to call it by, its ``m`` layers."""

    k: int
    name: str
    m: int


@dataclasses.dataclass(frozen=True)
class RoleMap:
    """The role of every leaf of one tree, and the residual branches they form.

    Attributes:
      leaves: one :class:`Leaf` for each leaf, in the order of ``jax.tree.leaves``.
      branches: the residual branches in order, ``branches[k - 1]`` being the k-th.
    """

    leaves: tuple[Leaf, ...]
    branches: tuple[Branch, ...]
    _treedef: Any

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        return len(self.branches)

    def map(self, function: Callable[[Leaf, Any], Any], params: Any) -> Any:
        """Applies ``function(leaf, value)`` to every leaf and returns a tree of the same kind."""
        values = jax.tree.leaves(params)
        return self._treedef.unflatten(
            [function(leaf, value) for leaf, value in zip(self.leaves, values, strict=True)]
        )

    def labels(self, label: Callable[[Leaf], str] = lambda leaf: leaf.role.value) -> Any:
        """Returns a tree of strings, as ``optax.multi_transform`` takes it."""
        return self._treedef.unflatten([label(leaf) for leaf in self.leaves])

    def check_depth(self, depth: int) -> None:
        """Refuses a ``depth`` that is not the number of residual branches of the tree."""
        if isinstance(depth, bool) or not isinstance(depth, int | np.integer):
            raise TypeError(
                f"depth={depth!r} ({type(depth).__name__}) found; expected a Python int, the "
                "number of residual branches L."
            )
        if depth != self.num_branches:
            raise ValueError(
                f"{self.num_branches} residual branches found, depth={depth} given; depth is L, "
                "the number of residual branches, not of layers (ResNet-110 has L = 54)."
            )


def path_name(path: tuple[Any, ...]) -> str:
    """Joins the keys of a pytree path by ``/``.

    Example:
      >>> path_name((jax.tree_util.DictKey("conv"), jax.tree_util.GetAttrKey("value")))
      'conv/value'
    """
    names = []
    for key in path:
        for attribute in ("key", "name", "idx"):
            if hasattr(key, attribute):
                names.append(str(getattr(key, attribute)))
                break
        else:
            names.append(str(key).strip("[]./'"))
    return "/".join(names)


def assign(params: Any, rules: Rules | None = None) -> RoleMap:
    r"""Finds the role of every leaf of a parameter tree.

    Args:
      params: any pytree of arrays: of Flax Linen, NNX, Haiku, Equinox or hand-written. Weights are
        ``[H, W, C_in, C_out]`` or ``[C_in, C_out]`` (``layout="HWIO"``), with one more leading axis
        where ``rules.stacked`` says so.
      rules: what the paths mean; by default the names of this library's models.

    Returns:
      The :class:`RoleMap` of the tree.

    Raises:
      ValueError: if the tree is empty, a weight is matched by no rule or a leaf by two, a rule
        matches nothing, a weight's dtype is not a floating-point one, or the leaves of a branch
        contradict each other.

    Example:
      >>> tree = {"block_2": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))},
      ...         "block_10": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))}}
      >>> role_map = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
      >>> [branch.name for branch in role_map.branches]
      ['block_2', 'block_10']
    """
    if rules is not None and not isinstance(rules, Rules):
        raise TypeError(f"rules is a {type(rules).__name__}; expected nf_resnets.init.Rules.")
    flat, treedef = jax.tree_util.tree_flatten_with_path(params)
    if not flat:
        raise ValueError("params is an empty tree; expected a tree with at least one weight.")
    used = OUR_RULES if rules is None else rules
    leaves = [_classify(path_name(path), value, used) for path, value in flat]
    _refuse_unmatched(leaves, used, given=rules is not None)
    leaves, branches = _number_branches(leaves, used)
    return RoleMap(tuple(leaves), tuple(branches), treedef)


def _classify(path: str, value: Any, rules: Rules) -> Leaf:
    if not _is_numeric_array(value):
        return Leaf(path, Role.KEEP)
    matches = [role for role, pattern in rules.patterns() if re.search(pattern, path)]
    if len(matches) > 1:
        raise ValueError(
            f"leaf {path!r} is matched by two rules, {matches[0].value}= and {matches[1].value}=; "
            "expected one."
        )
    stacked = rules.stacked is not None and re.search(rules.stacked, path) is not None
    shape = tuple(value.shape)
    if stacked and not shape:
        raise ValueError(
            f"leaf {path!r} is a scalar but rules.stacked matches it; expected a leading axis that "
            "runs over branches."
        )
    if 0 in shape:
        raise ValueError(f"leaf {path!r} has shape {shape}; expected no axis of length 0.")
    weight = len(shape) - stacked >= 2
    role = matches[0] if matches else Role.KEEP
    if role is not Role.KEEP and not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            f"leaf {path!r} ({role.value}) has dtype {value.dtype}; expected a floating-point one."
        )
    layout = rules.layout
    return Leaf(path, role, shape, stacked, weight, layout=layout)


def _is_numeric_array(value: Any) -> bool:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return False
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _refuse_unmatched(leaves: list[Leaf], rules: Rules, *, given: bool) -> None:
    explicit_keep = re.compile(rules.keep) if rules.keep is not None else None
    unknown = [
        f"{leaf.path!r} {list(leaf.shape)}"
        for leaf in leaves
        if leaf.role is Role.KEEP
        and leaf.weight
        and not (explicit_keep and explicit_keep.search(leaf.path))
    ]
    if unknown:
        shown = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if unknown[5:] else "")
        advice = (
            "name it in rules=, in keep= if it is to stay as it is"
            if given
            else "these are not the names of this library's models, so pass rules=init.Rules(...)"
        )
        raise ValueError(f"no rule says what the weight {shown} is; {advice}.")
    if given:
        for role, pattern in rules.patterns():
            if not any(re.search(pattern, leaf.path) for leaf in leaves):
                raise ValueError(
                    f"rules.{role.value}={pattern!r} matches no leaf of params; its paths are like "
                    + ", ".join(repr(leaf.path) for leaf in leaves[:3])
                    + "."
                )


def _number_branches(leaves: list[Leaf], rules: Rules) -> tuple[list[Leaf], list[Branch]]:
    """Groups the branch leaves by the groups of ``rules.branch`` and numbers them from 1."""
    # group of branches -> layer -> positions of its leaves; a group holds one branch, or, where
    # its leaves are stacked, as many as their leading axis is long.
    groups: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for position, leaf in enumerate(leaves):
        if leaf.role is Role.BRANCH:
            *names, layer = _search(rules.branch, leaf.path)
            groups.setdefault(tuple(names), {}).setdefault(layer, []).append(position)

    branches: list[Branch] = []
    numbered = list(leaves)
    for names in sorted(groups, key=_natural):
        layers = groups[names]
        members = [position for positions in layers.values() for position in positions]
        lengths = {leaves[i].shape[0] if leaves[i].stacked else 1 for i in members}
        if len(lengths) > 1:
            raise ValueError(
                f"the leaves of branch {_branch_name(leaves[members[0]].path, rules)!r} are stacked "
                f"over {' and '.join(map(str, sorted(lengths)))} branches; expected one number."
            )
        weightless = [
            layer for layer, at in layers.items() if not any(leaves[i].weight for i in at)
        ]
        if weightless:
            raise ValueError(
                f"leaf {leaves[layers[weightless[0]][0]].path!r} is matched by rules.branch but "
                f"has shape {leaves[layers[weightless[0]][0]].shape}, and its layer has no weight; "
                "expected a layer's weight to have two axes or more."
            )
        (length,) = lengths
        numbers = tuple(range(len(branches) + 1, len(branches) + length + 1))
        for j, layer in enumerate(sorted(layers, key=lambda name: _natural((name,))), start=1):
            for i in layers[layer]:
                numbered[i] = dataclasses.replace(
                    leaves[i], branches=numbers, layer=j, m=len(layers)
                )
        name = _branch_name(leaves[members[0]].path, rules)
        stacked = leaves[members[0]].stacked
        branches += [
            Branch(k, f"{name}[{index}]" if stacked else name, len(layers))
            for index, k in enumerate(numbers)
        ]
    return numbered, branches


def _search(pattern: str | None, path: str) -> tuple[str, ...]:
    assert pattern is not None
    match = re.search(pattern, path)
    assert match is not None
    return tuple(group or "" for group in match.groups())


def _branch_name(path: str, rules: Rules) -> str:
    """The path up to the key in which the layer's group begins."""
    assert rules.branch is not None
    match = re.search(rules.branch, path)
    assert match is not None
    start = match.start(match.re.groups)
    head = path[: max(start, 0)]
    return head.rpartition("/")[0] or path


def _natural(names: tuple[str, ...]) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(n), "") if n.isdecimal() else (1, 0, n) for n in names)


def fans(leaf: Leaf) -> tuple[int, int]:
    """Returns ``(fan_in, fan_out)`` of a weight, whatever its layout and however it is stacked.

    ``fan_in = H W C_in`` is the number of inputs to one output unit, ``fan_out = H W C_out``.

    Args:
      leaf: a leaf with ``leaf.weight``.

    Example:
      >>> fans(Leaf("conv", Role.STEM, (3, 3, 16, 32), weight=True))
      (144, 288)
      >>> fans(Leaf("conv", Role.STEM, (32, 16, 3, 3), weight=True, layout="OIHW"))
      (144, 288)
      >>> fans(Leaf("convs", Role.STEM, (7, 3, 3, 16, 32), stacked=True, weight=True))
      (144, 288)
    """
    shape = leaf.shape[1:] if leaf.stacked else leaf.shape
    if leaf.layout == "HWIO":
        *field, c_in, c_out = shape
    else:
        c_out, c_in, *field = shape
    return math.prod(field) * c_in, math.prod(field) * c_out


__all__: list[str] = [
    "LAYER_ROLES",
    "OUR_RULES",
    "Branch",
    "Leaf",
    "Role",
    "RoleMap",
    "Rules",
    "assign",
    "fans",
    "path_name",
]
