"""What the code of a page prints, as it stands below the code.

A page that shows what its code prints has it in blocks of ``text``, each right below a block of
``python``. All its blocks of ``python`` are then run from the top, in one namespace; ``py`` is for
code that is only shown. ``python -m docs.machinery.outputs PAGE ...`` runs pages and writes what
they print; slow tests compare.
"""

from __future__ import annotations

import ast
import contextlib
import io
import pprint
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
FIGURES = DOCS / "figures"
"""The pictures that the code of pages writes, by their names."""

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?|-?\d+e[-+]\d+")


def executed_pages() -> tuple[Path, ...]:
    """The pages that show what their code prints."""
    pages = (path for path in sorted(DOCS.rglob("*.md")) if "generated" not in path.parts)
    return tuple(path for path in pages if any(said for _, said in blocks(path.read_text())))


def blocks(text: str) -> list[tuple[str, str]]:
    """The code of a page, and what it prints according to the page."""
    return BLOCK.findall(text)


def run(text: str) -> Iterator[str]:
    """Runs the code of a page, and gives what each block prints, its last value included."""
    names: dict[str, Any] = {}
    for code, _ in blocks(text):
        tree, printed = ast.parse(code), io.StringIO()
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, "page", "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), "page", "eval"), names)
        shown = "" if value is None else pprint.pformat(value, width=88, sort_dicts=False) + "\n"
        yield printed.getvalue() + shown


def refreshed(text: str, printed: list[str]) -> str:
    """A page with other outputs."""
    left = iter(printed)

    def block(match: re.Match[str]) -> str:
        said = next(left)
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{said}```\n" if said else "")

    return BLOCK.sub(block, text)


def agree(printed: str, shown: str) -> bool:
    """Whether outputs are the same but for floats, of which training leaves a tenth in doubt."""
    if NUMBER.sub("#", printed) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.findall(printed), NUMBER.findall(shown), strict=True)
    return all(abs(float(a) - float(b)) <= 0.1 * abs(float(b)) + 0.02 for a, b in pairs)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name).resolve()
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            page.write_text(refreshed(text, list(run(text))))
            for figure in re.findall(r"\((?:\.\./)?figures/(\S+\.png)\)", text):
                FIGURES.mkdir(exist_ok=True)
                shutil.copy(figure, FIGURES / figure)
