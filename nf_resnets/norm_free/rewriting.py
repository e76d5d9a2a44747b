"""Programs with some operands of their equations changed.

Some operands become a number, others are shifted or multiplied by a :class:`Part`. An equation is
named by its path (see :mod:`nf_resnets.roles.running`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets.roles import running
from nf_resnets.roles.graph import Loops, Trace
from nf_resnets.roles.running import CUSTOM, ENTERED, Path

RESULT = -1
NEUTRAL = {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0, "add_any": 0.0}


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What is added to operands, or what they are multiplied by."""

    place: str  # where it is, a key of the tree of parts
    name: str  # what it is called there
    operation: Literal["add", "multiply"]
    loops: Loops  # the loops around it
    shape: tuple[int, ...] = ()  # that of one turn
    axes: tuple[int, ...] = ()  # the axes of the operand that the shape runs along
    constant: np.ndarray | None = None  # its values, `[turns..., *shape]`, if they are not learnt

    @property
    def key(self) -> tuple[str, str]:
        """Its name with its place."""
        return self.place, self.name

    @property
    def turns(self) -> tuple[int, ...]:
        """The lengths of the loops around it."""
        return tuple(length for _, length in self.loops)

    def applied(self, x: jax.Array, value: jax.Array) -> jax.Array:
        """The operand, changed, in its own dtype."""
        wide = jnp.promote_types(x.dtype, value.dtype)
        lengths = dict(zip(self.axes, self.shape, strict=True))
        value = value.reshape([lengths.get(axis, 1) for axis in range(x.ndim)]).astype(wide)
        change = jnp.add if self.operation == "add" else jnp.multiply
        return change(x.astype(wide), value).astype(x.dtype)


@dataclasses.dataclass(frozen=True)
class Edits:
    """The changes of operands, each by the path of its equation and its position."""

    numbers: dict[Path, dict[int, float]]  # what operands become
    parts: dict[Path, dict[int, list[Part]]]  # what is applied to operands, in order
    # operands that are returned, each with the key to return it by; the position `RESULT` is that
    # of an equation's first result
    recorded: dict[Path, dict[int, list[Any]]] = dataclasses.field(default_factory=dict)


class Places:
    """Which operands of which equations nodes and edges are."""

    def __init__(self, traced: Trace) -> None:
        self._graph = traced.graph

    def of_step(self, node: int, what: str) -> list[Path]:
        """The equations that a step is."""
        paths = self._graph.nodes[node].paths
        for path in paths:
            self._refuse_closed(path, what)
        return paths

    def of_result(self, value: int) -> Path:
        """The equation whose result a value is."""
        path = self._graph.nodes[value].paths[0]
        self._refuse_closed(path, f"the sum {list(self._shape(value))}")
        return path

    def of_edge(self, value: int, step: int) -> set[tuple[Path, int]]:
        """The operands in which a step takes a value, before a call that must stay whole."""
        places = set()
        for path in self._graph.nodes[step].paths:
            whole = self._graph.whole(path, {*ENTERED} - {*CUSTOM})
            whole = whole if self._positions(whole, value) else path
            self._refuse_closed(whole, f"a branch, between {list(self._shape(value))} values,")
            places |= {(whole, at) for at in self._positions(whole, value)}
        if not places:
            raise ValueError(
                f"no equation takes the value {list(self._shape(value))} that a part is to change; "
                "expected sums and layers that are written as such."
            )
        return places

    def _shape(self, value: int) -> tuple[int, ...]:
        return self._graph.nodes[value].shape

    def _positions(self, path: Path, value: int) -> list[int]:
        args = self._graph.equations[path][1]
        return [at for at, arg in enumerate(args) if isinstance(arg, int) and arg == value]

    def _refuse_closed(self, path: Path, what: str) -> None:
        whole = self._graph.whole(path)
        if whole != path:
            raise ValueError(
                f"{what} is in a {self._graph.equations[whole][0].primitive.name}; expected it in "
                "plain code, jax.jit, jax.checkpoint or jax.lax.scan."
            )


def run(
    program: Any, args: Sequence[Any], edits: Edits, values: dict[tuple[str, str], jax.Array]
) -> tuple[list[Any], dict[Any, jax.Array]]:
    """Evaluates a closed jaxpr with changed operands, given each part's ``[turns..., *shape]``.

    Returns:
      The results, and what is recorded, by key: ``[turns..., *shape]``, in the order of slices.
    """
    parts = [part for at in edits.parts.values() for some in at.values() for part in some]
    loops_of = {part.key: {loop for loop, _ in part.loops} for part in parts}

    def change(
        equation: Any, args: list[Any], path: Path, values: Any, proceed: Any
    ) -> tuple[list[Any], dict[Any, Any]]:
        args = [*args]
        for at, some in edits.parts.get(path, {}).items():
            for part in some:
                args[at] = part.applied(args[at], values[part.key])
        results, inside = _with_numbers(equation, args, edits.numbers.get(path, {}), proceed)
        for at, keys in edits.recorded.get(path, {}).items():
            inside |= dict.fromkeys(keys, results[0] if at == RESULT else args[at])
        return results, inside

    changed = {*edits.numbers, *edits.parts, *edits.recorded}
    return running.run(program, args, changed, change, values, loops_of)


def _with_numbers(
    equation: Any, args: list[Any], numbers: dict[int, float], proceed: Any
) -> tuple[list[Any], dict[Any, Any]]:
    name = equation.primitive.name
    for at, number in numbers.items():
        # A neutral element is left out, so that it costs nothing and rounds nothing.
        is_left = at == 0 and name in ("sub", "div")
        if len(args) == 2 and not is_left and NEUTRAL.get(name) == number:
            return [jnp.broadcast_to(args[1 - at], equation.outvars[0].aval.shape)], {}
        aval = equation.invars[at].aval
        args[at] = jnp.full(aval.shape, number, aval.dtype)
    return proceed(args)
