"""The pages of the schemes: what is written by hand, and what the registry and results add."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

import yaml

from docs.machinery.results import Result, lines_of
from nf_resnets import init, roles, schemes

FOLDER = Path(__file__).parents[1] / "schemes"


def names_in_tables(name: str) -> tuple[str, ...]:
    """What tables of results call a scheme: its title, and ``lines`` at the head of its page."""
    head = re.match(r"---\n(.*?)\n---\n", (FOLDER / f"{name}.md").read_text(), re.S)
    lines = yaml.safe_load(head[1]).get("lines", ()) if head else ()
    return (schemes.get(name).title, *lines)


def facts(name: str) -> str:
    """What the registry knows of a scheme, as a table in Markdown."""
    scheme = schemes.get(name)
    rows = [("by name", f'`scheme="{scheme.name}"`')]
    for words, function in (
        ("initialisation", scheme.init), ("set from a batch by", scheme.calibrate),
    ):  # fmt: skip
        exported = _exported(function)
        if exported:
            rows.append((words, f"{{func}}`{exported} <nf_resnets.init.{exported}>`"))
    anatomy = [
        f"`{field.name}`" if value is True else f"`{field.name}={_shown(value)}`"
        for field in dataclasses.fields(scheme.anatomy)
        if (value := getattr(scheme.anatomy, field.name)) != field.default
    ]
    parts = "; ".join(anatomy) or "nothing beyond its layers"
    rows.append(("{class}`in the network <nf_resnets.schemes.Anatomy>`", parts))
    for group, words in (
        (scheme.scalars, f"learn at {scheme.scalar_factor:g} times the rate"),
        (scheme.undecayed, "have no weight decay"),
    ):
        if group:
            rows.append((words, "; ".join(group_words(group))))
    rows.append(("networks", ", ".join(family.replace("_", "-") for family in scheme.fits)))
    rows.append(("source", scheme.reference))
    lines = ["| | |", "| :-- | :-- |", *(f"| {left} | {right} |" for left, right in rows)]
    return "\n".join(lines) + "\n"


def group_words(group: roles.Group) -> list[str]:
    """The leaves of a group, in words."""
    words = [role.value.replace("_", " ") for role in group.roles]
    if set(group.bias_vectors) >= set(roles.LAYER_ROLES):
        return [*words, "bias vectors of all layers"]
    return [*words, *(f"bias vector of the {role.value}" for role in group.bias_vectors)]


def numbers(name: str, results: tuple[Result, ...]) -> str:
    """The rows of the committed tables that are about a scheme."""
    parts = [
        f"{result.title} {{ref}}`Whole table <results-{result.name}>`, by\n"
        f"`{result.command}`:\n\n```text\n{lines}\n```\n"
        for result in results
        if (lines := lines_of(result, names_in_tables(name)))
    ]
    return "\n".join(parts) or "No experiment of this library has run it yet.\n"


def _exported(function: Any) -> str | None:
    """The name under which ``nf_resnets.init`` exports a function, if it does."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", "")
    return name if name and getattr(init, name, None) is function else None


def _shown(value: Any) -> str:
    return "f(L)" if callable(value) else f"{value:.4g}" if isinstance(value, float) else str(value)
