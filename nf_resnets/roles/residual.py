"""Residual branches: what is added to a path that skips it, and the order of its layers.

For every sum, the *fork* is the last node through which all of one summand, the skip path, passes,
and on which another depends. The nodes between the fork and that other one are the branch. A skip
path has no layer, or one linear layer, the projection of a shortcut.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import jax.numpy as jnp

from nf_resnets.roles.copies import Copies
from nf_resnets.roles.flow import NONE, SUMS, Flow, reached
from nf_resnets.roles.graph import LINEAR, Loops, Node, Trace
from nf_resnets.roles.running import Path
from nf_resnets.roles.views import NOT_ZERO_AT_ZERO, Factor, times

Nested = Literal["inner", "outer"] | None
MOST_SUMMANDS = 32
PRODUCTS = ("mul", "dot_general", "conv_general_dilated")
INDICES = {"gather": 1, "scatter": 1, "scatter-add": 1, "select_n": 0}
"""Which operand says what a step takes, or where it puts it."""
CHOICES = ("argmax", "argmin", "sort", "top_k")


@dataclasses.dataclass(eq=False)
class Residual:
    """A residual branch, once for all turns of the loops around it."""

    sum: int  # the node of the sum
    fork: int  # where the skip path and the branch part
    ends: list[int]  # the summands in which the branch ends, mostly one
    region: set[int]  # the nodes of the branch
    shortcut: set[int]  # the nodes of the skip path
    # those in the branch, and those that feed it alone, as keys and values of an encoder
    layers: list[int]
    # the constants on the skip path, on the branch and on the sum
    scales: tuple[Factor, Factor, Factor]
    normalized: bool  # whether the branch contains a norm
    loops: Loops  # those around it
    # the layers that make a factor of another path, as those of squeeze-and-excitation
    gates: set[int] = dataclasses.field(default_factory=set)
    # how many layers come before a layer, itself included; no gates
    steps: dict[int, int] = dataclasses.field(default_factory=dict)
    # the layers of which each makes the branch zero by being zero
    zeroing: set[int] = dataclasses.field(default_factory=set)
    # those that reach the outputs by another way than its sum
    leaving: set[int] = dataclasses.field(default_factory=set)
    # its number `k = 1..L` at each turn of its loops
    numbers: dict[tuple[int, ...], int] = dataclasses.field(default_factory=dict)

    @property
    def in_order(self) -> list[int]:
        """Its layers from the first to the last.

        Of parallel ones the zeroing come last, as the value behind query and key, then they are as
        they are computed.
        """
        return sorted(self.steps, key=lambda at: (self.steps[at], at in self.zeroing, at))


class Residuals:
    """The residual branches of a network.

    Attributes:
      branches: one for each sum and summand, in the order of computation.
      adapters: the layers of low-rank additions to others, ``W x + B A x``.
      doubts: what cannot be known, a sentence each.
      copies: of the layers.
      count: ``L``, the number of branches with all turns of loops.
    """

    def __init__(
        self,
        trace: Trace,
        flow: Flow,
        *,
        nested: Nested = None,
        projections: bool | None = None,
        parts: bool | None = None,
    ) -> None:
        self._trace, self._flow, self.copies = trace, flow, Copies(flow)
        self._projections, self._parts = projections, parts
        self.branches: list[Residual] = []
        self.adapters: set[int] = set()
        self.doubts: list[str] = []
        self._gated: dict[int, str] = {}  # doubts, by sum
        inner = self._inner_sums()
        for node in flow.nodes:
            if self.adds(node) and node.id not in inner:
                self._read_sum(node)
        self._resolve_nesting(nested)
        within = set().union(*(branch.region for branch in self.branches))
        self.doubts += [what for at, what in self._gated.items() if at not in within]
        self._find_loops_side_by_side()
        for branch in self.branches:
            self._order(branch)
        self.count = self._number()

    def leaves(self, region: Iterable[int]) -> str:
        """The leaves that enter a region, as a sentence names them."""
        uses = [use for at in sorted(region) for _, use in self._flow[at].uses]
        paths = dict.fromkeys(self._trace.paths[view.leaf] for use in uses for view in use.views)
        shown = [repr(path) for path in paths][:4]
        return ", ".join(shown) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")

    # Sums.

    def adds(self, node: Node) -> bool:
        """Whether a node is a sum of values that depend on the data."""
        return node.name in SUMS and len(set(node.preds)) > 1 and node.is_float

    def _inner_sums(self) -> set[int]:
        """The sums that are a summand of another and nothing else."""
        inner: set[int] = set()
        for node in self._flow.nodes:
            if self.adds(node):
                inner.update(at for pred in node.preds if (at := self._sum_behind(pred)) != NONE)
        return inner

    def _sum_behind(self, pred: int) -> int:
        """The sum that a summand is but for constants, if nothing else uses it, or ``NONE``."""
        flow = self._flow
        at = flow.unscaled(pred)[0]
        way = itertools.takewhile(lambda node: len(flow.users[node.id]) == 1, flow.back(pred))
        is_sum = self.adds(flow[at]) and any(node.id == at for node in way)
        return at if is_sum else NONE

    def summands(self, node: Node) -> list[tuple[int, int]]:
        """The summands of a sum and of the sums in it, each with the node that adds it."""
        return [(term, adder) for term, adder, _ in self._terms(node)]

    def _terms(self, node: Node) -> Iterator[tuple[int, int, Factor]]:
        """Each summand with the node that adds it, and its factor between the sums."""
        todo: list[tuple[int, int, Factor]] = [(node.id, NONE, 1.0)]
        while todo:
            term, adder, factor = todo.pop()
            at = term if adder == NONE else self._sum_behind(term)
            if at == NONE:
                yield term, adder, factor
                continue
            _, scale, by_leaf = self._flow.unscaled(term, at)
            factor = None if by_leaf else times(factor, scale)
            one, two = self._flow[at].preds
            of_two = times(factor, -1.0) if self._flow[at].name == "sub" else factor
            todo += [(two, at, of_two), (one, at, factor)]

    def _factors(self, node: Node) -> dict[int, Factor]:
        """The factor of each summand; of more than ``MOST_SUMMANDS`` of the first."""
        factors: dict[int, Factor] = {}
        for term, _, factor in self._terms(node):
            other = factors.get(term, 0.0)
            factors[term] = None if other is None or factor is None else other + factor
            if len(factors) > MOST_SUMMANDS:
                break
        return factors

    def _read_sum(self, node: Node) -> None:
        """Finds the branches that end in a sum."""
        flow, factors = self._flow, self._factors(node)
        terms = [*factors]
        if len(terms) > MOST_SUMMANDS:
            return
        self._note_adapters(terms)
        self._doubt_gated_skip(node, terms)
        chosen = self._skip_path(node, terms)
        if chosen is None:
            return
        skip, fork = chosen
        rest = [term for term in terms if term != skip]
        shortcut = flow.between(fork, skip)
        regions = [self._region(fork, term) for term in rest]
        if not any(map(flow.layers, regions)):
            return
        products = self._products(shortcut)
        if products and all(map(flow.is_linear, (shortcut, *regions))):
            return  # one linear map, as W x + B A x
        if self._splits(shortcut) and any(map(self._splits, regions)) and not self._parts:
            if self._parts is None:
                everything = self.leaves(shortcut.union(*regions))
                self.doubts.append(
                    f"the layers of {everything} are added to a part of a split "
                    "value; expected parts= to be True if that is a residual stream, False if it "
                    "is within a branch."
                )
            return
        # A path that is no linear map of kept layers is one that keep= answered for.
        is_asked = flow.layers(shortcut) or (products and flow.is_linear(shortcut))
        if is_asked and not self._is_projection(node, fork, shortcut, regions):
            return
        gates = self._gates(fork, set().union(*regions))
        for ends, region in self._grouped(rest, regions, gates):
            term = ends[0]
            layers = [at for at in flow.layers(region) if at not in self.adapters]
            if not layers:
                continue
            _, scale, _ = flow.unscaled(term, fork)
            _, skip_scale, by_leaf = flow.unscaled(skip, fork)
            skip_scale = None if by_leaf else times(skip_scale, factors[skip])
            scales = (skip_scale, times(scale, factors[term]), flow.scale_after(node.id))
            is_normed, inner = bool(region & flow.normalized), gates & region
            made = Residual(
                node.id, fork, ends, region, shortcut, layers, scales, is_normed, node.loops,
                set() if inner >= {*layers} else inner,
            )  # fmt: skip
            self.branches.append(made)

    def _skip_path(self, node: Node, terms: Sequence[int]) -> tuple[int, int] | None:
        """The summand that is the skip path, the one of fewest layers, with its fork."""
        flow = self._flow
        best: tuple[tuple[int, int], int, int] | None = None
        for skip, term in itertools.permutations(terms, 2):
            fork = flow.fork(skip, term)
            if fork is None or fork == term or not flow[fork].is_float:
                continue
            path = flow.between(fork, skip)
            if self._repeats(path) or flow[skip].size < node.size or self._adds_up(path, node):
                continue  # a shift by a condition, and no stream
            of_path = len(flow.layers(path))
            of_branch = len(flow.layers(flow.between(fork, term)))
            rank = (of_path, -of_branch)
            if of_branch and of_path <= 1 and (best is None or rank < best[0]):
                best = rank, skip, fork
        return best and best[1:]

    def _region(self, fork: int, term: int) -> set[int]:
        """The nodes of a branch, back to its fork and to the sums of other streams.

        A sum in the branch whose fork lies before it is another stream's, as of a graph's edges.
        """
        region = self._flow.between(fork, term)
        streams: set[int] = set()
        while True:
            sums = {
                b.sum for b in self.branches if b.sum in region and b.fork not in region | {fork}
            }
            if not sums:
                return region
            streams |= sums
            region = self._flow.between(fork, term, streams)

    def _doubt_gated_skip(self, node: Node, terms: Sequence[int]) -> None:
        """Doubts ``g(x) * x + ...``, where layers make a factor of the skip path."""
        flow = self._flow
        for skip in terms:
            product = flow[flow.unscaled(skip)[0]]
            if product.name != "mul" or len(set(product.preds)) < 2:
                continue
            for stream, gate in (product.preds, product.preds[::-1]):
                path = flow.between(stream, gate)
                if not path.isdisjoint({*terms} - {skip}):
                    continue  # the other summand is the skip path
                others = [flow.between(stream, term) for term in terms if term != skip]
                is_carry = flow[stream].name == "carry" and flow[stream].starts_as_zeros
                if flow.layers(path) and any(map(flow.layers, others)) and not is_carry:
                    self._gated[node.id] = (
                        f"the path that skips {self.leaves(set().union(*others))} is multiplied "
                        f"by a gate of {self.leaves(path)}; expected keep= to match the gate's "
                        "leaves if the sum ends a residual branch."
                    )

    def _is_projection(
        self, node: Node, fork: int, shortcut: set[int], regions: Sequence[set[int]]
    ) -> bool:
        """Whether a skip path with one layer is a shortcut, and no branch beside others."""
        flow = self._flow
        if not flow.is_linear(shortcut) or any(map(flow.is_linear, regions)):
            return False
        layers = self._products(shortcut)
        is_head = node.id not in flow.leads_to_layer
        way = flow.between(fork, node.id)
        holds_others = any(branch.sum in way for branch in self.branches)
        keeps_shape = sorted(flow[fork].shape) == sorted(flow[layers[0]].shape)
        is_asked = is_head or holds_others or keeps_shape
        if self._projections is None and is_asked:
            self.doubts.append(
                f"the layer of {self.leaves(layers)} beside {self.leaves(set().union(*regions))} "
                "may be a shortcut or a path of a sum without a skip path; expected projections= "
                "to be True for a shortcut, False for a path."
            )
        return self._projections is not False

    def _grouped(
        self, terms: Sequence[int], regions: Sequence[set[int]], gates: set[int]
    ) -> list[tuple[list[int], set[int]]]:
        """The summands with their regions; those that share a layer are one, gates aside."""
        groups: list[tuple[list[int], set[int]]] = []
        for term, region in zip(terms, regions, strict=True):
            layers = set(self._flow.layers(region))
            for at, (terms_of, other) in enumerate(groups):
                if layers.intersection(self._flow.layers(other)) - gates:
                    groups[at] = ([*terms_of, term], other | region)
                    break
            else:
                groups.append(([term], region))
        return groups

    def _note_adapters(self, terms: Sequence[int]) -> None:
        """Of two linear maps of one value, the one of two layers is an adapter of the other."""
        flow = self._flow
        for one, two in itertools.permutations(terms, 2):
            fork = flow.fork(one, two)
            if fork is None:
                continue
            paths = flow.between(fork, one), flow.between(fork, two)
            short, long = map(self._products, paths)
            if (len(short), len(long)) == (1, 2) and all(map(flow.is_linear, paths)):
                self.adapters.update(long)

    def _products(self, path: set[int]) -> list[int]:
        """The layers of a path, kept ones too."""
        nodes = map(self._flow.__getitem__, sorted(path))
        return [each.id for each in nodes if each.is_layer or (each.kept and each.name in LINEAR)]

    def _repeats(self, path: set[int]) -> bool:
        """Whether a skip path repeats a smaller value along an axis."""
        flow = self._flow
        repeats = (at for at in path - flow.in_norm if flow[at].name == "broadcast_in_dim")
        return any(flow[at].size > self._size_before_repeat(at) for at in repeats)

    def _adds_up(self, path: set[int], sum_: Node) -> bool:
        """Whether a skip path is no stream: a loss or a count that begins there, or as zeros."""
        flow = self._flow
        steps = (flow[at] for at in path - flow.in_norm)
        reduces = any(step.name.startswith("reduce_") and "axes" in step.options for step in steps)
        is_side = not flow.is_linear(path) or sum_.id not in flow.leads_to_layer
        is_number = not flow.layers(path) and reduces and is_side
        return is_number or any(flow[at].starts_as_zeros for at in path)

    def _size_before_repeat(self, at: int) -> int:
        moves = {"broadcast_in_dim", "reshape", "convert_element_type"}
        return min(self._flow[at].size, self._flow[self._flow.behind_moves(at, moves)].size)

    def _splits(self, region: set[int]) -> bool:
        """Whether a path takes a half, or less, of a value along an axis."""
        for at in region:
            node = self._flow[at]
            if node.name == "split":
                return True
            if node.name == "slice":
                before = self._flow[node.preds[0]].shape
                strides = node.options["strides"] or (1,) * len(before)
                lengths = zip(node.shape, before, strides, strict=True)
                if any(n < b and s == 1 and 2 * n <= b for n, b, s in lengths):
                    return True
        return False

    def _resolve_nesting(self, nested: Nested) -> None:
        """Drops the branches that hold others, or those in others, as ``nested=`` says."""
        sums = {branch.sum for branch in self.branches}
        outer = [b for b in self.branches if any(at in b.region for at in sums - {b.sum})]
        if not outer:
            return
        within = set().union(*(b.region - {b.sum} for b in outer))
        if nested is None:
            inside = [b for b in self.branches if b.sum in within and b not in outer]
            self.doubts.append(
                f"the residual branch of {self.leaves(outer[0].layers)} contains others, of "
                f"{self.leaves(inside[0].layers) if inside else 'their own'}; expected nested= to "
                "be 'inner', if the long path is no residual branch, or 'outer'."
            )
        if nested == "outer":
            self.branches = [b for b in self.branches if b.sum not in within]
        else:
            self.branches = [b for b in self.branches if b not in outer]

    def biases_after(self, at: int) -> set[int]:
        """The additions of vectors to a sum before anything uses it: ``x + h @ w + b``."""
        biases = set()
        for user in self._flow.ahead(at):
            moves = ("add", "convert_element_type", "transpose")
            if len(user.preds) != 1 or user.name not in moves:
                break
            if any(view.size > 1 for _, use in user.uses for view in use.views):
                biases.add(user.id)
        return biases

    def _find_loops_side_by_side(self) -> None:
        """Finds the loops in which no stream goes on from what the turn before carries over."""
        graph, forks = self._trace.graph, {branch.sum: branch.fork for branch in self.branches}
        for loop in {loop for branch in self.branches for loop, _ in branch.loops}:
            carried = {*graph.carried[loop]}
            for node in self._flow.nodes if carried else ():
                stream = (forks[node.id],) if node.id in forks else node.preds
                if carried.intersection(stream):
                    carried.add(node.id)
            streams = {each.fork for each in self.branches if loop in dict(each.loops)}
            if carried.isdisjoint(streams):
                graph.side_by_side.add(loop)

    def _number(self) -> int:
        """Numbers the branches as they are computed, loops turn after turn, and counts them."""
        first: dict[Path, int] = {}
        turns = []
        for at, branch in enumerate(self.branches):
            starts = [first.setdefault(loop, at) for loop, _ in branch.loops]
            apart = self._trace.graph.side_by_side
            steps = [range(1 if loop in apart else n or 1) for loop, n in branch.loops]
            for turn in itertools.product(*steps):
                order = itertools.chain(*zip(starts, turn, strict=True), [at])
                turns.append(((*order,), branch, turn))
        turns.sort(key=lambda each: each[0])
        for k, (_, branch, turn) in enumerate(turns, start=1):
            branch.numbers[turn] = k
        return len(turns)

    # Layers.

    def _order(self, branch: Residual) -> None:
        """Finds gates, the order of layers, and which are last."""
        self._add_feeding(branch)
        main = [at for at in branch.layers if at not in branch.gates]
        steps: dict[int, int] = {}
        for at in sorted(branch.region | set(branch.layers)):
            before = max((steps.get(pred, 0) for pred in self._flow[at].preds), default=0)
            steps[at] = before + (at in main)
        branch.steps = {at: steps[at] for at in main}
        branch.zeroing = {at for at in main if self.vanishes(branch, at)}
        inside = branch.region | self._flow.between(branch.fork, branch.sum)
        ways_out = {at for at in branch.region if not inside.issuperset(self._flow.users[at])}
        ways_out |= branch.region.intersection(self._trace.outputs)
        branch.leaving = ways_out & {*main}
        branch.leaving |= {at for at in main for end in ways_out if self._flow.between(at, end)}
        if branch.zeroing.isdisjoint(branch.in_order[-1:]):
            layers = self._flow.layers(branch.shortcut)
            self.doubts.append(
                f"no single layer of the residual branch of {self.leaves(branch.layers)} makes it "
                "zero by being zero; expected a branch that is a product with its last layer, or "
                f"keep= to match {self.leaves([*layers, *branch.layers])} if it is none."
            )
        if any(not length for _, length in self._trace.graph.in_turn(branch.loops)):
            self.doubts.append(
                f"the residual branch of {self.leaves(branch.layers)} is in a while loop of which "
                "the program does not say how often it turns; expected lax.scan."
            )

    def _gates(self, fork: int, region: set[int]) -> set[int]:
        """The layers between a fork and a sum that make a factor of another path, alone."""
        flow = self._flow
        makers: set[int] = set()
        for at in sorted(region):
            node = flow[at]
            if (place := INDICES.get(node.name)) in node.order:
                index = flow.between(fork, node.preds[node.order.index(place)])
                makers |= self._choosing(index, of_products=False)
            if node.name not in PRODUCTS or len(set(node.preds)) != 2:
                continue
            for one, two in (node.preds, node.preds[::-1]):
                common = flow.fork(one, two)
                if common is None or common < fork:
                    continue
                path, factor = flow.between(common, one), flow.between(common, two)
                is_kernel = node.name == "conv_general_dilated" and two == node.preds[1]
                if is_kernel and flow.layers(factor):
                    self.doubts.append(
                        f"the kernel of a convolution is made by {self.leaves(factor)}; expected "
                        "keep= to match all of these."
                    )
                makers |= self._choosing(factor) | self._making(node, one, two, path, factor)
        return makers

    def _choosing(self, factor: set[int], *, of_products: bool = True) -> set[int]:
        """The layers of a factor that choose by their numbers, as a router does.

        Those whose products are chosen from, as of query and key, may be left out.
        """
        flow = self._flow
        choices = [at for at in factor if flow[at].name in CHOICES]
        ways = ((at, flow.between(at, choice)) for at in flow.layers(factor) for choice in choices)
        return {at for at, way in ways if way and (of_products or not self._multiplies(way))}

    def _multiplies(self, way: set[int]) -> bool:
        nodes = map(self._flow.__getitem__, way)
        return any(node.name in PRODUCTS and len(set(node.preds)) > 1 for node in nodes)

    def _making(
        self, product: Node, one: int, two: int, path: set[int], factor: set[int]
    ) -> set[int]:
        """The layers of ``two``, where a factor ends, of ``one``, where a path without it ends.

        The factor is repeated, weighs what copies of a layer give, or stands beside a path without
        layers. Parts of one value are what two layers would give, and neither is without. A layer
        as large as the product, whose values are added up behind it, makes no gate.
        """
        flow = self._flow
        makers = {*flow.layers(factor)} - {*flow.layers(path)}
        if flow[one].size < flow[two].size:
            return set()
        # What a loop carries comes from its layers, and kept leaves may be one.
        if any(flow[each].starts_as_zeros or flow[each].kept for each in (one, *path)):
            return set()
        if product.name == "dot_general":
            if flow[two].size >= flow[one].size or _free_axes(product, two, flow):
                return set()
            summed = product.options["dimension_numbers"][0][product.preds.index(one)]
            of_kernel, free = self.copies.of_kernel(one), _free_axes(product, one, flow)
            weighs = of_kernel.issuperset(summed) and (not summed or not of_kernel.isdisjoint(free))
            return makers if weighs else set()
        full, repeated = map(self._size_before_repeat, (one, two))
        if product.name != "mul" or full < repeated:
            return set()
        are_parts = self._splits(path) and self._splits(factor)
        if not flow.layers(path) and two not in flow.normalized and not are_parts:
            return makers
        is_repeated = full == product.size > repeated
        return {at for at in makers if is_repeated and flow[at].size < product.size}

    def _add_feeding(self, branch: Residual) -> None:
        """Adds the first layers on the way back from what else enters: k, v of an encoder.

        One that makes a factor, and is added at most, as the scale and shift of FiLM, is a gate.
        """
        flow, inside = self._flow, branch.region | {branch.fork}
        taken = set().union(*(each.region | each.shortcut for each in self.branches))
        todo = [pred for at in branch.region for pred in flow[at].preds if pred not in inside]
        seen = set(todo)
        while todo:
            at = todo.pop()
            node = flow[at]
            if at in taken or self.adds(node) or node.loops != branch.loops:
                continue
            if node.is_layer:
                fed = self._fed_alone(at, branch)
                if fed:
                    branch.layers.append(at)
                    users = {user for each in fed for user in flow.users[each]} - fed
                    names = {flow[user].name for user in users}
                    if "mul" in names and names <= {"mul", *SUMS}:
                        branch.gates.add(at)
                    branch.region |= fed
                continue
            for pred in node.preds:
                if pred not in seen and pred not in inside:
                    seen.add(pred)
                    todo.append(pred)
        branch.layers.sort()

    def _fed_alone(self, at: int, branch: Residual) -> set[int]:
        """The nodes from a layer to a branch; none if another layer or sum takes what it gives."""
        flow = self._flow

        def ends(user: int) -> bool:
            return user != at and (flow[user].is_layer or self.adds(flow[user]))

        ways = reached([at], lambda x: () if ends(x) else {*flow.users[x]} - branch.region)
        return set() if any(map(ends, ways)) else ways

    def scales(self, branch: Residual, step: int) -> bool:
        """Whether a step multiplies the branch, and nothing in it but by linear maps."""
        after = self._flow.between(step, branch.sum) & branch.region
        return self.vanishes(branch, step) and self._flow.is_linear(after)

    def vanishes(self, branch: Residual, step: int) -> bool:
        """Whether zeros of a step, and zero biases, make the branch zero."""
        flow = self._flow
        zero = {step} | (self.adapters & branch.region)
        zero |= {at for at in branch.region if flow[at].starts_as_zeros}
        for at in sorted(branch.region):
            node = flow[at]
            of_zero = [p in zero for p in node.preds if jnp.issubdtype(flow[p].dtype, jnp.inexact)]
            if at in zero or not of_zero or node.name in NOT_ZERO_AT_ZERO:
                continue
            if node.name in PRODUCTS:
                is_zero = any(of_zero)
            elif node.name == "div":
                is_zero = of_zero[0]
            else:
                is_zero = all(of_zero)  # so that a sum of zeros is one, without a number
                if is_zero and node.name in SUMS:  # running means may have any
                    numbers = (each.number() for _, each in node.constants if each.size == 1)
                    is_zero = not any(numbers)
            if is_zero:
                zero.add(at)
        return zero.issuperset(branch.ends)


def _free_axes(product: Node, operand: int, flow: Flow) -> set[int]:
    """The axes of an operand of a dot product that are in its result alone."""
    contracted, batch = product.options["dimension_numbers"]
    side = product.preds.index(operand)
    return {*range(len(flow[operand].shape))} - {*contracted[side], *batch[side]}
