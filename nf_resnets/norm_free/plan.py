"""What changes in a network's program: which norms go, and where the parts come."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from nf_resnets.norm_free.insertion import Insertion
from nf_resnets.norm_free.norms import Norm, norms_of
from nf_resnets.norm_free.rewriting import Edits, Part
from nf_resnets.roles.flow import Flow
from nf_resnets.roles.graph import Trace
from nf_resnets.roles.residual import Residuals
from nf_resnets.roles.running import CUSTOM, ENTERED, LOOPS, Path, called
from nf_resnets.roles.uses import Use, uses_of
from nf_resnets.schemes import Scheme

_MOST_SHOWN = 3


class Plan:
    """What changes in a program.

    Attributes:
      trace: the program.
      scheme: whose parts are put in.
      removed: the norms that are taken out.
      num_kept: how many divisions by roots belong to norms that stay.
      gone: the leaves, as ``jax.tree.leaves`` numbers them, on which nothing depends any more.
      parts: those that are put in, in the order of computation.
      edits: the changed operands.
    """

    def __init__(self, traced: Trace, scheme: Scheme, keep: str | None, answers: Any) -> None:
        self.trace, self.scheme = traced, scheme
        self._flow = flow = Flow(traced)
        residuals = Residuals(traced, flow, **answers)
        self._uses = uses_of(traced, flow, residuals)
        norms = norms_of(traced, flow, self._uses)
        kept = _kept(norms, keep)
        self.removed = [norm for norm in norms if norm not in kept]
        faults = [norm.fault for norm in self.removed if norm.fault]
        if faults:
            raise ValueError(faults[0])
        self.num_kept = sum(len(flow.normalized & norm.nodes) for norm in kept)
        replaced = {key for norm in self.removed for key in norm.leaves}
        insertion = Insertion(traced, flow, residuals, self._uses, scheme.anatomy, replaced)
        self.parts = insertion.parts
        places = Places(traced, flow)
        numbers: dict[Path, dict[int, float]] = collections.defaultdict(dict)
        for norm in self.removed:
            for path, at, number in places.of_norm(norm):
                numbers[path][at] = number
        parts: dict[Path, dict[int, list[Part]]] = collections.defaultdict(dict)
        for (value, step), some in insertion.edges.items():
            for path, at in places.of_edge(value, step):
                there = parts[path].setdefault(at, [])
                there += [part for part in some if part not in there]
        self.edits = Edits(numbers, parts)
        self.gone = {
            traced.positions[leaf]
            for leaf, uses in enumerate(self._uses)
            if uses and all(self._is_replaced(use, replaced) for use in uses)
        }

    def _is_replaced(self, use: Use, replaced: set[tuple[int, int]]) -> bool:
        operands = [at for at, each in self._flow[use.node].uses if use.view in each.views]
        return all((use.node, at) in replaced for at in operands)

    @property
    def expected(self) -> dict[tuple[str, str], tuple[int, ...]]:
        """The shapes of the learnt parts."""
        return {
            part.key: ((math.prod(part.turns),) if part.loops else ()) + part.shape
            for part in self.parts
            if part.constant is None
        }

    def initial(self) -> dict[str, dict[str, jax.Array]]:
        """The learnt parts: zeros, and multipliers of 1."""
        tree: dict[str, dict[str, jax.Array]] = {}
        for (place, name), shape in self.expected.items():
            tree.setdefault(place, {})[name] = jnp.full(shape, float(name == "multiplier"))
        return tree

    def value(self, part: Part, tree: Any) -> jax.Array:
        """A part's value, an axis for each loop."""
        if part.constant is not None:
            return jnp.asarray(part.constant)
        value = jnp.asarray(tree[part.place][part.name])
        return value.reshape(part.turns + part.shape)


def _kept(norms: list[Norm], keep: str | None) -> list[Norm]:
    if keep == "":
        return []
    named = [norm for norm in norms if keep and any(re.search(keep, path) for path in norm.paths)]
    if keep and not named:
        shown = ", ".join(repr(norm.paths[0]) for norm in norms[:_MOST_SHOWN])
        raise ValueError(f"keep={keep!r} matches no norm; expected one of paths like {shown}.")
    return [norm for norm in norms if norm in named or not norm.is_inner]


class Places:
    """Which operands of which equations nodes and edges are."""

    def __init__(self, traced: Trace, flow: Flow) -> None:
        self._traced, self._equations = traced, traced.graph.equations
        self._paths: dict[int, list[Path]] = collections.defaultdict(list)
        for path, (equation, _, results) in self._equations.items():
            is_call = called(equation) is not None or equation.primitive.name in LOOPS
            for result in [] if is_call else results:
                if isinstance(result, int) and result in flow.above:
                    self._paths[result].append(path)

    def of_norm(self, norm: Norm) -> Iterable[tuple[Path, int, float]]:
        """The operands that become numbers, each with its path and position."""
        for (node, pred), number in norm.statistics.items():
            for path in self._paths[node]:
                self._refuse_closed(path, f"the norm {norm.name!r}")
                for at, arg in enumerate(self._equations[path][1]):
                    if isinstance(arg, int) and arg == pred:
                        yield path, at, number
        for (node, at), number in norm.leaves.items():
            for path in self._paths[node]:
                self._refuse_closed(path, f"the norm {norm.name!r}")
                yield path, at, number

    def of_result(self, value: int) -> Path:
        """The equation whose result a value is."""
        path = self._paths[value][0]
        self._refuse_closed(path, f"the sum {list(self._shape(value))}")
        return path

    def of_edge(self, value: int, step: int) -> set[tuple[Path, int]]:
        """The operands in which a step takes a value, before a call that must stay whole."""
        places = set()
        for path in self._paths[step]:
            calls = (path[:end] for end in range(1, len(path)))
            whole = next(
                (c for c in calls if self._is_whole(c) and self._positions(c, value)), path
            )
            self._refuse_closed(whole, f"a branch, between {list(self._shape(value))} values,")
            places |= {(whole, at) for at in self._positions(whole, value)}
        if not places:
            raise ValueError(
                f"no equation takes the value {list(self._shape(value))} that a part is to change; "
                "expected sums and layers that are written as such."
            )
        return places

    def _shape(self, value: int) -> tuple[int, ...]:
        return self._traced.graph.nodes[value].shape

    def _is_whole(self, path: Path) -> bool:
        name = self._equations[path][0].primitive.name
        return name in CUSTOM or name not in ENTERED

    def _positions(self, path: Path, value: int) -> list[int]:
        args = self._equations[path][1]
        return [at for at, arg in enumerate(args) if isinstance(arg, int) and arg == value]

    def _refuse_closed(self, path: Path, what: str) -> None:
        for end in range(1, len(path)):
            name = self._equations[path[:end]][0].primitive.name
            if name not in ENTERED:
                raise ValueError(
                    f"{what} is in a {name}; expected it in plain code, jax.jit, jax.checkpoint or "
                    "jax.lax.scan."
                )


__all__ = ["Places", "Plan"]
