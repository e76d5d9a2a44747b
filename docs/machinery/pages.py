"""Writes the pages that are generated, before Sphinx reads any."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from pathlib import Path

from docs.machinery import scheme_pages
from docs.machinery.results import ROOT, Result, committed
from nf_resnets import schemes
from nf_resnets.trained.torch_layouts import LAYOUTS

DOCS = Path(__file__).parents[1]
GENERATED = DOCS / "generated"
COLAB = "https://colab.research.google.com/github/nf-resnets/nf_resnets/blob/main/notebooks"


def write_all() -> None:
    """Writes results, gallery and notebooks, and what other pages include; removes all others."""
    results = committed()
    texts = {
        "results.md": results_page(results),
        "gallery.md": gallery_page(results),
        "layouts.md": layouts_table(),
    }
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        texts[f"notebooks/{path.name}"] = notebook_page(path)
    for scheme in schemes.names():
        texts[f"schemes/{scheme}/facts.md"] = scheme_pages.facts(scheme)
        texts[f"schemes/{scheme}/numbers.md"] = scheme_pages.numbers(scheme, results)
    shutil.rmtree(GENERATED, ignore_errors=True)
    for name, text in texts.items():
        path = GENERATED / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def results_page(results: tuple[Result, ...]) -> str:
    """All tables, each with the command that makes it again."""
    parts = [
        "# All tables",
        "Every number on this page is read from a file in `results/` when the page is built. Each "
        "table has the command that makes it again (it writes to `runs/`, and overwrites "
        "nothing here). Published numbers are on the pages of the {doc}`schemes </schemes/index>`.",
    ]
    for result in results:
        parts += [f"(results-{result.name})=", f"## {result.name}", f"{result.title}"]
        parts.append(f"```sh\n{result.command}\n```")
        parts.append(f"```text\n{result.table}```")
        if result.tried:
            parts.append(_code_spans(result.tried))
        parts.append(" · ".join(_sources(result)))
    return "\n\n".join(parts) + "\n"


def gallery_page(results: tuple[Result, ...]) -> str:
    """Thumbnails of all figures, by experiment and scale, with the claims that they test."""
    parts = ["# Gallery", "Each figure leads to itself in full; its table has the command."]
    for _, group in itertools.groupby(results, lambda result: result.module):
        shown = [result for result in group if result.figures]
        if not shown:
            continue
        first = shown[0]
        parts += [f"## {first.title.removesuffix('.')}", f"**Claim** {_code_spans(first.claim)}"]
        parts.append(":::::{container} thumbnails")
        parts += [_thumbnail(result, figure) for result in shown for figure in result.figures]
        parts.append(":::::")
    return "\n\n".join(parts) + "\n"


def _thumbnail(result: Result, figure: Path) -> str:
    path = os.path.relpath(figure, GENERATED)
    first = figure == result.figures[0]
    name = "" if figure.stem == "figure" else f", {figure.stem}"
    mark = f"(gallery-{result.name})=\n\n" if first else ""
    return (
        f"{mark}```{{figure}} {path}\n:alt: {_plain(result.title)} ({figure.stem})\n"
        f":class: picture\n\n{{download}}`{result.scale}{name} <{path}>` "
        f"({{ref}}`table <results-{result.name}>`)\n```"
    )


def layouts_table() -> str:
    """The layouts of PyTorch checkpoints that are known."""
    rows = ["| layout | whose | network | scheme |", "| --- | --- | --- | --- |"]
    for one in LAYOUTS.values():
        arguments = ", ".join(f"{name}={value}" for name, value in one.arguments.items())
        rows.append(
            f"| `{one.name}` | {one.title.removeprefix('the ')} | "
            f"`{one.network.__name__}({arguments})` | `{one.scheme}` |"
        )
    return "\n".join(rows) + "\n"


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
    figures = [f"{{ref}}`figure <gallery-{result.name}>`"] if result.figures else []
    return [*links, *figures, *([result.made] if result.made else [])]


def _code_spans(text: str) -> str:
    """A docstring's text as Markdown: what is no code must not be taken for a formula."""
    pieces = text.split("`")
    return "`".join(
        piece.replace("$", r"\$").replace("*", r"\*").replace("<", r"\<") if not at % 2 else piece
        for at, piece in enumerate(pieces)
    )


def _plain(text: str) -> str:
    return text.replace("`", "").replace("\n", " ")
