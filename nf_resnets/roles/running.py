"""Evaluates a network's program, equation by equation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend import core

from nf_resnets.roles.graph import called

Path = tuple[int, ...]
"""The place of an equation: its index, after those of the calls and loops around it."""

REMATS = ("checkpoint", "remat", "remat2")
CUSTOM = ("custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr")
ENTERED = ("scan", "jit", "pjit", "closed_call", "core_call", *REMATS, *CUSTOM)
"""The calls whose equations can be evaluated one by one."""


def walk(
    jaxpr: Any,
    consts: Sequence[Any],
    args: Sequence[Any],
    path: Path,
    step: Callable[[Any, list[Any], Path], list[Any]],
) -> list[Any]:
    """Evaluates a jaxpr, each equation by ``step(equation, args, path)``."""
    known = dict(zip(jaxpr.constvars, consts, strict=True))
    known.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, core.Literal) else known[atom]

    for index, equation in enumerate(jaxpr.eqns):
        results = step(equation, [read(atom) for atom in equation.invars], (*path, index))
        known.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def enter(equation: Any, args: list[Any]) -> tuple[Any, Sequence[Any], list[Any]]:
    """The jaxpr that an equation calls, its constants, and the arguments that it takes."""
    program = called(equation)
    jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
    return jaxpr, consts, args[len(args) - len(jaxpr.invars) :]


def evaluate(equation: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluates an equation as it is."""
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        out = equation.primitive.bind(*args, **params)
    return list(out) if equation.primitive.multiple_results else [out]


__all__ = ["CUSTOM", "ENTERED", "REMATS", "Path", "enter", "evaluate", "walk"]
