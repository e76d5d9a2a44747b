"""Writes the pages that are generated, before Sphinx reads any."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from docs.machinery import pictures, reference, scheme_pages
from docs.machinery.results import Result, Table, committed, markdown_table

DOCS = Path(__file__).parents[1]
GENERATED = DOCS / "generated"


def write_all(folder: Path = GENERATED, *, with_pictures: bool = True) -> None:
    """Writes the reference, the results, the gallery, and what the schemes' pages include.

    Args:
      folder: where to; what an earlier build left there and this one does not make is removed.
      with_pictures: whether the schemes' networks are measured and drawn.
    """
    results = committed()
    written = {folder / "results.md", folder / "gallery.md"}
    _write(folder / "results.md", results_page(results))
    _write(folder / "gallery.md", gallery_page(results))
    for name, text in reference.pages().items():
        path = folder / "api" / f"{name}.rst"
        _write(path, text)
        written.add(path)
    pages = scheme_pages.all_pages()
    if with_pictures:
        pictures.keep_all(pages, folder / "pictures")
    for page in pages:
        own = folder / "schemes" / page.name
        _write(own / "facts.md", scheme_pages.facts(page.name))
        _write(own / "numbers.md", scheme_pages.numbers(page, results))
        _write(own / "picture.md", _picture(page, folder, with_pictures=with_pictures))
        written |= {own / "facts.md", own / "numbers.md", own / "picture.md"}
    for path in [*folder.rglob("*.md"), *folder.rglob("*.rst")]:
        if path not in written:
            path.unlink()


def results_page(results: tuple[Result, ...]) -> str:
    """All tables, each with the command that makes it again."""
    parts = [
        "# Results",
        "Every number on this page is read from a file in `results/` when the page is built. Each "
        "table stands with the command that makes it again (it writes to `runs/`, and overwrites "
        "nothing here). Published numbers are on the pages of the {doc}`schemes </schemes/index>`.",
    ]
    for result in results:
        parts += [f"(results-{result.name})=", f"## {result.name}", f"{result.title}"]
        parts.append(f"```sh\n{result.command}\n```")
        for table in result.tables:
            parts.append(_scrolling(table))
        if result.tried:
            parts.append(_code_spans(result.tried))
        parts.append(" · ".join(_sources(result)))
    return "\n\n".join(parts) + "\n"


def gallery_page(results: tuple[Result, ...]) -> str:
    """All figures, with what they claim and the command that draws them again."""
    parts = [
        "# Gallery",
        "The committed figures, what they are to show, and the command that draws each again.",
    ]
    for result in results:
        if not result.figures:
            continue
        parts += [f"(gallery-{result.name})=", f"## {result.title.removesuffix('.')}"]
        for figure in result.figures:
            path = os.path.relpath(figure, GENERATED)
            parts.append(
                f"```{{figure}} {path}\n:alt: {_plain(result.title)} ({figure.stem})\n"
                ":class: picture\n```"
            )
        parts.append(f"**Claim** {_code_spans(result.claim)}")
        parts.append(f"```sh\n{result.command}\n```")
        if result.tables:
            parts.append(f"{{ref}}`Its table <results-{result.name}>`")
    return "\n\n".join(parts) + "\n"


def remove_all(folder: Path = GENERATED) -> None:
    """Removes what was generated."""
    shutil.rmtree(folder, ignore_errors=True)


def _scrolling(table: Table) -> str:
    return f":::{{container}} scrolls\n{markdown_table(table)}\n:::"


def _sources(result: Result) -> list[str]:
    files = [
        path
        for name in ("rows.csv", "settings.json", "bench.json", "report.html")
        if (path := result.folder / name).exists()
    ]
    links = [f"{{download}}`{path.name} <{os.path.relpath(path, GENERATED)}>`" for path in files]
    figures = [f"{{ref}}`figure <gallery-{result.name}>`"] if result.figures else []
    return [*links, *figures, *([result.made] if result.made else [])]


def _picture(page: scheme_pages.SchemePage, folder: Path, *, with_pictures: bool) -> str:
    if not with_pictures:
        return "This build drew no pictures.\n"
    picture, words = pictures.keep(page, folder / "pictures")
    return (
        f"```{{figure}} /{picture.relative_to(DOCS)}\n:alt: Second moments and gradients along the "
        f"blocks\n:class: picture\n\nDrawn from the code above when this page was built. {words}\n"
        "```\n"
    )


def _code_spans(text: str) -> str:
    """A docstring's text as Markdown: what is no code must not be taken for a formula."""
    pieces = text.split("`")
    return "`".join(
        piece.replace("$", r"\$").replace("*", r"\*").replace("<", r"\<") if not at % 2 else piece
        for at, piece in enumerate(pieces)
    )


def _plain(text: str) -> str:
    return text.replace("`", "").replace("\n", " ")


def _write(path: Path, text: str) -> None:
    """Writes a file unless it is there as it is to be, so that Sphinx reads only what changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


__all__ = ["GENERATED", "gallery_page", "remove_all", "results_page", "write_all"]
