"""What each leaf of a parameter tree is: stem, branch, shortcut, head, scalar, norm.

Every scheme in :mod:`nf_resnets.init` asks one question first: which leaves are the layers of
which residual branch, and which are not. The answer comes from the leaf's *path* (its keys joined
by ``/``) through the regular expressions of a :class:`Rules`, never from the order of a dict, in
which ``block_10`` stands before ``block_2``.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import axes as _axes


class Role(enum.StrEnum):
    """What a leaf is for; a scheme decides by role what becomes of it."""

    EMBEDDING = "embedding"
    STEM = "stem"
    BRANCH = "branch"
    SHORTCUT = "shortcut"
    HEAD = "head"
    SCALAR_BIAS = "scalar_bias"
    CHANNEL_BIAS = "channel_bias"
    MULTIPLIER = "multiplier"
    ALPHA = "alpha"
    NORM = "norm"
    KEEP = "keep"


LAYER_ROLES = (Role.EMBEDDING, Role.STEM, Role.BRANCH, Role.SHORTCUT, Role.HEAD)
"""The roles whose leaves are layers, drawn by the standard initialisations."""

_LAYERS = (Role.STEM, Role.BRANCH, Role.SHORTCUT, Role.HEAD)


@dataclasses.dataclass(frozen=True)
class Rules:
    r"""Regular expressions that say what each leaf is, searched for in its ``/``-joined path.

    Args:
      branch: the layers of the residual branches. Its last group orders the layers within a
        branch, the groups before it name and order the branches; digits in a group are ordered as
        numbers, the rest as text, and a group that took no part stands first. (Layers called as in
        an attention, such as ``q_proj``, ``k_proj``, ``v_proj`` and one more, are in that order.)
        ``r"stage(\d+)/block_(\d+)/conv_(\d+)/kernel"`` makes ``block_10`` follow ``block_9``. A
        layer has one weight and at most one bias vector.
      head: the classification layer, weight and bias.
      embedding: tables ``[V, D]`` of vectors, one row for each word or position.
      stem: the layers before the first branch.
      shortcut: the layers on the skip path, such as 1x1 down-sampling convolutions.
      scalar_bias: Fixup's scalar biases.
      channel_bias: RescaleNet's vectors, which are added to the inputs of layers.
      multiplier: Fixup's (and RescaleNet's) learnable branch multipliers.
      alpha: SkipInit's learnable scalar, one for each branch.
      norm: parameters of normalisation layers.
      keep: whatever a scheme must not touch. Vectors and scalars that no rule names are kept too;
        a *weight* that no rule names is an error.
      stacked: leaves with a leading axis that runs over branches (parameters of scanned blocks);
        that axis orders the branches within what the groups of ``branch`` name. Of one scan are
        branches with one path up to the end of the key in which this match ends, or, if it has
        groups, whose groups find the same; they take turns, as the attention and the feed-forward
        branch of a scanned Transformer layer. Where the groups do not say it, branches with the
        same layers are refused, for they may be two scans.
      order: names that the groups of ``branch`` find, from the first to the last, where that is
        not the order of the names; they stand before all others.
      optional: names of rules that may match nothing, for rules that serve many networks; any other
        rule that matches nothing is an error.
      layout: ``"HWIO"`` where the last two axes of a weight are ``[C_in, C_out]`` (Flax, Haiku),
        ``"OIHW"`` where the first two are ``[C_out, C_in]`` (Equinox, PyTorch). By default
        Equinox's layers have theirs, what is called ``weight`` or is held by an Equinox module of
        the user's own has the only one that its shapes allow (else it is refused where fans are
        asked for), and all others have ``"HWIO"``.
      axes: what the axes are of weights that are otherwise laid out: a word for each expression,
        with a letter for each axis but the stacked one. ``I`` are inputs, ``O`` outputs, ``D``,
        ``H`` and ``W`` taps, ``N`` copies that are drawn one by one, as experts are:
        ``{r"/(?:q|k|v)/kernel": "IOO", r"/o/kernel": "IIO"}`` for ``[D, heads, head_dim]`` and
        ``[heads, head_dim, D]``. It need not be said of Flax's attention, whose layers are known
        by their names, nor where a bias vector of several axes shows it.

    Raises:
      ValueError: if an expression does not compile, if ``branch`` has no group, if the layout is
        not one of the two, or a word of ``axes`` has other letters.

    Example:
      >>> rules = Rules(branch=r"block_(\d+)/conv_(\d+)/kernel", head=r"^dense/", keep=r"^stem/")
      >>> rules.stem is None, rules.keep
      (True, '^stem/')
    """

    branch: str | None = None
    head: str | None = None
    embedding: str | None = None
    stem: str | None = None
    shortcut: str | None = None
    scalar_bias: str | None = None
    channel_bias: str | None = None
    multiplier: str | None = None
    alpha: str | None = None
    norm: str | None = None
    keep: str | None = None
    stacked: str | None = None
    order: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    layout: str | None = None
    axes: Mapping[str, str] | tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        # Pairs, so that rules stay hashable.
        object.__setattr__(self, "axes", _axes.refuse_words(self.axes))
        for name in (*(role.value for role in Role), "stacked"):
            pattern = getattr(self, name)
            if pattern is None:
                continue
            try:
                groups = re.compile(pattern).groups
                re.search(pattern, "")  # refuses patterns of bytes
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
        if self.layout not in (None, *_axes.LAYOUTS):
            raise ValueError(
                f"rules.layout={self.layout!r} found; expected one of "
                + ", ".join(f"{name!r} for {axes}" for name, axes in _axes.LAYOUTS.items())
                + "."
            )

    def patterns(self) -> Iterator[tuple[Role, str]]:
        """Yields each role that has an expression, with it."""
        for role in Role:
            pattern = getattr(self, role.value)
            if pattern is not None:
                yield role, pattern


OUR_RULES = Rules(
    branch=(
        r"(stage_\d+|encoder|decoder)/(first|rest|layers/\w+)/"
        r"(conv_\d+|query|key|value|out|linear_\d+)/(?:kernel|bias)$"
    ),
    head=r"(?:^|/)head/(?:kernel|bias)$",
    embedding=r"(?:^|/)embed(?:ding)?(?:_\w+)?(?:/embedding)?$",
    stem=r"(?:^|/)(?:stem|features_\d+|classifier_\d+)/(?:kernel|bias)$",
    shortcut=r"/shortcut/(?:kernel|bias)$",
    scalar_bias=r"(?:^|/)bias_\w+$",
    channel_bias=r"(?:^|/)bias_\w+/vector$",
    multiplier=r"/multiplier$",
    alpha=r"/alpha$",
    norm=r"(?:^|/)norm(?:_\w+)?/\w+$|/gain$",
    stacked=r"stage_\d+/rest/|(?:encoder|decoder)/layers/",
    order=("encoder", "decoder", "query", "key", "value", "out"),
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
        layer's role that is no weight is that layer's bias vector; so is a leaf called ``bias`` or
        ``b`` of which only one axis is longer than 1, as ``[C, 1, 1]`` in Equinox, or whose axes
        are the last ones of its layer's weight, as ``[heads, head_dim]``.
      branches: the branches it belongs to, numbered ``k = 1..L`` from the input; one for an
        ordinary leaf, as many as its leading axis is long for a stacked one, none outside.
      layer: its place ``1..m`` among the layers of the branch, 0 outside branches.
      m: how many layers its branch has, 0 outside branches.
      axes: what each axis of a weight is, the stacked one included: ``"HWIO"``, ``"NIOO"`` (see
        ``Rules.axes``); ``""`` of what is no weight, and of a weight whose layout is not known
        (see :func:`axes_of`).
    """

    path: str
    role: Role
    shape: tuple[int, ...] = ()
    stacked: bool = False
    weight: bool = False
    branches: tuple[int, ...] = ()
    layer: int = 0
    m: int = 0
    axes: str = ""


@dataclasses.dataclass(frozen=True)
class Group:
    """A choice among the leaves of a tree, by what they are for.

    Attributes:
      roles: the roles whose leaves are in it.
      bias_vectors: the roles of layers whose bias vectors are in it, and not their weights.

    Raises:
      TypeError: if what is given is not a tuple of roles.

    Example:
      >>> group = Group((Role.MULTIPLIER,), bias_vectors=(Role.HEAD,))
      >>> kernel = Leaf("head/kernel", Role.HEAD, (64, 10), weight=True)
      >>> bias = Leaf("head/bias", Role.HEAD, (10,))
      >>> kernel in group, bias in group, bias in group | Group((Role.HEAD,))
      (False, True, True)
    """

    roles: tuple[Role, ...] = ()
    bias_vectors: tuple[Role, ...] = ()

    def __post_init__(self) -> None:
        for name in ("roles", "bias_vectors"):
            value = getattr(self, name)
            if not isinstance(value, tuple) or not all(isinstance(role, Role) for role in value):
                raise TypeError(f"Group({name}={value!r}) found; expected a tuple of roles.")

    def __contains__(self, leaf: Leaf) -> bool:
        bias = leaf.role in self.bias_vectors and leaf.role in LAYER_ROLES and not leaf.weight
        return bias or leaf.role in self.roles

    def __or__(self, other: Group) -> Group:
        """The leaves of one or of the other."""
        return Group(self.roles + other.roles, self.bias_vectors + other.bias_vectors)

    def __bool__(self) -> bool:
        return bool(self.roles or self.bias_vectors)


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
      rules: those that it was assigned by.
    """

    leaves: tuple[Leaf, ...]
    branches: tuple[Branch, ...]
    rules: Rules
    _treedef: Any

    @property
    def num_branches(self) -> int:
        """``L``, the number of residual branches."""
        return len(self.branches)

    def map(self, function: Callable[[Leaf, Any], Any], params: Any) -> Any:
        """Applies ``function(leaf, value)`` to every leaf and returns a tree of the same kind."""
        values = self.check_structure(params)
        return self._treedef.unflatten(
            [function(leaf, value) for leaf, value in zip(self.leaves, values, strict=True)]
        )

    def check_structure(self, params: Any) -> list[Any]:
        """Refuses a tree of another number of leaves, and returns the leaves."""
        values = jax.tree.leaves(params)
        if len(values) != len(self.leaves):
            raise ValueError(
                f"params has {len(values)} leaves; expected {len(self.leaves)}, as in the tree "
                "that the roles were assigned for."
            )
        return values

    @property
    def is_ours(self) -> bool:
        """Whether the names are those of this library's models."""
        return self.rules == OUR_RULES

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
                f"{self._forgotten_axis(int(depth))}."
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


def _common_length(leaves: list[Leaf]) -> int:
    """The axis that all leaves of a branch have before those of their layers, or 1."""
    found = set()
    for leaf in leaves:
        # A convolution along one axis has as many axes as a stack of dense layers; one in a plane
        # has equal taps.
        own = _axes.own_shape(leaf)
        axes, taps = len(own), own[:2]
        spare = axes >= 3 and not (axes == 4 and taps[0] == taps[1]) if leaf.weight else axes == 2
        found.add(own[0] if spare else 1)
    return found.pop() if len(found) == 1 else 1


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
      ValueError: if the tree is empty, a weight is matched by no rule or a leaf by two, a rule
        matches nothing, a weight's dtype is not a floating-point one, the leaves of a branch
        contradict each other, or names put its layers in an order that its widths speak against.
      TypeError: if ``rules`` is no :class:`Rules`, or ``params`` no tree with arrays in it.

    Example:
      >>> tree = {"block_2": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))},
      ...         "block_10": {"conv_1": jnp.ones((3, 3, 4, 4)), "conv_2": jnp.ones((3, 3, 4, 4))}}
      >>> role_map = assign(tree, Rules(branch=r"block_(\d+)/conv_(\d+)"))
      >>> [branch.name for branch in role_map.branches]
      ['block_2', 'block_10']
    """
    if isinstance(rules, RoleMap):
        rules.check_structure(params)
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
    holders = _axes.holders(params, [path for path, _ in flat])
    leaves = _with_axes(leaves, used, holders)
    _refuse_unmatched(leaves, used, given=used != OUR_RULES)
    _refuse_same_paths(leaves)
    leaves, branches = _number_branches(leaves, used)
    _refuse_broken_chain(leaves)
    _refuse_order_of_names(leaves, branches, used)
    return RoleMap(tuple(leaves), tuple(branches), used, treedef)


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


def _with_axes(leaves: list[Leaf], rules: Rules, holders: list[Any]) -> list[Leaf]:
    """Tells bias vectors of several axes from weights, and what the axes of weights are."""
    kernels = _axes.kernels(leaf for leaf in leaves if leaf.weight)
    leaves = [
        dataclasses.replace(leaf, weight=False)
        if leaf.weight and _axes.is_bias(leaf, kernels.get(_axes.layer_of(leaf.path)))
        else leaf
        for leaf in leaves
    ]
    given = dict(rules.axes)
    words = {leaf.path: _axes.stated(leaf, given) for leaf in leaves if leaf.weight}
    weights = [
        leaf for leaf in leaves if leaf.weight and leaf.role in _LAYERS and not words[leaf.path]
    ]
    vectors = _axes.biases(leaf for leaf in leaves if not leaf.weight)
    words |= _axes.general(weights, vectors)
    layouts = _layouts(leaves, words, vectors, rules, holders)

    def word(leaf: Leaf, layout: str | None) -> str:
        own = len(leaf.shape) - leaf.stacked
        known = words[leaf.path] or (layout and _axes.by_layout(own, layout))
        return "N" * leaf.stacked + known if known else ""

    return [
        dataclasses.replace(leaf, axes=word(leaf, layout)) if leaf.weight else leaf
        for leaf, layout in zip(leaves, layouts, strict=True)
    ]


def _layouts(
    leaves: list[Leaf],
    words: Mapping[str, str | None],
    vectors: Mapping[str, Any],
    rules: Rules,
    holders: list[Any],
) -> list[str | None]:
    """The layout of each leaf: by the rules, its container, its name, or the shapes.

    Raises:
      ValueError: if a shape is of the other layout.
    """
    layouts: list[str | None] = []
    said, unsaid = [], []
    for at, (leaf, holder) in enumerate(zip(leaves, holders, strict=True)):
        layout = rules.layout or "HWIO"
        if leaf.weight and leaf.role in LAYER_ROLES and not words[leaf.path]:
            if holder is not None and _axes.of_equinox(holder):
                _axes.refuse_other_rank(leaf, holder)
                if rules.layout == "HWIO":
                    raise ValueError(
                        f"leaf {leaf.path!r} is held by Equinox's {type(holder).__name__}, whose "
                        "weights are [C_out, C_in, ...], and rules.layout is 'HWIO'; expected "
                        "'OIHW'."
                    )
                layout = "OIHW"
            elif rules.layout is None and _axes.has_unsaid_layout(leaf.path, holder):
                unsaid.append(at)
            elif leaf.role is not Role.EMBEDDING:
                said.append(at)
        layouts.append(layout)

    def fault(at: int, layout: str) -> str | None:
        return _axes.fault(leaves[at], layout, vectors.get(_axes.layer_of(leaves[at].path)))

    allowed = [name for name in _axes.LAYOUTS if not any(fault(at, name) for at in unsaid)]
    for at in unsaid:
        layouts[at] = allowed[0] if len(allowed) == 1 else None
    for at in said:
        layout = rules.layout or "HWIO"
        if (wrong := fault(at, layout)) is not None:
            other = next(name for name in _axes.LAYOUTS if name != layout)
            raise ValueError(
                f"leaf {leaves[at].path!r} {list(leaves[at].shape)} {wrong} in the layout "
                f"{layout!r}, {_axes.LAYOUTS[layout]}; expected rules.layout={other!r}, or "
                "rules.axes to say that it is meant."
            )
    return layouts


def _refuse_broken_chain(leaves: list[Leaf]) -> None:
    """Refuses a layout in which the layers of branches, embedding and head do not fit."""
    for layout, other in itertools.permutations(_axes.LAYOUTS):

        def ends(leaf: Leaf, name: str) -> tuple[int, int]:
            own = _axes.own_shape(leaf)
            axes = _axes.by_layout(len(own), name)
            return _axes.length(own, axes, "I"), _axes.length(own, axes, "O")

        def plain(leaf: Leaf, name: str = layout) -> bool:
            own = _axes.own_shape(leaf)
            return leaf.weight and leaf.axes[int(leaf.stacked) :] == _axes.by_layout(len(own), name)

        branches: dict[tuple[int, ...], list[Leaf]] = {}
        for leaf in leaves:
            if leaf.role is Role.BRANCH and plain(leaf):
                branches.setdefault(leaf.branches, []).append(leaf)
        in_order = [
            sorted(branches[numbers], key=lambda leaf: leaf.layer) for numbers in sorted(branches)
        ]
        if not in_order or any(_axes.fault(leaf, other, None) for of in in_order for leaf in of):
            continue
        links = [pair for layers in in_order for pair in itertools.pairwise(layers)]
        heads = [leaf for leaf in leaves if leaf.role is Role.HEAD and plain(leaf)]
        if len(heads) == 1 and len(heads[0].shape) == 2:
            links.append((in_order[-1][-1], heads[0]))
        pairs = [
            (
                one.path,
                two.path,
                (ends(one, layout)[1], ends(two, layout)[0]),
                (ends(one, other)[1], ends(two, other)[0]),
            )
            for one, two in links
        ]
        widths = {leaf.shape[-1] for leaf in leaves if leaf.role is Role.EMBEDDING and leaf.weight}
        if len(widths) == 1:
            first, (width,) = in_order[0][0], widths
            table = next(leaf.path for leaf in leaves if leaf.role is Role.EMBEDDING)
            pairs.append(
                (table, first.path, (width, ends(first, layout)[0]), (width, ends(first, other)[0]))
            )
        _axes.refuse_chain(pairs, layout)


def _refuse_order_of_names(leaves: list[Leaf], branches: list[Branch], rules: Rules) -> None:
    """Refuses an order by names, as of ``down`` before ``up``, in which a branch fits nowhere.

    Neither what its first layer takes nor what its last one gives is a width of the network around
    it, and layers between them are of such a width.
    """
    around: set[int] = set()
    layers: dict[tuple[int, ...], list[tuple[int, Leaf]]] = {}
    for leaf in leaves:
        if not leaf.weight:
            continue
        if leaf.role is Role.EMBEDDING:
            around.add(leaf.shape[-1])
        elif leaf.role is Role.BRANCH:
            layers.setdefault(leaf.branches, []).append((leaf.layer, leaf))
        elif leaf.axes:
            letters = {Role.HEAD: "I", Role.STEM: "O", Role.SHORTCUT: "IO"}.get(leaf.role, "")
            around |= {_width(leaf, letter) for letter in letters}
    # Branches of the same widths say the same, right or wrong.
    kinds: dict[tuple[tuple[int, int], ...], list[Leaf]] = {}
    for of_one in layers.values():
        in_order = [leaf for _, leaf in sorted(of_one, key=lambda item: item[0])]
        if all(leaf.axes for leaf in in_order):
            widths = tuple((_width(leaf, "I"), _width(leaf, "O")) for leaf in in_order)
            kinds.setdefault(widths, in_order)
    ends = collections.Counter(width for kind in kinds for width in {kind[0][0], kind[-1][1]})

    def fits(width: int, kind: tuple[tuple[int, int], ...]) -> bool:
        return width in around or ends[width] > (width in (kind[0][0], kind[-1][1]))

    for kind, in_order in kinds.items():
        if fits(kind[0][0], kind) or fits(kind[-1][1], kind) or not _by_text(in_order, rules):
            continue
        inner = {taken for taken, _ in kind} & {given for _, given in kind}
        if any(fits(width, kind) for width in inner):
            first, last = in_order[0], in_order[-1]
            name = branches[first.branches[0] - 1].name
            raise ValueError(
                f"by the names of its layers residual branch {name!r} begins with "
                f"{first.path!r}, which takes {kind[0][0]} channels, and ends with "
                f"{last.path!r}, which gives {kind[-1][1]}, and neither is a width of the network "
                "around it; expected rules.order to name the layers from the first to the last."
            )


def _width(leaf: Leaf, letter: str) -> int:
    return _axes.length(leaf.shape, leaf.axes, letter)


def _by_text(in_order: list[Leaf], rules: Rules) -> bool:
    """Whether the layers of a branch are in the order of the letters of their names."""
    names = [_search(rules.branch, leaf.path)[-1] for leaf in in_order]
    if set(names) & set(rules.order) or _axes.attention_order(names):
        return False
    return len({re.sub(r"\d+", "", name) for name in names}) > 1


_SCALARS = (Role.SCALAR_BIAS, Role.MULTIPLIER, Role.ALPHA)


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
    if not given:
        return
    named = [(role.value, pattern) for role, pattern in rules.patterns()]
    named += [("axes", pattern) for pattern in dict(rules.axes)]
    if rules.stacked is not None:
        named.append(("stacked", rules.stacked))
    for name, pattern in named:
        # What was taken over from our own rules serves all of our networks.
        may_miss = name in rules.optional or pattern == getattr(OUR_RULES, name)
        if not may_miss and not any(re.search(pattern, leaf.path) for leaf in leaves):
            raise ValueError(
                f"rules.{name}={pattern!r} matches no leaf of params; its paths are like "
                + ", ".join(repr(leaf.path) for leaf in leaves[:3])
                + "."
            )


def _refuse_same_paths(leaves: list[Leaf]) -> None:
    """Refuses layers of one path, as of ``{"a/b": {"w": ...}, "a": {"b/w": ...}}``."""
    seen = set()
    for leaf in leaves:
        if leaf.role in LAYER_ROLES and leaf.path in seen:
            raise ValueError(f"two leaves have the path {leaf.path!r}; expected one.")
        seen.add(leaf.path)


def _number_branches(leaves: list[Leaf], rules: Rules) -> tuple[list[Leaf], list[Branch]]:
    """Groups the branch leaves by the groups of ``rules.branch`` and numbers them from 1."""
    # group of branches -> layer -> positions of its leaves; a group holds one branch, or, where
    # its leaves are stacked, as many as their leading axis is long.
    groups: dict[tuple[str, ...], dict[str, list[int]]] = {}
    for position, leaf in enumerate(leaves):
        if leaf.role is Role.BRANCH:
            *outer, layer = _search(rules.branch, leaf.path)
            groups.setdefault(tuple(outer), {}).setdefault(layer, []).append(position)

    branches: list[Branch] = []
    numbered = list(leaves)
    names_of = {}
    for names, layers in groups.items():
        members = [leaves[position] for at in layers.values() for position in at]
        names_of[names] = _branch_name([leaf.path for leaf in members], rules)
        _refuse_lengths(members, names_of[names])
        for at in layers.values():
            _refuse_ill_formed([leaves[position] for position in at])
    ordered = sorted(groups, key=lambda names: _natural(names, rules.order))
    for sharing in _in_turns({names: groups[names] for names in ordered}, names_of, leaves, rules):
        start = len(branches)
        for turn, names in enumerate(sharing):
            layers = groups[names]
            first = leaves[next(iter(layers.values()))[0]]
            length = first.shape[0] if first.stacked else 1
            numbers = tuple(start + 1 + turn + len(sharing) * index for index in range(length))
            in_order = _layer_order(layers, rules)
            for j, layer in enumerate(in_order, start=1):
                for i in layers[layer]:
                    numbered[i] = dataclasses.replace(
                        leaves[i], branches=numbers, layer=j, m=len(layers)
                    )
            branches += [
                Branch(
                    k,
                    f"{names_of[names]}[{index}]" if first.stacked else names_of[names],
                    len(layers),
                )
                for index, k in enumerate(numbers)
            ]
    return numbered, sorted(branches, key=lambda branch: branch.k)


def _layer_order(names: Iterable[str], rules: Rules) -> list[str]:
    """The layers of a branch: those of an attention as it computes, unless ``order`` names one."""
    in_order = sorted(names, key=lambda name: _natural((name,), rules.order))
    if not set(in_order) & set(rules.order):
        in_order = list(_axes.attention_order(in_order) or in_order)
    return in_order


def _in_turns(
    groups: Mapping[tuple[str, ...], dict[str, list[int]]],
    names_of: Mapping[tuple[str, ...], str],
    leaves: list[Leaf],
    rules: Rules,
) -> list[list[tuple[str, ...]]]:
    """The groups of branches in order, those together that one scan makes in turns.

    Raises:
      ValueError: if it cannot be told whether branches are of one scan or of one after the other.
    """
    scans: dict[tuple[str, ...] | tuple[str, int], list[tuple[str, ...]]] = {}
    for names, layers in groups.items():
        leaf = leaves[next(iter(layers.values()))[0]]
        scans.setdefault(_scan(leaf, names_of[names], rules) if leaf.stacked else names, []).append(
            names
        )
    in_order = list(groups)
    place = {names: at for at, names in enumerate(in_order)}
    for sharing in scans.values():
        first, last = place[sharing[0]], place[sharing[-1]]
        between = [names for names in in_order[first : last + 1] if names not in sharing]
        if between:
            raise ValueError(
                f"branches {names_of[sharing[0]]!r} and {names_of[sharing[-1]]!r} are of one scan, "
                f"and {names_of[between[0]]!r} stands between them by the groups of rules.branch; "
                "expected groups, or rules.order, by which it does not."
            )
    if rules.stacked is not None and not re.compile(rules.stacked).groups:
        _refuse_ambiguous_scans(scans, groups, names_of, leaves, rules.stacked)
    return list(scans.values())


def _scan(leaf: Leaf, branch: str, rules: Rules) -> tuple[str, ...] | tuple[str, int]:
    """What the branches of one scan have in common, the length of the scan included."""
    assert rules.stacked is not None
    match = re.search(rules.stacked, leaf.path)
    assert match is not None
    if match.re.groups:
        return ("", *(group or "" for group in match.groups()), str(leaf.shape[0]))
    # A match may end within a key, as "stage_" in "stage_1/conv_1": the scan is "stage_1/".
    end = match.end()
    if match.group() and not leaf.path[:end].endswith("/"):
        whole = leaf.path.find("/", end) + 1
        end = whole if 0 < whole <= len(branch) + 1 else end
    return leaf.path[:end], leaf.shape[0]


def _refuse_ambiguous_scans(
    scans: Mapping[Any, list[tuple[str, ...]]],
    groups: Mapping[tuple[str, ...], dict[str, list[int]]],
    names_of: Mapping[tuple[str, ...], str],
    leaves: list[Leaf],
    stacked: str,
) -> None:
    """Refuses branches that may, or may not, take turns, where no group of ``stacked`` tells.

    Attention and feed-forward branch of a layer do: each has one key below the scan's path, and
    their layers differ. Branches of the same layers may as well be two scans.
    """

    def alike(one: tuple[str, ...], two: tuple[str, ...]) -> bool:
        return groups[one].keys() == groups[two].keys()

    def refuse(one: tuple[str, ...], two: tuple[str, ...]) -> None:
        length = leaves[next(iter(groups[one].values()))[0]].shape[0]
        raise ValueError(
            f"branches {names_of[one]!r} and {names_of[two]!r}, both stacked {length} times by "
            f"rules.stacked={stacked!r}, may be one scan, in which they take turns, or two; "
            "expected a group in rules.stacked around what the branches of a scan have in common, "
            "such as "
            f"r'^({names_of[one]})/|^({names_of[two]})/' for two."
        )

    alone = []
    for scan, sharing in scans.items():
        if len(sharing) == 1:
            if len(scan) == 2 and isinstance(scan[1], int):
                alone.append((scan, sharing[0]))
            continue
        paths = [names_of[names].split("/") for names in sharing]
        depth = len(os.path.commonprefix(paths))
        keys = {tuple(path[depth : depth + 1]) for path in paths}
        if all(alike(sharing[0], names) for names in sharing) or len(keys) < len(paths):
            refuse(sharing[0], sharing[-1])
    for (one_scan, one), (two_scan, two) in itertools.combinations(alone, 2):
        one_key, two_key = (scan[0].rstrip("/").rpartition("/") for scan in (one_scan, two_scan))
        siblings = one_key[0] == two_key[0] and one_scan[1] == two_scan[1]
        numbered = re.sub(r"\d+", "", one_key[2]) == re.sub(r"\d+", "", two_key[2])
        if siblings and not numbered and not alike(one, two):
            refuse(one, two)


def _refuse_lengths(members: list[Leaf], name: str) -> None:
    """Refuses leaves of one branch that are stacked over different numbers of branches."""
    lengths = {leaf.shape[0] if leaf.stacked else 1 for leaf in members}
    if len(lengths) > 1:
        raise ValueError(
            f"the leaves of branch {name!r} are stacked over "
            f"{' and '.join(map(str, sorted(lengths)))} branches; expected one number."
        )


def _refuse_ill_formed(layer: list[Leaf]) -> None:
    """Refuses a layer that has no weight, two weights, or two vectors."""
    if not any(leaf.weight for leaf in layer):
        raise ValueError(
            f"leaf {layer[0].path!r} is matched by rules.branch but has shape {layer[0].shape}, "
            "and its layer has no weight; expected a layer's weight to have two axes or more (a "
            "group that orders nothing is written (?:...))."
        )
    for weight, kind in ((True, "weights"), (False, "vectors")):
        same = [leaf.path for leaf in layer if leaf.weight == weight]
        biases = [leaf for leaf in layer if _axes.ends_in_bias(leaf.path)]
        if len(same) == 2 and weight and len(biases) == 1 and not biases[0].stacked:
            raise ValueError(
                f"leaf {biases[0].path!r} {list(biases[0].shape)} is no bias vector of its layer's "
                f"weight {[list(leaf.shape) for leaf in layer if leaf is not biases[0]][0]}; "
                "expected one, or rules.stacked to match both if their first axis runs over "
                "branches."
            )
        if len(same) > 1:
            raise ValueError(
                f"leaves {same[0]!r} and {same[1]!r} are two {kind} of one layer by the groups of "
                "rules.branch; expected a layer to have one weight and at most one bias vector."
            )


def _search(pattern: str | None, path: str) -> tuple[str, ...]:
    assert pattern is not None
    match = re.search(pattern, path)
    assert match is not None
    return tuple(group or "" for group in match.groups())


def _branch_name(paths: list[str], rules: Rules) -> str:
    """The path up to the key in which the layer's group begins, in a layer where it takes part."""
    assert rules.branch is not None
    for path in paths:
        match = re.search(rules.branch, path)
        assert match is not None
        start = match.start(match.re.groups)
        if start >= 0:
            return path[:start].rpartition("/")[0] or path
    return paths[0]


def _natural(
    names: tuple[str, ...], order: tuple[str, ...]
) -> tuple[tuple[tuple[int, int, str], ...], ...]:
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


def fans(leaf: Leaf) -> tuple[int, int]:
    """Returns ``(fan_in, fan_out)`` of a weight, whatever its layout and however it is stacked.

    ``fan_in = H W C_in`` is the number of inputs to one output unit, ``fan_out = H W C_out``.

    Args:
      leaf: a leaf with ``leaf.weight``.

    Example:
      >>> fans(Leaf("conv", Role.STEM, (3, 3, 16, 32), weight=True, axes="HWIO"))
      (144, 288)
      >>> fans(Leaf("conv", Role.STEM, (32, 16, 3, 3), weight=True, axes="OIHW"))
      (144, 288)
      >>> fans(Leaf("query", Role.BRANCH, (7, 512, 8, 64), stacked=True, weight=True, axes="NIOO"))
      (512, 512)
    """
    axes = axes_of(leaf)
    if leaf.role is Role.BRANCH and _axes.looks_stacked(leaf.shape, axes):
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} looks stacked over {leaf.shape[0]} branches; "
            "expected rules.stacked to match it, or rules.axes to say that it is a convolution "
            "('WWWIO')."
        )
    if leaf.role is Role.HEAD and _axes.looks_general(leaf.shape, axes):
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} looks like a dense layer to several axes of "
            "outputs; expected rules.axes to say so ('IOO'), or that it is a convolution ('DIO')."
        )
    return _axes.fans(leaf.shape, axes)


def axes_of(leaf: Leaf) -> str:
    """The axes of a weight, a letter for each (see ``Rules.axes``).

    Raises:
      ValueError: if its layout is not known.
    """
    if leaf.weight and not leaf.axes:
        raise ValueError(
            f"leaf {leaf.path!r} {list(leaf.shape)} may be [..., C_in, C_out] or "
            "[C_out, C_in, ...] by its name, container and shape; expected rules.layout='HWIO' or "
            "'OIHW'."
        )
    return leaf.axes


__all__: list[str] = [
    "LAYER_ROLES",
    "OUR_RULES",
    "Branch",
    "Group",
    "Leaf",
    "Role",
    "RoleMap",
    "Rules",
    "assign",
    "axes_of",
    "fans",
    "path_name",
]
