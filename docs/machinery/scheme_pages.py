"""The pages of the schemes: what is written by hand, and what the registry and results add."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import yaml

from docs.machinery.results import Result, lines_of, markdown_table
from nf_resnets import init, roles, schemes

FOLDER = Path(__file__).parents[1] / "schemes"

# What the registry's families of networks are called on a page.
FAMILIES = {
    "pre_activation": "pre-activation (`WideResNet`, `ResNet` version 2)",
    "post_activation": "post-activation (`CifarResNet`, `ResNet` version 1)",
    "plain": "without shortcuts (`VGG`)",
    "transformer": "`Transformer`",
}
NORMS = {
    "batch": "BatchNorm",
    "group": "GroupNorm",
    "layer": "LayerNorm",
    "dyt": "a scaled tanh",
    "derf": "a scaled error function",
}
PLACES = {
    "default": "at its usual place",
    "last": "once, after the last block",
    "merge": "in the branch and after every sum",
    "pre": "as a branch begins",
    "post": "after every sum",
}


def names_in_tables(name: str) -> tuple[str, ...]:
    """What tables of results call a scheme: its title, and ``lines`` at the head of its page."""
    head = re.match(r"---\n(.*?)\n---\n", (FOLDER / f"{name}.md").read_text(), re.S)
    lines = yaml.safe_load(head[1]).get("lines", ()) if head else ()
    return (schemes.get(name).title, *lines)


def facts(name: str) -> str:
    """What the registry knows of a scheme, as a table in Markdown."""
    scheme = schemes.get(name)
    rows = [("by name", f'`scheme="{scheme.name}"`')]
    function = _function(scheme.init)
    if function:
        rows.append(("initialisation", f"{{func}}`{function} <nf_resnets.init.{function}>`"))
    if scheme.calibrate is not None:
        looks = _function(scheme.calibrate)
        link = f"{{func}}`{looks} <nf_resnets.init.{looks}>`" if looks else "a function of its own"
        rows.append(("set from a batch by", link))
    rows.append(("in the network", "; ".join(anatomy_words(scheme.anatomy))))
    for group, words in (
        (scheme.scalars, f"learn at {scheme.scalar_factor:g} times the rate"),
        (scheme.undecayed, "have no weight decay"),
    ):
        if group:
            rows.append((words, "; ".join(group_words(group))))
    if scheme.needs:
        rows.append(("if a part is missing", "; ".join(need_words(scheme))))
    fits = [words for family, words in FAMILIES.items() if family in scheme.fits]
    rows.append(("networks", "; ".join(fits)))
    rows.append(("source", scheme.reference))
    lines = ["| | |", "| :-- | :-- |", *(f"| {left} | {right} |" for left, right in rows)]
    return "\n".join(lines) + "\n"


def group_words(group: roles.Group) -> list[str]:
    """The leaves of a group, in words."""
    words = [role.value.replace("_", " ") for role in group.roles]
    if set(group.bias_vectors) == set(roles.LAYER_ROLES):
        return [*words, "bias vectors of all layers"]
    return [*words, *(f"bias vector of the {role.value}" for role in group.bias_vectors)]


def anatomy_words(anatomy: schemes.Anatomy) -> list[str]:
    """What a network contains for a scheme, in words."""
    said = [
        (anatomy.scalar_biases, "scalar biases before convolutions and activations"),
        (anatomy.channel_biases, "a bias for each channel before every convolution"),
        (anatomy.multiplier, "a learnable multiplier on every branch, from 1"),
        (anatomy.alpha, "a learnable scalar on every branch"),
        (anatomy.conv_biases, "bias vectors in its layers"),
        (anatomy.standardized, "convolutions with standardised weights"),
        (anatomy.same_padding, "TensorFlow's padding"),
        (anatomy.pooled_shortcut, "average-pooled shortcuts where the shape changes"),
        (anatomy.dropout, "dropout before the head"),
        (not anatomy.branches, "no residual branches"),
    ]
    words = [text for there, text in said if there]
    if anatomy.normalized:
        words.insert(0, f"{NORMS[anatomy.norm]}, {PLACES[anatomy.norm_place]}")
    for value, where in (
        (anatomy.residual, "on every branch"),
        (anatomy.identity, "on every skip path"),
    ):
        if callable(value):
            words.append(f"a constant of its own {where}")
        elif value != 1.0:
            words.append(f"the constant {value:.4g} {where}")
    if callable(anatomy.beta) or anatomy.beta != 1.0:
        words.append("branch inputs divided by a constant")
    return words or ["nothing beyond its layers"]


def need_words(scheme: schemes.Scheme) -> list[str]:
    """The effect of a missing part, in words."""
    said = {"fails": "refused", "worse": "a warning", "differs": "another network"}
    return [f"`{need.part}`: {said[need.without]}" for need in scheme.needs]


def numbers(name: str, results: tuple[Result, ...]) -> str:
    """The rows of the committed tables that are about a scheme."""
    parts = []
    for result, table in lines_of(results, names_in_tables(name)):
        parts.append(
            f"{result.title} {{ref}}`Whole table <results-{result.name}>`, by\n"
            f"`{result.command}`:\n\n{markdown_table(table)}\n"
        )
    if not parts:
        return "No experiment of this library has run it yet.\n"
    return "\n".join(parts)


def _function(function: Any) -> str | None:
    """The name under which ``nf_resnets.init`` exports a function, if it does."""
    while isinstance(function, functools.partial):
        function = function.func
    name = function.__name__
    return name if getattr(init, name, None) is function else None


__all__ = ["FOLDER", "facts", "names_in_tables", "numbers"]
