"""Walks and evaluates the jaxpr of a network's program.

A *path* names an equation: its index, after those of the calls and loops around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
from jax.extend import core

Path = tuple[int, ...]
Step = Callable[[Any, list[Any], Path], list[Any]]
Recorded = dict[Any, Any]
Change = Callable[
    [Any, list[Any], Path, Any, Callable[[list[Any]], tuple[list[Any], Recorded]]],
    tuple[list[Any], Recorded],
]

LOOPS = ("scan", "while", "cond")
REMATS = ("checkpoint", "remat", "remat2")
CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
ENTERED = ("scan", "jit", "pjit", "closed_call", "core_call", *REMATS, *CUSTOM)
"""The calls whose equations can be evaluated one by one."""
CALLS_OUTSIDE = (
    "ffi_call", "pallas_call", "pure_callback", "custom_call", "ragged_dot",
    "ragged_dot_general",
)  # fmt: skip


def walk(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    path: Path,
    step: Step,
    constant: Callable[[Any], Any] = lambda value: value,
) -> list[Any]:
    """Takes the equations of a jaxpr in order, each by ``step(equation, args, path)``.

    The values may be of any kind; ``constant`` makes one of a constant of the program.
    """
    known = dict(zip(jaxpr.invars, args, strict=True))
    known.update(zip(jaxpr.constvars, map(constant, consts), strict=True))

    def value(atom: Any) -> Any:
        return constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

    for index, equation in enumerate(jaxpr.eqns):
        results = step(equation, [value(atom) for atom in equation.invars], (*path, index))
        known.update(zip(equation.outvars, results, strict=True))
    return [value(atom) for atom in jaxpr.outvars]


def called(equation: Any) -> Any:
    """The jaxpr of an equation that calls one and does nothing else, or None."""
    if equation.primitive.name in (*CALLS_OUTSIDE, *LOOPS, "custom_linear_solve"):
        return None
    names = ("jaxpr", "call_jaxpr", "fun_jaxpr")
    return next((equation.params[key] for key in names if key in equation.params), None)


def enter(program: Any, args: list[Any]) -> tuple[Any, Sequence[Any], list[Any]]:
    """A called jaxpr, its constants, and the arguments that it takes, the last ones."""
    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    return jaxpr, consts, args[len(args) - len(jaxpr.invars) :]


def whole_operands(scan: Any) -> tuple[int, int]:
    """How many operands of a scan are constants, and how many those and what it carries are."""

    def count(outside: Sequence[Any], inside: Sequence[Any]) -> int:
        # What is cut has one axis more outside; the options' names differ between versions of JAX.
        return sum(a.aval.ndim == b.aval.ndim for a, b in zip(outside, inside, strict=True))

    body = scan.params["jaxpr"].jaxpr
    end = count(scan.invars, body.invars)
    return end - count(scan.outvars, body.outvars), end


def evaluate(equation: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates an equation as it is."""
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        out = equation.primitive.bind(*args, **params)
    return list(out) if equation.primitive.multiple_results else [out]


def run(
    program: Any,
    args: Sequence[Any],
    changed: Collection[Path],
    change: Change,
    values: Mapping[Any, Any] = MappingProxyType({}),
    loops_of: Mapping[Any, Collection[Path]] = MappingProxyType({}),
) -> tuple[list[Any], Recorded]:
    """Evaluates a closed jaxpr, some of whose equations are changed.

    Calls around a changed equation are entered: ``jit`` and derivative rules are inlined, ``remat``
    and ``scan`` are kept.

    Args:
      program: the closed jaxpr.
      args: its arguments.
      changed: the paths of the changed equations.
      change: ``change(equation, args, path, values, proceed)`` gives the results of a changed one
        and what it records, by key, as ``proceed(args)`` gives those of the equation itself.
      values: arrays by key, with a leading axis for each loop around their use.
      loops_of: the paths of those loops, by key. What is recorded gets such axes, too.
    """
    entered = {path[:end] for path in changed for end in range(1, len(path))}

    def evaluated(
        jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], path: Path, values: Any
    ) -> tuple[list[Any], Recorded]:
        recorded: Recorded = {}

        def step(equation: Any, args: list[Any], path: Path) -> list[Any]:
            def proceed(args: list[Any]) -> tuple[list[Any], Recorded]:
                if path not in entered:
                    return evaluate(equation, args), {}
                if equation.primitive.name == "scan":
                    return scan(equation, args, path, values)
                jaxpr, consts, given = enter(called(equation), args)
                if equation.primitive.name not in REMATS:
                    return evaluated(jaxpr, consts, given, path, values)
                options = {name: equation.params[name] for name in ("policy", "prevent_cse")}
                body = jax.checkpoint(
                    lambda args, values: evaluated(jaxpr, consts, args, path, values), **options
                )
                return body(given, values)

            if path in changed:
                results, inside = change(equation, args, path, values, proceed)
            else:
                results, inside = proceed(args)
            recorded.update(inside)
            return results

        return walk(jaxpr, consts, args, path, step), recorded

    def scan(equation: Any, args: list[Any], path: Path, values: Any) -> tuple[list[Any], Recorded]:
        options, body = equation.params, equation.params["jaxpr"]
        start, end = whole_operands(equation)
        cut = {key: value for key, value in values.items() if path in loops_of.get(key, ())}

        def turn(carry: Any, slices: Any) -> Any:
            of_turn, xs = slices
            given = [*args[:start], *carry, *xs]
            inside = {**values, **of_turn}
            out, recorded = evaluated(body.jaxpr, body.consts, given, path, inside)
            return out[: end - start], (out[end - start :], recorded)

        carry, (stacked, recorded) = jax.lax.scan(
            turn, args[start:end], (cut, args[end:]), options["length"],
            reverse=options["reverse"], unroll=options["unroll"],
        )  # fmt: skip
        return [*carry, *stacked], recorded

    return evaluated(program.jaxpr, program.consts, args, (), dict(values))
