"""Programs with some operands of their equations changed.

``run`` interprets a jaxpr, as JAX itself does, and changes operands on the way: some become a
number, others are shifted or multiplied by a :class:`Part`. An equation is named by its path (see
:mod:`nf_resnets.roles.graph`). ``jit`` and derivative rules around a change are inlined, ``remat``
and ``scan`` are kept; all else is evaluated as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from nf_resnets.roles.graph import Loops, called

Path = tuple[int, ...]

REMATS = ("checkpoint", "remat", "remat2")
CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
ENTERED = ("scan", "jit", "pjit", "closed_call", "core_call", *REMATS, *CUSTOM)
"""The calls in which operands can be changed."""
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
      loop_at: the number of the loop that the ``scan`` at a path is.
      recorded: operands that are returned, each with the key to return it by; the position
        ``RESULT`` is that of an equation's first result.
    """

    numbers: dict[Path, dict[int, float]]
    parts: dict[Path, dict[int, list[Part]]]
    loop_at: dict[Path, int]
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
      The results, and what is recorded, by key: ``[turns..., *shape]``.
    """
    return _Run(edits).walk(program.jaxpr, program.consts, args, (), values)


class _Run:
    def __init__(self, edits: Edits) -> None:
        self._edits = edits
        paths = [*edits.numbers, *edits.parts, *edits.recorded]
        self._entered = {path[:end] for path in paths for end in range(1, len(path))}
        parts = [p for at in edits.parts.values() for some in at.values() for p in some]
        self._loops = {part.key: dict(part.loops) for part in parts}

    def walk(
        self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], path: Path, values: Any
    ) -> tuple[list[Any], dict[Any, Any]]:
        recorded: dict[Any, Any] = {}
        known = dict(zip(jaxpr.constvars, consts, strict=True))
        known.update(zip(jaxpr.invars, args, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, core.Literal) else known[atom]

        for index, equation in enumerate(jaxpr.eqns):
            given, place = [read(atom) for atom in equation.invars], (*path, index)
            # This changes the operands in place.
            results, inside = self._equation(equation, given, place, values)
            known.update(zip(equation.outvars, results, strict=True))
            recorded |= inside
            for at, keys in self._edits.recorded.get(place, {}).items():
                recorded |= dict.fromkeys(keys, results[0] if at == RESULT else given[at])
        return [read(atom) for atom in jaxpr.outvars], recorded

    def _equation(
        self, equation: Any, args: list[Any], path: Path, values: Any
    ) -> tuple[list[Any], dict[Any, Any]]:
        for at, parts in self._edits.parts.get(path, {}).items():
            for part in parts:
                args[at] = part.applied(args[at], values[part.key])
        for at, number in self._edits.numbers.get(path, {}).items():
            # A neutral element is left out, so that it costs nothing and rounds nothing.
            is_left = at == 0 and equation.primitive.name in ("sub", "div")
            if len(args) == 2 and not is_left and NEUTRAL.get(equation.primitive.name) == number:
                return [jnp.broadcast_to(args[1 - at], equation.outvars[0].aval.shape)], {}
            aval = equation.invars[at].aval
            args[at] = jnp.full(aval.shape, number, aval.dtype)
        if path not in self._entered:
            return _evaluate(equation, args), {}
        if equation.primitive.name == "scan":
            return self._scan(equation, args, path, values)
        program = called(equation)
        jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
        args = args[len(args) - len(jaxpr.invars) :]
        if equation.primitive.name in REMATS:

            def body(values: Any, args: Any) -> Any:
                return self.walk(jaxpr, consts, args, path, values)

            options = {name: equation.params[name] for name in ("policy", "prevent_cse")}
            return jax.checkpoint(body, **options)(values, args)
        return self.walk(jaxpr, consts, args, path, values)

    def _scan(
        self, equation: Any, args: list[Any], path: Path, values: Any
    ) -> tuple[list[Any], dict[Any, Any]]:
        options, loop = equation.params, self._edits.loop_at[path]
        start, end = options["num_consts"], options["num_consts"] + options["num_carry"]
        body = options["jaxpr"]
        cut = {key: value for key, value in values.items() if loop in self._loops.get(key, ())}

        def turn(carry: Any, slices: Any) -> Any:
            own, xs = slices
            given = [*args[:start], *carry, *xs]
            out, recorded = self.walk(body.jaxpr, body.consts, given, path, {**values, **own})
            return out[: end - start], (out[end - start :], recorded)

        carry, (stacked, recorded) = jax.lax.scan(
            turn, args[start:end], (cut, args[end:]), options["length"],
            reverse=options["reverse"], unroll=options["unroll"],
        )  # fmt: skip
        # Turns are in the order of computation.
        turns = {key: y[::-1] if options["reverse"] else y for key, y in recorded.items()}
        return [*carry, *stacked], turns


def _evaluate(equation: Any, args: Sequence[Any]) -> list[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        out = equation.primitive.bind(*args, **params)
    return list(out) if equation.primitive.multiple_results else [out]


__all__ = ["CUSTOM", "ENTERED", "RESULT", "Edits", "Part", "Path", "run"]
