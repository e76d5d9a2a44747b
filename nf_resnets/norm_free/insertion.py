"""The parts that a scheme needs, and the edges at which they are put into a network.

An *edge* is a value and a step that takes it. Fixup's rule 3 puts a scalar bias before every
activation, every layer of a branch and the head; a branch's multiplier stands before its sum.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterable
from typing import Any

import numpy as np

from nf_resnets.norm_free.norms import MOVED
from nf_resnets.norm_free.rewriting import Part
from nf_resnets.roles.flow import ELEMENTWISE, NONE
from nf_resnets.roles.graph import Node
from nf_resnets.roles.reading import Reading
from nf_resnets.roles.residual import Residual
from nf_resnets.roles.uses import Kind, Place, bias_owner
from nf_resnets.schemes import Anatomy

ACTIVATIONS = frozenset({
    "clamp", "cos", "erf", "erfc", "exp", "exp2", "expm1", "log1p", "logistic", "max", "min",
    "select_n", "sin", "tanh",
})  # fmt: skip
"""The steps by which an activation is known."""
STEPS_OF_ACTIVATIONS = (ELEMENTWISE | ACTIVATIONS | {"pow", "sign", "erf_inv"}) - {
    "carry", "concatenate", "cut", "stack",
}  # fmt: skip


class Insertion:
    """The parts of a scheme in a network, and by edge those that its value goes through."""

    def __init__(self, reading: Reading, anatomy: Anatomy, replaced: set[tuple[int, int]]) -> None:
        self._graph, self._flow = reading.trace.graph, reading.flow
        self._residuals = reading.residuals
        self._uses = [use for some in reading.uses for use in some]
        self._replaced = replaced
        self.parts: list[Part] = []
        self.edges: dict[tuple[int, int], list[Part]] = collections.defaultdict(list)
        self._add(anatomy)

    def _part(self, place: str, name: str, operation: Any, node: Node, **more: Any) -> Part:
        if name.startswith("bias_"):  # of which a place may have several
            alike = [p for p in self.parts if p.place == place and p.name.startswith(name)]
            name += f"_{len(alike) + 1}"
        loops = self._graph.in_turn(node.loops)
        part = Part(place, name, operation, loops, **more)
        self.parts.append(part)
        return part

    def _put(self, part: Part, edges: Iterable[tuple[int, int]]) -> None:
        for edge in edges:
            if part not in self.edges[edge]:
                self.edges[edge].append(part)

    def _add(self, anatomy: Anatomy) -> None:
        branches = self._residuals.branches
        constants = anatomy.constants((False,) * self._residuals.count)
        if anatomy.scalar_biases:
            self._add_biases_of_activations()
        for branch in branches:
            if anatomy.scalar_biases:
                self._add_biases_of_layers(branch)
            for at in branch.in_order:
                if anatomy.channel_biases:
                    self._add_vector(branch, at, before=True)
                if anatomy.conv_biases:
                    self._add_vector(branch, at, before=False)
            terms = self._residuals.summands(self._flow[branch.sum])
            ends = [edge for edge in terms if edge[0] in branch.region]
            skips = [e for e in terms if e[0] == branch.fork or e[0] in branch.shortcut]
            scalar = "multiplier" if anatomy.multiplier else "alpha" if anatomy.alpha else ""
            node = self._flow[branch.sum]
            if scalar:
                self._put(self._part(self._name(branch), scalar, "multiply", node), ends)
            for name, edges in (("residual", ends), ("identity", skips)):
                values = getattr(constants, name)
                if values is not None:
                    alike = [p for e in edges for p in self.edges[e] if p.name == name]
                    if alike or not edges:
                        raise ValueError(
                            f"residual branch {self._name(branch)[7:]} ends in a sum of "
                            f"{len(terms)} values; expected one skip path and one branch, each of "
                            "which is multiplied by a constant."
                        )
                    constant = self._by_turn(branch, values)
                    part = self._part(self._name(branch), name, "multiply", node, constant=constant)
                    self._put(part, edges)
        if anatomy.scalar_biases:
            self._add_bias_of_head()

    def _name(self, branch: Residual | None) -> str:
        return f"branch_{min(branch.numbers.values())}" if branch else "outside"

    def _by_turn(self, branch: Residual, values: np.ndarray) -> np.ndarray:
        """Constants of branches, in the order in which the loops around one cut them."""
        lengths = [length for _, length in self._graph.in_turn(branch.loops)]
        result = np.empty(lengths, np.float32)
        for turn, k in branch.numbers.items():
            slices = self._graph.slice_at(branch.loops, turn)
            result[tuple(at for at in slices if isinstance(at, int))] = values[k - 1]
        return result

    def _add_biases_of_activations(self) -> None:
        """A scalar bias before every activation, in branches and outside."""
        flow, made = self._flow, {}
        gates = set().union(*(branch.gates for branch in self._residuals.branches))
        for node in flow.nodes:
            value = self._activated(node)
            if value is None or flow.layer_before(value) in gates:
                continue
            if value not in made:
                inside = [b for b in self._residuals.branches if node.id in b.region]
                place = self._name(inside[0] if inside else None)
                made[value] = self._part(place, "bias_activation", "add", node)
            way = flow.between(value, self._end(value, node.id))
            self._put(made[value], ((value, user) for user in flow.users[value] if user in way))

    def _activated(self, node: Node) -> int | None:
        """The value that an activation takes, of which a step is a part; None of other steps."""
        flow, at = self._flow, node.id
        by_mask = node.name == "select_n" and 0 not in node.order  # dropout
        if node.name not in ACTIVATIONS or at in flow.in_norm or by_mask or not node.is_float:
            return None
        while (above := flow.above[at]) != NONE:
            way = flow.between(above, at)
            if flow.layers(way):
                return at if at != node.id else None  # where paths with layers meet
            if any(flow[each].name.startswith("reduce_") for each in way):
                return None  # a softmax is none
            at, step = above, flow[above]
            if step.uses or at in flow.normalized:
                return at
            if step.name not in STEPS_OF_ACTIVATIONS:
                is_plain = step.name in ("carry", "concatenate", "cut")
                return at if is_plain or step.name.startswith("reduce_window") else None
        return None

    def _end(self, value: int, at: int) -> int:
        """The last step of an activation, as the product in ``x * sigmoid(x)``."""
        flow = self._flow
        for user in flow.ahead(at):
            is_step = user.name in STEPS_OF_ACTIVATIONS and not user.uses
            if not is_step or flow.layers(flow.between(value, user.id)):
                break
            at = user.id
        return at

    def _add_biases_of_layers(self, branch: Residual) -> None:
        """A scalar bias before every layer of a branch; parallel ones share it."""
        place, made = self._name(branch), {}
        for at in branch.in_order:
            value, step = self._before_moves(branch, at)
            if value not in made:
                made[value] = self._part(place, "bias_layer", "add", self._flow[at])
            self._put(made[value], [(value, step)])
            if value == branch.fork:  # the block's input, which the shortcut takes, too
                users = (user for user in self._flow.users[value] if user in branch.shortcut)
                self._put(made[value], ((value, user) for user in users))

    def _before_moves(self, branch: Residual, at: int) -> tuple[int, int]:
        """The edge to a layer before padding and casts: zeros at the border stay zeros."""
        flow = self._flow
        value, step = flow[at].preds[0], at
        while value in branch.region and flow[value].name in MOVED | {"pad"}:
            users = {*flow.users[value]} - {step}
            if len(flow[value].preds) != 1 or not users <= branch.region:
                break
            value, step = flow[value].preds[0], value
        return value, step

    def _add_bias_of_head(self) -> None:
        for use in self._uses:
            is_weight = use.kind is Kind.WEIGHT and use.place is Place.HEAD
            if is_weight and use.node not in self._flow.leads_to_layer:
                (value,) = self._flow[use.node].preds
                part = self._part("head", "bias_layer", "add", self._flow[use.node])
                self._put(part, [(value, use.node)])

    def _add_vector(self, branch: Residual, at: int, *, before: bool) -> None:
        """A vector along the channels before a layer, or behind one that has none."""
        flow, node = self._flow, self._flow[at]
        if not before and at in self._biased:
            return
        value = node.preds[0] if before else at
        axes = _channels(node, before=before)
        shape = tuple(flow[value].shape[axis] for axis in axes)
        name = "bias_layer" if before else "bias_vector"
        part = self._part(self._name(branch), name, "add", node, shape=shape, axes=axes)
        self._put(part, [(value, at)] if before else [(at, user) for user in flow.users[at]])

    @functools.cached_property
    def _biased(self) -> set[int | None]:
        """The layers with a bias vector of their own that stays."""
        shifts = {node for node, _ in self._replaced}
        uses = (use for use in self._uses if use.kind is Kind.BIAS and use.node not in shifts)
        return {bias_owner(self._flow, use) for use in uses}


def _channels(layer: Node, *, before: bool) -> tuple[int, ...]:
    """The axes of a layer's input that it contracts, or those of its output that it makes."""
    numbers = layer.options["dimension_numbers"]
    if layer.name == "conv_general_dilated":
        return ((numbers.lhs_spec if before else numbers.out_spec)[1],)
    (contracted, batch), side = numbers, layer.order[0]
    if before:
        return tuple(sorted(contracted[side]))
    free = len(layer.uses[0][1].shape) - len(contracted[1 - side]) - len(batch[0])
    start = len(layer.shape) - free if side == 0 else len(batch[0])
    return tuple(range(start, start + free))
