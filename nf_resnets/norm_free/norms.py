"""The norms of a network's program, and what makes each the identity.

On data of mean 0 and variance 1 a norm's mean is 0 and its deviation 1. Every step from a norm's
input to its output is evaluated there, as ``slope x + level``; a *statistic* is a step without
slope, for which its level can be put. So no form of norm is looked for: whatever comes out as the
data itself is one.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nf_resnets.norm_free.rewriting import NEUTRAL
from nf_resnets.roles.flow import NONE, SUMS, Flow, is_constant_factor, reached
from nf_resnets.roles.graph import Node, Trace
from nf_resnets.roles.uses import Kind, Use
from nf_resnets.roles.views import MOVES

MOVED = MOVES - {"carry", "concatenate", "cut", "pad", "split", "stack"}
_LEAVES = (Kind.NORM_SCALE, Kind.NORM_SHIFT, Kind.STATISTIC)
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5}
_ROUNDING = 1e-2  # what epsilon beside a variance of 1 changes


@dataclasses.dataclass(frozen=True)
class Norm:
    """A norm of a program."""

    name: str  # the module of its leaves, or the layer that it stands at
    paths: tuple[str, ...]  # of its leaves, or of that layer
    nodes: frozenset[int]  # its steps
    is_inner: bool  # whether a layer comes behind it, and a leaf before or in it
    numbers: dict[tuple[int, int], float]  # what replaces operands, by step and position
    fault: str = ""  # why it cannot be taken out, a sentence


def norms_of(trace: Trace, flow: Flow, uses: Sequence[Sequence[Use]]) -> list[Norm]:
    """The norms of a program, in the order of computation."""
    finder = _Finder(trace, flow, uses)
    steps = sorted(flow.normalized | finder.divided_otherwise())
    return [norm for at in steps if (norm := finder.norm(at)) is not None]


class _Value(NamedTuple):
    """``slope x + level``; reduced if it is the same everywhere."""

    slope: float
    level: float
    reduced: bool

    @property
    def is_statistic(self) -> bool:
        return self.reduced and not self.slope


_DATA = _Value(1.0, 0.0, False)


class _Finder:
    def __init__(self, trace: Trace, flow: Flow, uses: Sequence[Sequence[Use]]) -> None:
        self._trace, self._flow = trace, flow
        kinds = {(use.node, leaf): use.kind for leaf, some in enumerate(uses) for use in some}
        self._neutral: dict[tuple[int, int], float] = {}  # operands of scales, shifts, statistics
        for node in flow.nodes:
            for at, derived in node.uses if node.name in NEUTRAL else ():
                views = derived.views
                is_norm = all(kinds.get((node.id, view.leaf)) in _LEAVES for view in views)
                # What has two axes is a table, of positions perhaps.
                long = ({span.axis for span in v.spans() if span.size > 1} for v in views)
                if is_norm and all(len(axes) < 2 for axes in long):
                    self._neutral[node.id, at] = NEUTRAL[node.name]
        self._fed = reached((node.id for node in flow.nodes if node.uses), flow.users.get)

    def norm(self, at: int) -> Norm | None:
        """The norm that a step normalizes for, or None where that is a step of another's."""
        flow, node = self._flow, self._flow[at]
        leaves: dict[tuple[int, int], float] = {}
        start = flow.above[at]
        if len(node.preds) == 1:
            leaves = self._running(node)
            start = self._flow.behind_moves(node.preds[0], MOVED)
            start = flow[start].preds[0] if any(key[0] == start for key in leaves) else start
        else:
            start = self._uncentred(start)
        region = flow.between(start, at)
        values = self._values(start, region, leaves)
        value = values.get(at)
        if value is not None and value.is_statistic:
            return None
        if at not in flow.normalized or flow.layers(region) or value is None or value.level:
            layer = self._layer_at(start)
            fault = (
                f"a step {node.name} {list(node.shape)} at {layer!r} divides by a statistic of the "
                "data; expected the root of a mean of squares or of a variance, or keep= to match "
                f"{layer!r}."
            )
            inner = at in flow.leads_to_layer and node.preds[0] in self._fed
            return Norm(f"at {layer}", (layer,), frozenset({at}), inner, {}, fault)
        end = self._end(start, at, leaves)
        region = flow.between(start, end)
        leaves |= {key: n for key, n in self._neutral.items() if key[0] in region}
        values = self._values(start, region, leaves)
        paths = self._paths(region)
        layer = "" if paths else self._layer_at(start)
        module = os.path.commonprefix(paths).rpartition("/")[0] if paths[1:] else ""
        return Norm(
            module or (paths[0] if paths else f"at {layer}"),
            tuple(paths) or (layer,),
            frozenset(region),
            end in flow.leads_to_layer and (bool(paths) or start in self._fed),
            leaves | self._statistics(region, values),
        )

    def divided_otherwise(self) -> set[int]:
        """The steps that divide data by a statistic of it that is no root."""
        flow, of_statistic = self._flow, dict[int, bool]()
        steps = set()
        for node in flow.nodes:
            flags = [of_statistic[pred] for pred in node.preds]
            reduces = node.name.startswith("reduce_") or node.name == "psum"
            is_matrix = node.name == "dot_general" and not node.uses and len({*node.preds}) == 1
            plain = bool(flags) and not node.uses and node.name != "carry"
            of_statistic[node.id] = reduces or is_matrix or (plain and all(flags))
            if node.name not in ("mul", "div") or len(flags) != 2 or sum(flags) != 1:
                continue
            data = node.preds[flags.index(False)]
            start = flow.above[node.id]
            region = flow.between(start, node.id) if start != NONE else set()
            if node.id in flow.in_norm or not region or flow.layers(region):
                continue
            origin = flow[flow.behind_moves(start, MOVED)]
            signed = origin.uses or origin.name in (*SUMS, "input", "carry", "cut")
            if not signed:  # weights, as a softmax's, are divided by their sum
                continue
            value = _DATA if data == start else self._values(start, region, {}).get(data)
            if value is not None and value.slope:
                steps.add(node.id)
        return steps

    def _running(self, node: Node) -> dict[tuple[int, int], float]:
        """What replaces running statistics: the root, and the mean that was subtracted before."""
        leaves = {(node.id, at): 1.0 for at, use in node.uses if use.rooted}
        leaves |= {(node.id, at): 1.0 for at, constant in node.constants if constant.rooted}
        before = self._flow[self._flow.behind_moves(node.preds[0], MOVED)]
        if before.name == "sub" and len(before.preds) == 1:
            leaves |= {(before.id, at): 0.0 for at, each in before.constants if each.size > 1}
            leaves |= {key: n for key, n in self._neutral.items() if key[0] == before.id}
        return leaves

    def _uncentred(self, start: int) -> int:
        """What a mean was subtracted from, written before the root's step in one place."""
        if start == NONE:
            return start
        top = self._flow.behind_moves(start, MOVED)
        above = self._flow.above[top]
        if self._flow[top].name != "sub" or above == NONE:
            return start
        region = self._flow.between(above, top)
        centred = not self._flow.layers(region) and self._values(above, region, {})[top] == _DATA
        return above if centred else start

    def _end(self, start: int, at: int, leaves: dict[tuple[int, int], float]) -> int:
        """The last step of a norm: scale and shift."""
        flow = self._flow
        constant = any(flow[at].constants)
        for user in flow.ahead(at):
            if len(user.preds) == 1:
                shifts = [p for p, each in user.constants if each.size > 1] if constant else []
                if user.name == "add" and shifts:
                    leaves |= {(user.id, p): 0.0 for p in shifts}
                elif not (
                    user.name in MOVED
                    or is_constant_factor(user)
                    or any(k[0] == user.id for k in self._neutral)
                ):
                    break
            elif user.name in SUMS:
                region = flow.between(start, user.id)
                (other,) = {*user.preds} - {at} or {at}
                value = None if flow.layers(region) else self._values(start, region, {}).get(other)
                if value is None or not value.is_statistic:
                    break
            else:
                break
            at = user.id
        return at

    def _statistics(
        self, region: set[int], values: dict[int, _Value | None]
    ) -> dict[tuple[int, int], float]:
        """What replaces the statistics that other steps take."""
        statistics = {}
        for at in region:
            value, node = values[at], self._flow[at]
            for position, pred in zip(node.order, node.preds, strict=True):
                operand = values.get(pred)
                if operand and operand.is_statistic and not (value and value.is_statistic):
                    near = float(round(operand.level))
                    is_near = abs(operand.level - near) < _ROUNDING and near in (0.0, 1.0)
                    statistics[at, position] = near if is_near else operand.level
        return statistics

    def _paths(self, region: set[int]) -> list[str]:
        uses = [use for at in sorted(region) for p, use in self._flow[at].uses
                if (at, p) in self._neutral]  # fmt: skip
        return list(dict.fromkeys(self._trace.paths[v.leaf] for use in uses for v in use.views))

    def _layer_at(self, start: int) -> str:
        """The path of the layer whose output a value is, or that of the next layer."""
        flow, at = self._flow, self._flow.layer_before(start)
        if at == NONE or not flow[at].is_layer:
            behind = flow.layers(range(max(start, 0), len(flow.graph.nodes)))
            at = next((each for each in behind if each in flow.above), NONE)
        return self._trace.paths[flow[at].uses[0][1].views[0].leaf] if at != NONE else "the inputs"

    # Evaluation on data of mean 0 and variance 1.

    def _values(
        self, start: int, region: set[int], leaves: dict[tuple[int, int], float]
    ) -> dict[int, _Value | None]:
        values: dict[int, _Value | None] = {start: _DATA}
        for at in sorted(region):
            node = self._flow[at]
            operands: dict[int, _Value | None] = {}
            for position, pred in zip(node.order, node.preds, strict=True):
                operands[position] = values.get(pred)
            for position, _ in node.uses:
                level = leaves.get((at, position), self._neutral.get((at, position)))
                operands[position] = None if level is None else _Value(0.0, level, True)
            for position, constant in node.constants:
                level = leaves.get((at, position))
                level = constant.number() if level is None else level
                operands[position] = None if level is None else _Value(0.0, level, True)
            values[at] = self._step(node, operands)
        return values

    def _step(self, node: Node, operands: dict[int, _Value | None]) -> _Value | None:
        data = [operands[at] for at in node.order]
        if node.name in MOVED or (node.name == "select_n" and node.order != (0,)):
            return data[0] if len(data) == 1 else None  # of a guard against 0 the data is taken
        both = [operands[at] for at in sorted(operands)]
        known = [value for value in both if value is not None]
        if len(known) < len(both) or not known:
            return None
        one, two = known[0], known[-1]
        reduced = all(value.reduced for value in known)
        match node.name:
            case "add" | "add_any":
                return _Value(one.slope + two.slope, one.level + two.level, reduced)
            case "sub":
                return _Value(one.slope - two.slope, one.level - two.level, reduced)
            case "neg":
                return _Value(-one.slope, -one.level, reduced)
            case "mul":
                return _product(one, two)
            case "square":
                return _product(one, one)
            case "integer_pow" if node.options["y"] == 2:
                return _product(one, one)
            case "div" if not two.slope and two.level:
                return _Value(one.slope / two.level, one.level / two.level, reduced)
            case "reduce_sum" | "psum":
                return _Value(0.0, one.level * self._count(node, node.options["axes"]), True)
            case "dot_general" if len(node.preds) == 2 and len({*node.preds}) == 1:
                axes = node.options["dimension_numbers"][0][0]
                return _Value(0.0, _product(one, one).level * self._count(node, axes), True)
        if any(value.slope for value in known):
            return None
        power = two.level if node.name == "pow" else _POWERS.get(node.name)
        if power is not None and one.level > 0:
            return _Value(0.0, one.level**power, reduced)
        if node.name in ("max", "min"):
            choose = max if node.name == "max" else min
            return _Value(0.0, choose(one.level, two.level), reduced)
        return None

    def _count(self, node: Node, axes: Sequence[int]) -> float:
        shape = self._flow[node.preds[0]].shape
        is_known = all(isinstance(axis, int | np.integer) for axis in axes)  # no name of devices
        return math.prod(shape[axis] for axis in axes) if is_known else math.nan


def _product(one: _Value, two: _Value) -> _Value:
    if one.slope and two.slope:  # the mean of x^2 is 1
        return _Value(0.0, one.slope * two.slope + one.level * two.level, False)
    slope = one.slope * two.level + two.slope * one.level
    return _Value(slope, one.level * two.level, one.reduced and two.reduced)
