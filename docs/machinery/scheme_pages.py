"""The pages of the schemes: what is written by hand, and what the registry and results add."""

from __future__ import annotations

import dataclasses
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


@dataclasses.dataclass(frozen=True)
class SchemePage:
    """A page of ``docs/schemes``.

    Attributes:
      path: the file.
      name: the scheme's, and the file's.
      code: its first block of Python: makes ``model``, ``params`` and a batch.
      lines: how the tables of the results call it besides the scheme's title.
    """

    path: Path
    name: str
    code: str
    lines: tuple[str, ...]

    @property
    def titles(self) -> tuple[str, ...]:
        """Whose rows of the results' tables belong on the page."""
        return tuple(dict.fromkeys((schemes.get(self.name).title, *self.lines)))


def read_page(path: Path) -> SchemePage:
    """Reads a page.

    Raises:
      ValueError: if there is no block of Python in it.
    """
    text = path.read_text()
    head = re.match(r"---\n(.*?)\n---\n", text, re.S)
    about: dict[str, Any] = (yaml.safe_load(head[1]) or {}) if head else {}
    code = re.search(r"^```python\n(.*?)^```$", text, re.S | re.M)
    if code is None:
        raise ValueError(f"{path.name} has no block of Python; expected one that makes params.")
    return SchemePage(path, path.stem, code[1], tuple(about.get("lines", ())))


def all_pages(folder: Path = FOLDER) -> tuple[SchemePage, ...]:
    """The pages, in the order of the registry.

    Raises:
      ValueError: if a registered scheme has no page, or a page no scheme.
    """
    there = {path.stem: path for path in sorted(folder.glob("*.md")) if path.stem != "index"}
    missing = [name for name in schemes.names() if name not in there]
    strange = [name for name in there if name not in schemes.names()]
    if missing or strange:
        raise ValueError(
            f"docs/schemes lacks pages for {missing} and has pages for {strange}, which are not "
            "registered; expected one page for each scheme."
        )
    return tuple(read_page(there[name]) for name in schemes.names())


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


def numbers(page: SchemePage, results: tuple[Result, ...]) -> str:
    """The rows of the committed tables that are about a scheme."""
    parts = []
    for result, table in lines_of(results, page.titles):
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


__all__ = [
    "FOLDER",
    "SchemePage",
    "all_pages",
    "anatomy_words",
    "facts",
    "need_words",
    "numbers",
    "read_page",
]
