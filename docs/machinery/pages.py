"""Writes the pages that are generated, before Sphinx reads any."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from docs.machinery.results import ROOT, Result, committed, lines_of
from nf_resnets import init, roles, schemes

DOCS = Path(__file__).parents[1]
GENERATED = DOCS / "generated"
SCHEMES = DOCS / "schemes"
COLAB = "https://colab.research.google.com/github/nf-resnets/nf_resnets/blob/main/notebooks"


def write_all() -> None:
    """Writes results and notebooks, and what other pages include; removes all others."""
    results = committed()
    texts = {"results.md": results_page(results)}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        texts[f"notebooks/{path.name}"] = notebook_page(path)
    for scheme in schemes.names():
        texts[f"schemes/{scheme}/facts.md"] = scheme_facts(scheme)
        texts[f"schemes/{scheme}/numbers.md"] = scheme_numbers(scheme, results)
    shutil.rmtree(GENERATED, ignore_errors=True)
    for name, text in texts.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def results_page(results: tuple[Result, ...]) -> str:
    """All tables and figures, each with the command that makes it again."""
    parts = [
        "# All tables and figures",
        "Every number on this page is read from a file in `results/` when the page is built. Each "
        "table has the command that makes it again (it writes to `runs/`, and overwrites "
        "nothing here). {doc}`/results` says what was tried before. Published numbers are on the "
        "pages of the {doc}`schemes </schemes/index>`.",
    ]
    for result in results:
        parts += [f"(results-{result.name})=", f"## {result.name}", f"{result.title}"]
        parts.append(f"```sh\n{result.command}\n```")
        parts.append(f"```text\n{result.table}```")
        for figure in result.figures:
            path = os.path.relpath(figure, GENERATED)
            parts.append(f"![{result.name}, {figure.stem}]({path}){{.picture}}")
        parts.append(" · ".join(_sources(result)))
    return "\n\n".join(parts) + "\n"


def notebook_page(path: Path) -> str:
    """A notebook with its output: links below the title, in place of the cell that installs."""
    notebook = json.loads(path.read_text())
    source = (
        f"[Open in Colab]({COLAB}/{path.name}), or download "
        f"{{download}}`{path.name} <{os.path.relpath(path, GENERATED / 'notebooks')}>`."
    )
    links = {"cell_type": "markdown", "id": "links", "metadata": {}, "source": source}
    notebook["cells"][1] = links
    notebook["metadata"]["language_info"]["pygments_lexer"] = "ipython3"
    return json.dumps(notebook)


def _sources(result: Result) -> list[str]:
    files = [
        path
        for name in ("rows.csv", "settings.json", "bench.json", "report.html")
        if (path := result.folder / name).exists()
    ]
    links = [f"{{download}}`{path.name} <{os.path.relpath(path, GENERATED)}>`" for path in files]
    return [*links, *([result.made] if result.made else [])]


@functools.cache
def _titles() -> dict[str, set[str]]:
    """What tables call schemes: their titles, and ``lines`` at the heads of their pages."""
    titles: dict[str, set[str]] = {}
    for name in schemes.names():
        head = re.match(r"---\n(.*?)\n---\n", (SCHEMES / f"{name}.md").read_text(), re.S)
        lines = yaml.safe_load(head[1]).get("lines", ()) if head else ()
        for title in (schemes.get(name).title, *lines):
            titles.setdefault(title, set()).add(name)
    return titles


@functools.cache
def schemes_of(cell: str) -> set[str]:
    """The schemes that a cell of a table is about: of the longest title that it begins with."""
    titles = [title for title in _titles() if re.match(rf"{re.escape(title)}($|[ ,])", cell)]
    return _titles()[max(titles, key=len)] if titles else set()


def scheme_facts(name: str) -> str:
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


def scheme_numbers(name: str, results: tuple[Result, ...]) -> str:
    """The rows of the committed tables that are about a scheme, by experiment."""
    parts: list[str] = []
    for title, of_one in itertools.groupby(results, lambda result: result.title):
        tables = [
            f"{{ref}}`{result.name} <results-{result.name}>`:\n\n```text\n{lines}\n```"
            for result in of_one
            if (lines := lines_of(result, lambda cell: name in schemes_of(cell)))
        ]
        parts += [f"**{title}**", *tables] if tables else []
    if not parts:
        return "No experiment of this library has run it yet.\n"
    lead = "Each name leads to the whole table, its settings, and the command that makes it again."
    return "\n\n".join([lead, *parts]) + "\n"


def _exported(function: Any) -> str | None:
    """The name under which ``nf_resnets.init`` exports a function, if it does."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", "")
    return name if name and getattr(init, name, None) is function else None


def _shown(value: Any) -> str:
    return "f(L)" if callable(value) else f"{value:.4g}" if isinstance(value, float) else str(value)
