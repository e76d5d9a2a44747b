"""What a leaf is where it meets the data: its kind, its place, and the axes of its layer."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
from collections.abc import Sequence

from nf_resnets.roles.flow import Flow, reached
from nf_resnets.roles.graph import LINEAR, Node, Trace
from nf_resnets.roles.residual import Residual, Residuals
from nf_resnets.roles.running import CALLS_OUTSIDE
from nf_resnets.roles.views import Derived, View


class Kind(enum.StrEnum):
    """How a leaf enters a step."""

    WEIGHT = "weight"
    EMBEDDING = "embedding"
    ADAPTER = "adapter"  # a low-rank factor of a weight, or of an addition to one
    OPAQUE = "opaque"  # a weight on a way that cannot be followed
    BIAS = "bias"
    SCALAR_BIAS = "scalar bias"
    MULTIPLIER = "multiplier"
    WEIGHT_GAIN = "gain of a weight"  # one that multiplies a normalized weight
    NORM_SCALE = "scale of a norm"
    NORM_SHIFT = "shift of a norm"
    STATISTIC = "running statistic"
    OTHER = "other"  # a vector that multiplies data, a token that is joined to it


class Place(enum.StrEnum):
    """Where a step lies."""

    BRANCH = "branch"
    SHORTCUT = "shortcut"
    SUM = "sum"  # a bias vector that is added to the sum
    HEAD = "head"  # behind all sums
    STEM = "stem"  # everywhere else


@dataclasses.dataclass(frozen=True)
class Use:
    """One place where a leaf meets the data."""

    node: int  # the step
    view: View  # the leaf in its operand
    kind: Kind  # what it is there
    place: Place  # where that is
    branch: Residual | None  # the residual branch, if it is in one or beside it
    # a letter for each axis of a weight, `?` if it is not known
    axes: tuple[str, ...] = ()
    groups: int = 1  # of a convolution


def uses_of(trace: Trace, flow: Flow, residuals: Residuals) -> list[list[Use]]:
    """The uses of each leaf, in the order of computation."""
    places = _Places(flow, residuals)
    uses: list[list[Use]] = [[] for _ in trace.paths]
    for node in flow.nodes:
        for at, derived in node.uses:
            for view in derived.views:
                kind = _kind(flow, node, at, derived, view)
                axes: tuple[str, ...] = ()
                groups = 1
                if kind is Kind.EMBEDDING:
                    sizes = zip(node.options["slice_sizes"], derived.shape, strict=True)
                    letters = ["I" if part < whole else "O" for part, whole in sizes]
                    axes = _axes(view, letters, trace.shapes[view.leaf])
                if kind in (Kind.WEIGHT, Kind.ADAPTER):
                    letters, copies = _letters(node, at, derived), residuals.copies.found[node.id]
                    letters = ["N" if p in copies else c for p, c in enumerate(letters)]
                    axes = _axes(view, letters, trace.shapes[view.leaf])
                    groups = node.options.get("feature_group_count", 1)
                if node.id in residuals.adapters and kind is Kind.WEIGHT:
                    kind = Kind.ADAPTER
                if kind is Kind.SCALAR_BIAS and trace.shapes[view.leaf] == (1,):
                    kind = Kind.BIAS if _has_one_output(flow, node) else kind
                uses[view.leaf].append(Use(node.id, view, kind, *places.of(node), axes, groups))
    return uses


class _Places:
    """Where each node lies with regard to the branches."""

    def __init__(self, flow: Flow, residuals: Residuals) -> None:
        self.flow = flow
        self.inside: dict[int, tuple[Place, Residual]] = {}
        for branch in residuals.branches:
            beside = dict.fromkeys(residuals.biases_after(branch.sum), (Place.SUM, branch))
            beside |= dict.fromkeys(branch.shortcut, (Place.SHORTCUT, branch))
            inside = dict.fromkeys(branch.region, (Place.BRANCH, branch))
            self.inside = beside | self.inside | inside
        in_turn = flow.graph.in_turn
        self.loops = {branch.loops for branch in residuals.branches if in_turn(branch.loops)}
        self.passed_on = reached(flow.graph.passed_on, lambda at: flow[at].preds)
        ends = {branch.sum for branch in residuals.branches}
        preds = (pred for end in ends for pred in flow[end].preds)
        before = reached(preds, lambda at: flow[at].preds)
        behind = reached((user for end in ends for user in flow.users[end]), flow.users.get)
        # Without branches, what no layer follows.
        self.head = behind - before if ends else {*flow.above} - flow.leads_to_layer

    def of(self, node: Node) -> tuple[Place, Residual | None]:
        if node.id in self.inside:
            return self.inside[node.id]
        # What a loop around branches passes on comes before its next turn.
        is_inside = any(node.loops[: len(loops)] == loops for loops in self.loops)
        is_between = is_inside and node.id in self.passed_on
        is_head = node.id in self.head and not is_between
        return (Place.HEAD if is_head else Place.STEM), None


def _kind(flow: Flow, node: Node, at: int, derived: Derived, view: View) -> Kind:
    if node.name in CALLS_OUTSIDE:
        return Kind.OPAQUE
    if node.name in LINEAR and len(node.preds) == 1:
        return _kind_in_layer(node, at, derived, view)
    if view.rooted:
        return Kind.STATISTIC
    if node.name == "gather" and at == 0 and sum(n > 1 for n in node.options["slice_sizes"]) > 1:
        return Kind.OPAQUE  # kernels that are chosen by data
    if node.name in ("gather", "dynamic_slice", "take") and at == 0:
        return Kind.EMBEDDING
    long_axes = sum(span.size > 1 for span in view.spans())
    if node.name == "select_n" and long_axes > 1:
        return Kind.OPAQUE
    is_scalar = view.size == 1 and view.exact
    if node.name in ("add", "sub"):
        uses = (other for user in flow.users[node.id] for _, other in flow[user].uses)
        is_divided = any(other.rooted for other in uses)
        if node.name == "sub" and view.size > 1 and is_divided:
            return Kind.STATISTIC  # x minus a running mean, divided by the root of a leaf
        if flow.follows_norm(node.preds[0]):
            return Kind.NORM_SHIFT
        is_factor = view.size < max(other.size for other in derived.views)  # of a bias vector
        is_bias = view.linear and not is_factor
        return (Kind.SCALAR_BIAS if is_bias else Kind.OTHER) if is_scalar else Kind.BIAS
    if node.name in ("mul", "div"):
        if long_axes > 1 and any(flow[user].name == "reduce_sum" for user in flow.users[node.id]):
            return Kind.OPAQUE  # a layer that is written as a product and a sum
        if derived.rooted or flow.roots[node.preds[0]] or flow.follows_norm(node.preds[0]):
            return Kind.NORM_SCALE
        users = flow.users[node.id]
        if users and flow.normalized.issuperset(users):
            return Kind.NORM_SCALE
        if long_axes > 2:
            return Kind.OPAQUE  # a kernel that data change
        return Kind.MULTIPLIER if is_scalar and view.linear else Kind.OTHER
    return Kind.OTHER


def _kind_in_layer(node: Node, at: int, derived: Derived, view: View) -> Kind:
    """What a leaf of a layer's kernel is: the weight, or what multiplies it."""
    if view.contracted:
        return Kind.ADAPTER
    letters = _letters(node, at, derived)
    axes = zip(view.axes, letters, strict=True)
    long = {c for axis, c in axes if any(span.axis >= 0 and span.size > 1 for span in axis)}
    larger = max(other.size for other in derived.views)
    if view.size < larger and not {"I", "O"} <= long:
        if not view.exact:
            return Kind.OPAQUE
        return Kind.WEIGHT_GAIN if view.size > 1 else Kind.MULTIPLIER
    return Kind.WEIGHT if view.exact and view.vanishes else Kind.OPAQUE


def _letters(node: Node, at: int, derived: Derived) -> list[str]:
    """A letter for each axis of a kernel as its layer takes it."""
    numbers = node.options["dimension_numbers"]
    if node.name == "conv_general_dilated":
        letters = ["D"] * len(derived.shape)
        letters[numbers.rhs_spec[0]], letters[numbers.rhs_spec[1]] = "O", "I"
        taps = numbers.rhs_spec[2:]
        for p, letter in zip(taps, {1: "D", 2: "HW"}.get(len(taps), "DHW"), strict=False):
            letters[p] = letter
        return letters
    contracted, batch = numbers[0][at], numbers[1][at]
    return [
        "I" if p in contracted else "N" if p in batch else "O" for p in range(len(derived.shape))
    ]


def _axes(view: View, letters: Sequence[str], shape: tuple[int, ...]) -> tuple[str, ...]:
    """The letters of each axis of a leaf, several where an axis is a product."""
    letters_of: dict[int, list[tuple[int, str]]] = collections.defaultdict(list)
    lettered = [*zip(view.axes, letters, strict=True), *((axis, "N") for _, axis in view.turns)]
    for spans, letter in lettered:
        for span in spans:
            letters_of[span.axis].append((-span.stride, letter))
    word = []
    for axis, length in enumerate(shape):
        of_axis = "".join(letter for _, letter in sorted(letters_of[axis]))
        word.append(
            of_axis[:1] if len(set(of_axis)) == 1 else of_axis or ("1" if length == 1 else "?")
        )
    return tuple(word)


def _has_one_output(flow: Flow, step: Node) -> bool:
    """Whether a step takes what a layer with one output gives, moved alone."""
    layer = flow[flow.behind_moves(step.preds[0])]
    return layer.is_layer and _outputs(layer, "O") == 1


def _outputs(layer: Node, letters: str) -> int:
    """How many outputs a layer has (``O``), and copies of it (``N``)."""
    at, kernel = layer.uses[0]
    pairs = zip(_letters(layer, at, kernel), kernel.shape, strict=True)
    return math.prod(length for letter, length in pairs if letter in letters)


def bias_owner(flow: Flow, use: Use) -> int | None:
    """The layer to whose output a bias vector is added, through moves alone, or to its sum.

    What has more numbers than the layer has outputs is added by position.
    """
    if use.place is Place.SUM and use.branch is not None:
        at = next(reversed(use.branch.in_order), use.node)
    else:
        at = flow.behind_moves(flow.unscaled(flow[use.node].preds[0])[0])
        if use.node not in (node.id for node in flow.ahead(at)):
            return None  # it shifts one of the ways on from there
    is_owner = flow[at].is_layer and use.view.size <= _outputs(flow[at], "NO")
    return at if is_owner else None


def is_looked_up(flow: Flow, at: int) -> bool:
    """Whether a layer takes a comparison with numbers: tokens, one-hot."""
    return flow[flow.behind_moves(flow[at].preds[0])].name == "eq"
