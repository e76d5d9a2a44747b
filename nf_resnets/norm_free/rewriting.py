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
from nf_resnets.roles.graph import Loops
from nf_resnets.roles.running import Path

RESULT = -1
NEUTRAL = {"mul": 1.0, "div": 1.0, "add": 0.0, "sub": 0.0, "add_any": 0.0}


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """What is added to operands, or what they are multiplied by.

    Attributes:
      place: where it is, a key of the tree of parts.
      name: what it is called there.
      operation: ``"add"`` or ``"multiply"``.
      loops: the loops around it.
      shape: that of one turn.
      axes: the axes of the operand that the shape runs along.
      constant: its values, ``[turns..., *shape]``, if they are not learnt.
    """

    place: str
    name: str
    operation: Literal["add", "multiply"]
    loops: Loops
    shape: tuple[int, ...] = ()
    axes: tuple[int, ...] = ()
    constant: np.ndarray | None = None

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
    """The changes of operands, each by the path of its equation and its position.

    Attributes:
      numbers: what operands become.
      parts: what is applied to operands, in order.
      recorded: operands that are returned, each with the key to return it by; the position
        ``RESULT`` is that of an equation's first result.
    """

    numbers: dict[Path, dict[int, float]]
    parts: dict[Path, dict[int, list[Part]]]
    recorded: dict[Path, dict[int, list[Any]]] = dataclasses.field(default_factory=dict)


def run(
    program: Any, args: Sequence[Any], edits: Edits, values: dict[tuple[str, str], jax.Array]
) -> tuple[list[Any], dict[Any, jax.Array]]:
    """Evaluates a closed jaxpr with changed operands.

    Args:
      program: the closed jaxpr.
      args: its arguments.
      edits: the changes.
      values: of each part, by its key: ``[turns..., *shape]``.

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


__all__ = ["RESULT", "Edits", "Part", "run"]
