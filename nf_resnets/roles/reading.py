"""The role map of a network, read off what it computes; no names are looked at."""

from __future__ import annotations

import collections
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from nf_resnets.roles.flow import Flow
from nf_resnets.roles.graph import matching, trace
from nf_resnets.roles.leaf import Branch, Leaf, Role, path_name
from nf_resnets.roles.residual import Nested, Residuals
from nf_resnets.roles.role_map import RoleMap
from nf_resnets.roles.uses import Kind, Place, Use, bias_owner, is_looked_up, uses_of
from nf_resnets.roles.views import Factor

_ROLES = {
    Kind.EMBEDDING: Role.EMBEDDING,
    Kind.SCALAR_BIAS: Role.SCALAR_BIAS,
    Kind.WEIGHT_GAIN: Role.NORM,
    Kind.NORM_SCALE: Role.NORM,
    Kind.NORM_SHIFT: Role.NORM,
}
_OF_NORM = (Kind.NORM_SCALE, Kind.NORM_SHIFT, Kind.STATISTIC)
_IN_BRANCH = (Place.BRANCH, Place.SHORTCUT, Place.SUM)


def read(
    network: Callable[..., Any],
    params: Any,
    *inputs: Any,
    nested: Nested = None,
    projections: bool | None = None,
    parts: bool | None = None,
    alpha: bool = False,
    keep: str | None = None,
    streams: str | None = None,
) -> RoleMap:
    r"""Reads the role of every leaf off what a network computes.

    The network is traced and nothing is computed. Its residual branches are what is added to a
    path that skips it, numbered in the order of computation, loops turn by turn; a layer is a
    product of data and a leaf.

    Args:
      network: ``network(params, *inputs)``, its forward pass, of any library.
      params: a parameter tree, or the shapes of one (``jax.eval_shape`` of the network's ``init``).
      *inputs: arrays, or trees of them; shapes are enough.
      nested: which branches count where one contains others: ``"inner"`` where the long path is a
        skip connection of another kind, as in a U-Net, ``"outer"`` where the short ones are part of
        a branch.
      projections: whether one layer beside a longer path is a shortcut; asked where it keeps the
        shape, where no layer follows, and beside whole blocks.
      parts: whether a sum with a part of a split value ends a residual branch, as in a reversible
        network.
      alpha: whether the scalar that multiplies a branch is SkipInit's or ReZero's ``alpha``, and
        not Fixup's multiplier, which computes the same.
      keep: a regular expression for the paths of leaves that no scheme is to touch; a layer of such
        leaves counts as none.
      streams: a regular expression for the paths of leaves that count as data, as latents and class
        tokens, in which streams begin.

    Returns:
      The :class:`RoleMap`, which every initialiser takes as ``rules=``; ``print`` shows it.

    Raises:
      ValueError: if something cannot be known from the computation, naming the leaves and the
        argument that says it, or ``keep`` matches no leaf.

    Example:
      >>> import jax.numpy as jnp
      >>> tree = {f"block_{k}": {"up": jnp.ones((4, 8)), "down": jnp.ones((8, 4))} for k in (1, 2)}
      >>> def network(params, x):
      ...     for block in params.values():
      ...         x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
      ...     return x
      >>> print(read(network, tree, jnp.ones((1, 4))))
      2 residual branches, each of 2 layers
        1: 'block_1/up', 'block_1/down'
        2: 'block_2/up', 'block_2/down'
    """
    answers: dict[str, Any] = {"nested": nested, "projections": projections, "parts": parts}
    answers |= {"keep": keep, "streams": streams}
    return Reading(network, params, inputs, **answers).role_map(params, alpha)


class Reading:
    """What is read off a network, step by step; ``answers`` are those of :func:`read`.

    Attributes:
      trace: the network's graph.
      flow: the order of its nodes.
      residuals: its branches.
      uses: those of each leaf.
    """

    def __init__(
        self,
        network: Callable[..., Any],
        params: Any,
        inputs: Sequence[Any],
        *,
        keep: str | None = None,
        streams: str | None = None,
        **answers: Any,
    ) -> None:
        self.trace = traced = trace(network, params, *inputs, streams=streams)
        self.kept = matching(traced.paths, "keep", keep)
        for node in traced.graph.nodes:
            views = [view for _, use in node.uses for view in use.views]
            node.kept = bool(views) and all(view.leaf in self.kept for view in views)
        self.flow = Flow(traced)
        self.residuals = Residuals(traced, self.flow, **answers)
        self.uses = uses_of(traced, self.flow, self.residuals)
        each = [(at, use) for at, uses in enumerate(self.uses) for use in uses]
        self._weight_of = {use.node: at for at, use in each if use.kind is Kind.WEIGHT}
        # The use that says what a leaf is: that in a layer, if there is one.
        order = {Kind.WEIGHT: 0, Kind.EMBEDDING: 1, Kind.ADAPTER: 2}
        self._main = [
            min(uses, key=lambda use: (order.get(use.kind, 3), use.node), default=None)
            for uses in self.uses
        ]

    def role_map(self, params: Any, alpha: bool = False) -> RoleMap:
        """The roles of the tree that was traced, as :func:`read` gives them."""
        self._alpha = alpha
        self._doubts: list[str] = []
        found = [self._leaf(at) for at in range(len(self.uses))]
        # A stream that was missed may be the reason of all others.
        doubts = sorted(self._doubts + self.residuals.doubts, key=lambda it: "streams=" not in it)
        if doubts:
            more = f" ({len(doubts) - 1} more doubts follow.)" if doubts[1:] else ""
            raise ValueError(doubts[0] + more)
        flat, treedef = jax.tree_util.tree_flatten_with_path(params)
        leaves = [Leaf(path_name(path), Role.KEEP) for path, _ in flat]
        beside: list[tuple[int, ...]] = [()] * len(leaves)
        for at, each in zip(self.trace.positions, found, strict=True):
            leaves[at], beside[at] = each
        paths = tuple(path for path, _ in flat)
        branches = _branches(self.residuals, leaves, self._normalized())
        return RoleMap(tuple(leaves), branches, None, treedef, paths, tuple(beside))

    def _normalized(self) -> list[Literal["data", "weights"] | None]:
        """What each branch normalizes by leaves that are not kept."""
        weights = (use for some in self.uses for use in some if use.kind is Kind.WEIGHT)
        by_weights = {use.branch for use in weights if use.view.normalized}
        kept = (use for at in self.kept for use in self.uses[at])
        by_kept = {use.branch for use in kept if use.kind in _OF_NORM}
        found: list[Literal["data", "weights"] | None] = []
        for branch in self.residuals.branches:
            if branch.normalized and branch not in by_kept:
                found.append("data")
            else:
                found.append("weights" if branch in by_weights else None)
        return found

    def _doubt(self, at: int, what: str) -> None:
        shape = list(self.trace.shapes[at])
        self._doubts.append(f"leaf {self.trace.paths[at]!r} {shape} {what}.")

    def _leaf(self, at: int) -> tuple[Leaf, tuple[int, ...]]:
        """What a leaf is, and the branches in or beside which it is."""
        path, shape, main = self.trace.paths[at], self.trace.shapes[at], self._main[at]
        kept = Leaf(path, Role.KEEP, shape, weight=len(shape) > 1)
        if main is None:
            if at in self.trace.graph.in_choices - self.kept:
                self._doubt(
                    at,
                    "is used in one branch of lax.cond or lax.switch, and not in that of most "
                    "layers, which alone is read; expected keep=, or a network without the choice",
                )
            return kept, ()
        branches, stacked = self._branches_of(at, main)
        beside = branches if main.place in _IN_BRANCH else ()
        if at in self.kept:
            return kept, beside
        self._doubt_uses(at)
        role = self._role(at)
        owner = self._owner(main)
        is_layer = main.kind is Kind.WEIGHT or owner is not None
        layer, m = self._position(at if owner is None else owner) if is_layer else (0, 0)
        if role is not Role.BRANCH:
            branches, layer, m = (), 0, 0
        weight = role is not Role.KEEP and (main.kind is Kind.WEIGHT or role is Role.EMBEDDING)
        leaf = Leaf(
            path, role, shape, stacked, weight, branches, layer, m,
            self._axes(at, main, stacked) if weight else "",
            main.groups,
            any(use.branch and use.node in use.branch.leaving for use in self.uses[at]),
        )  # fmt: skip
        return leaf, beside

    def _role(self, at: int) -> Role:
        main = self._main[at]
        assert main is not None
        if (owner := self._owner(main)) is not None:
            role = self._role(owner)
            return Role.KEEP if role is Role.EMBEDDING or owner in self.kept else role
        if main.kind is Kind.WEIGHT:
            return self._role_of_weight(at, main)
        branch = main.branch if main.place is Place.BRANCH else None
        if main.kind is Kind.MULTIPLIER and branch is not None:
            # One that is used outside as well may weigh the skip path against the branch.
            is_inside = all(use.place is Place.BRANCH for use in self.uses[at])
            is_factor = is_inside and self.residuals.scales(branch, main.node)
            return (Role.ALPHA if self._alpha else Role.MULTIPLIER) if is_factor else Role.KEEP
        long_axes = {span.axis for span in main.view.spans() if span.size > 1}
        if main.kind is Kind.BIAS and len(long_axes) == 1:
            return Role.CHANNEL_BIAS
        return _ROLES.get(main.kind, Role.KEEP)

    def _role_of_weight(self, at: int, main: Use) -> Role:
        if self._look_up(at):
            return Role.EMBEDDING
        if main.place in (Place.BRANCH, Place.SUM):
            is_gate = main.branch is not None and main.node in main.branch.gates
            return Role.KEEP if is_gate else Role.BRANCH
        if main.place is Place.SHORTCUT:
            return Role.SHORTCUT
        is_last = main.place is Place.HEAD and main.node not in self.flow.leads_to_layer
        return Role.HEAD if is_last else Role.STEM

    def _look_up(self, at: int) -> Use | None:
        """Where rows of a leaf are looked up, by index or by a product with one-hot tokens."""
        for use in self.uses[at]:
            is_product = use.kind is Kind.WEIGHT and is_looked_up(self.flow, use.node)
            if use.kind is Kind.EMBEDDING or is_product:
                return use
        return None

    def _owner(self, use: Use) -> int | None:
        """The weight to whose layer a bias vector belongs."""
        if use.kind is not Kind.BIAS:
            return None
        layer = bias_owner(self.flow, use)
        return None if layer is None else self._weight_of.get(layer)

    def _position(self, at: int) -> tuple[int, int]:
        """``j`` and ``m`` of a layer in its branch."""
        main = self._main[at]
        return (0, 0) if main is None else self._position_of(main)

    def _position_of(self, use: Use) -> tuple[int, int]:
        if use.branch is None or use.node not in use.branch.steps:
            return 0, 0
        in_order = use.branch.in_order
        return in_order.index(use.node) + 1, len(in_order)

    def _branches_of(self, at: int, main: Use) -> tuple[tuple[int, ...], int]:
        """The branches of a leaf, and how many leading axes run over them, then in their order."""
        graph = self.trace.graph
        uses = [use for use in self.uses[at] if use.kind is main.kind]
        turns = [each for use in uses for each in graph.in_turn(use.view.turns)]
        cut = {span.axis for _, axis in turns for span in axis} - {-1}
        if cut != {*range(len(cut))} and at not in self.kept:
            self._doubt(
                at,
                f"is cut by loops along axis {max(cut)}; expected its first axes to run over the "
                "turns, as after jnp.moveaxis, or keep=",
            )
        shuffled = any(span.axis >= 0 == span.stride for _, axis in turns for span in axis)
        if shuffled and at not in self.kept:
            self._doubt(
                at,
                "is cut by loops in an order that cannot be followed; expected slices in the order "
                "of the turns, or keep=",
            )
        starts, shape = {use.view.start for use in uses}, self.trace.shapes[at]
        no_first = all(span.axis != 0 for span in main.view.spans())
        is_indexed = no_first and bool(shape) and 1 < len(starts) == shape[0]
        at_index: dict[int, set[int]] = collections.defaultdict(set)
        for use in uses:
            for turn, k in use.branch.numbers.items() if use.branch else ():
                index = self._turned(use, turn, shape[: len(cut)])
                if index is not None:
                    at_index[index].add(k)
        ks = [k for index in sorted(at_index) for k in sorted(at_index[index])]
        branches = {use.branch for use in uses if use.branch}
        of_branches = {loop for branch in branches for loop, _ in graph.in_turn(branch.loops)}
        loops = {loop for use in uses for loop in use.view.cuts} - graph.side_by_side
        is_cut = bool(loops & of_branches if of_branches else loops and not ks)
        is_stacked = (is_cut or is_indexed) and len(set(ks)) == len(ks)
        stacked = max(len(cut), 1) if is_stacked else 0
        return tuple(ks if is_stacked else sorted(set(ks))), stacked

    def _turned(self, use: Use, turn: tuple[int, ...], lengths: tuple[int, ...]) -> int | None:
        """Which slice of a leaf the turns of the loops around a branch take, None if none."""
        assert use.branch is not None
        cuts, index = dict(use.view.turns), use.view.start * math.prod(lengths[1:])
        slices = self.trace.graph.slice_at(use.branch.loops, turn)
        for (loop, _), step in zip(use.branch.loops, slices, strict=True):
            if isinstance(step, slice):
                continue
            for span in reversed(cuts.get(loop, ())):
                step, place = divmod(step, span.size)
                if span.axis >= 0:
                    index += place * span.stride * math.prod(lengths[span.axis + 1 :])
                elif span.stride >= 0 and span.stride != place:
                    return None
        return index

    def _axes(self, at: int, main: Use, stacked: int) -> str:
        """A letter for each axis of a weight."""
        shape = self.trace.shapes[at]
        table = self._look_up(at)
        word = list((table or main).axes)
        word[:stacked] = "N" * stacked
        if word[0] == "?":
            word[0] = "N"
        unknown = [axis for axis, letters in enumerate(word) if letters == "?" or len(letters) > 1]
        if unknown and table:
            return "N" * (len(shape) - 2) + "IO"
        if unknown:
            self._doubt(
                at,
                f"has an axis {unknown[0]} that is neither an input nor an output of its layer "
                "alone; expected a leaf whose axes can be followed, or keep=",
            )
            return ""
        return "".join("H" if letter == "1" else letter for letter in word)

    def _doubt_uses(self, at: int) -> None:
        uses, main = self.uses[at], self._main[at]
        assert main is not None
        if any(use.kind is Kind.OPAQUE for use in uses):
            self._doubt(at, "reaches a layer on a way that cannot be followed; expected keep=")
        kinds = {use.kind for use in uses}
        if kinds & {Kind.BIAS, Kind.SCALAR_BIAS} and kinds & {Kind.WEIGHT, Kind.MULTIPLIER}:
            self._doubt(
                at, "is added to data and multiplies them; expected a leaf for each, or keep="
            )
        dtype = self.trace.program.in_avals[at].dtype
        if main.kind is Kind.WEIGHT and not jnp.issubdtype(dtype, jnp.inexact):
            self._doubt(at, f"is a weight of {dtype}; expected floating-point numbers, or keep=")
        views = [view for _, use in self.flow[main.node].uses for view in use.views]
        product = max((view.size for view in views if view.contracted), default=0)
        other = max((view.size for view in views if not view.contracted), default=0)
        # A low-rank product has factors that are smaller than the weight.
        if product and main.kind in (Kind.ADAPTER, Kind.WEIGHT) and product >= other:
            paths = dict.fromkeys(repr(self.trace.paths[view.leaf]) for view in views)
            self._doubt(
                at,
                "meets the data in a product of leaves, as a factor of a weight or the begin of a "
                f"stream; expected keep= to match {', '.join(paths)}, or streams= the begin",
            )
        ends = [use.node for use in uses if use.kind is Kind.BIAS]
        begins = [use.node for use in uses if use.kind not in (Kind.BIAS, *_OF_NORM)]
        ways = [self.flow.between(begin, end) for begin in begins for end in ends if begin < end]
        if main.kind not in (Kind.WEIGHT, Kind.EMBEDDING) and any(map(self.flow.layers, ways)):
            self._doubt(at, "is added to what layers make of it; expected streams= or keep=")
        layers = [use for use in uses if use.kind is Kind.WEIGHT]
        steps = sorted({self._position_of(use) for use in layers} - {(0, 0)})
        if len({(j == m, m) for j, m in steps}) > 1:
            shown = " and ".join(f"layer {j} of {m}" for j, m in steps)
            self._doubt(at, f"is {shown} of residual branches; expected a leaf for each")
        places = {use.place for use in layers}
        if len(places) > 1 and not self._look_up(at):
            self._doubt(
                at,
                f"is a layer of {' and of '.join(sorted(f'the {place}' for place in places))}; "
                "expected one of them, or keep=",
            )


def _branches(
    residuals: Residuals,
    leaves: Sequence[Leaf],
    normalized: Sequence[Literal["data", "weights"] | None],
) -> tuple[Branch, ...]:
    members: dict[int, list[Leaf]] = collections.defaultdict(list)
    for leaf in leaves:
        if leaf.role is Role.BRANCH and leaf.weight:
            for k in leaf.branches:
                members[k].append(leaf)
    made = []
    for residual, norm in zip(residuals.branches, normalized, strict=True):
        turns = len(residual.numbers)
        for index, k in enumerate(residual.numbers.values()):
            layers = sorted(members[k], key=lambda leaf: leaf.layer)
            paths = [leaf.path for leaf in layers]
            start = os.path.commonprefix(paths).rpartition("/")[0]
            name = start or (paths[-1] if paths else f"branch {k}")
            name += f"[{index}]" if any(leaf.stacked for leaf in layers) else ""
            scales = (_at_turn(factor, index, turns) for factor in residual.scales)
            made.append(Branch(k, name, len(residual.steps), norm, *scales))
    return tuple(sorted(made, key=lambda branch: branch.k))


def _at_turn(factor: Factor, index: int, count: int) -> float | None:
    if factor is None or isinstance(factor, int | float):
        return factor
    # It may differ between turns that stand side by side.
    return float(factor[index * len(factor) // count]) if len(factor) <= count else None
