"""What flows where in a graph: dominators, the fork of two paths, regions, norms, constants.

A node *dominates* another if every path from the inputs to that one passes through it. The residual
stream is the chain of the dominators of a skip path.
"""

from __future__ import annotations

import collections
import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Set

from nf_resnets.roles.graph import LINEAR, Graph, Node, Trace
from nf_resnets.roles.views import MOVES, Factor, times

NONE = -1
"""What dominates the inputs."""

ROOTS = ("rsqrt", "sqrt")
SUMS = ("add", "add_any", "sub")
ELEMENTWISE = MOVES | {
    *SUMS, "abs", "div", "integer_pow", "max", "min", "mul", "neg", "select_n", "square",
}  # fmt: skip
LINEAR_STEPS = MOVES | {*SUMS, "neg", "reduce_sum", "reduce_window_max", "reduce_window_sum"}
"""Steps that keep a path a linear map of what it begins with, or nearly, as pooling does."""


class Flow:
    """The nodes on which the outputs depend, and their order."""

    def __init__(self, trace: Trace) -> None:
        self.graph: Graph = trace.graph
        live = reached(trace.outputs, lambda at: self.graph.nodes[at].preds)
        self.nodes = [node for node in self.graph.nodes if node.id in live]
        self.users: dict[int, list[int]] = collections.defaultdict(list)
        for node in self.nodes:
            for pred in node.preds:
                self.users[pred].append(node.id)
        # the dominator next before a node, NONE before the first
        self.above: dict[int, int] = {NONE: NONE}
        self._level = {NONE: 0}
        self._find_dominators()
        self.roots: dict[int, bool] = {}  # whether a node is the root of a statistic of the data
        # the nodes that divide by the root of a statistic, of data or a running one
        self.normalized: set[int] = set()
        self._find_roots()
        before = (pred for node in self.nodes if node.is_layer for pred in node.preds)
        # the nodes behind which a layer comes
        self.leads_to_layer = reached(before, lambda at: self[at].preds)
        self.in_norm = set(self.normalized)  # all steps of norms
        for end in self.normalized:
            steps = self.between(self.above[end], end)
            if not self.layers(steps):
                self.in_norm |= steps

    def __getitem__(self, at: int) -> Node:
        return self.graph.nodes[at]

    def _find_dominators(self) -> None:
        for node in self.nodes:
            common = functools.reduce(self._meet, node.preds) if node.preds else NONE
            self.above[node.id] = common
            self._level[node.id] = self._level[common] + 1

    def _meet(self, one: int, two: int) -> int:
        while one != two:
            if self._level[one] < self._level[two]:
                two = self.above[two]
            else:
                one = self.above[one]
        return one

    def _find_roots(self) -> None:
        statistic: dict[int, bool] = {}
        for node in self.nodes:
            at, name = node.id, node.name
            square = name == "dot_general" and len(node.preds) == 2 and len(set(node.preds)) == 1
            reduces = name in ("reduce_sum", "reduce_window_sum", "psum") or square
            is_root = name in ROOTS or (name == "pow" and _is_half(node))
            smooth = name in ELEMENTWISE or is_root or name == "pow"
            of_statistics = bool(node.preds) and all(statistic[pred] for pred in node.preds)
            of_roots = bool(node.preds) and all(self.roots[pred] for pred in node.preds)
            statistic[at] = reduces or (smooth and of_statistics)
            self.roots[at] = (is_root and of_statistics) or (smooth and of_roots)
            if name in ("mul", "div"):
                by_root = len(node.preds) == 2 and sum(self.roots[p] for p in node.preds) == 1
                if by_root or (len(node.preds) == 1 and _by_running_root(node)):
                    self.normalized.add(at)

    def follows_norm(self, at: int) -> bool:
        """Whether a value is normalized, but for constants, and shifts and scales by leaves."""
        for node in self.back(at):
            if node.id in self.normalized:
                return True
            by_leaf = node.name in ("mul", "add") and node.uses
            if node.name not in MOVES and not by_leaf and not is_constant_factor(node):
                return False
        return False

    def fork(self, skip: int, branch: int) -> int | None:
        """The last node that all of ``skip`` passes through and ``branch`` depends on."""
        heap, seen, at = [-branch], {branch}, skip
        while at != NONE:
            while heap and -heap[0] >= at:
                for pred in self[-heapq.heappop(heap)].preds:
                    if pred not in seen:
                        seen.add(pred)
                        heapq.heappush(heap, -pred)
            if at in seen:
                return at
            at = self.above[at]
        return None

    def between(self, fork: int, end: int, others: Set[int] = frozenset()) -> set[int]:
        """The nodes that depend on the fork, or on others, and that the end needs, with the end."""
        starts = {fork, *others}
        if end in starts:
            return set()
        first = min(starts)
        back = reached([end], lambda at: {p for p in self[at].preds if p > first} - starts)
        hot = {*starts}
        for at in sorted(back):
            if any(pred in hot for pred in self[at].preds):
                hot.add(at)
        return hot - starts

    def layers(self, region: Iterable[int]) -> list[int]:
        """The layers of a region, in order."""
        return sorted(at for at in region if self[at].is_layer)

    def behind_moves(self, at: int, moves: Set[str] = MOVES) -> int:
        """What a value was before it was moved."""
        for node in self.back(at):
            at = node.id
            if node.name not in moves:
                break
        return at

    def back(self, at: int) -> Iterator[Node]:
        """A value and those before it, as long as each is made of one."""
        yield self[at]
        while len(self[at].preds) == 1:
            at = self[at].preds[0]
            yield self[at]

    def ahead(self, at: int) -> Iterator[Node]:
        """The steps behind a value, as long as nothing else takes what each of them does."""
        while len(self.users[at]) == 1:
            (at,) = self.users[at]
            yield self[at]

    def layer_before(self, at: int) -> int:
        """The layer whose output a value is, moved and shifted, or where its one way back ends."""
        way = [*self.back(at)]
        return next((node for node in way if node.is_layer), way[-1]).id

    def is_linear(self, region: Iterable[int]) -> bool:
        """Whether a region is a linear map of what enters it, norms aside."""
        for at in region:
            node = self[at]
            multiplies = node.name in (*LINEAR, "mul", "div") and len(node.preds) == 1
            drops = node.name == "select_n" and len(node.preds) == 1 and _is_mask(node)
            if not (multiplies or drops or node.name in LINEAR_STEPS or at in self.in_norm):
                return False
        return True

    def unscaled(self, at: int, until: int = NONE) -> tuple[int, Factor, bool]:
        """Follows a value back through constant factors, multipliers and casts.

        Returns where that ends, the product of the constants, and whether a leaf was a factor.
        """
        factor: Factor = 1.0
        by_leaf = False
        for node in self.back(at):
            at = node.id
            if at == until or len(node.preds) != 1:
                break
            if node.name in ("mul", "div"):
                if node.uses:
                    by_leaf = True
                    factor = times(factor, node.uses[0][1].views[0].scale, node.name)
                else:
                    factor = times(factor, node.constants[0][1].factor(node.loops), node.name)
            elif node.name == "neg":
                factor = times(factor, -1.0)
            elif node.name not in ("convert_element_type", "copy", "name", "optimization_barrier"):
                break
        return at, factor, by_leaf

    def scale_after(self, at: int) -> Factor:
        """The constant by which a value is multiplied before anything else uses it."""
        factor: Factor = 1.0
        for user in self.ahead(at):
            is_scale = user.name in ("mul", "div") and not user.uses
            if len(user.preds) != 1 or not (is_scale or user.name == "convert_element_type"):
                break
            if is_scale:
                factor = times(factor, user.constants[0][1].factor(user.loops), user.name)
        return factor


def reached(starts: Iterable[int], following: Callable[[int], Iterable[int] | None]) -> set[int]:
    """The nodes to which steps lead from some, themselves included."""
    todo = [*starts]
    seen = {*todo}
    while todo:
        new = {*(following(todo.pop()) or ())} - seen
        seen |= new
        todo += new
    return seen


def is_constant_factor(node: Node) -> bool:
    """Whether a step multiplies data by one number that is no leaf's."""
    by_number = any(each.size == 1 for _, each in node.constants)
    return by_number and (node.name == "mul" or (node.name == "div" and node.order == (0,)))


def _is_mask(choice: Node) -> bool:
    """Whether a choice is between data and zeros."""
    return [each.number() for at, each in choice.constants if at > 0] == [0.0]


def _is_half(node: Node) -> bool:
    power = node.constants[0][1].number() if node.constants and len(node.preds) == 1 else None
    return power is not None and abs(power) == 0.5


def _by_running_root(node: Node) -> bool:
    """Whether a node multiplies by a root that is no number: of a leaf, or a closed-over array."""
    closed_over = any(each.rooted and each.size > 1 for _, each in node.constants)
    return closed_over or any(use.rooted for _, use in node.uses)
