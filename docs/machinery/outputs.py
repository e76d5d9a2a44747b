"""What the code of a page prints, as it stands below the code.

A page that shows what its code prints has it in blocks of ``text``, each right below a block of
``python``. All its blocks of ``python`` are then run from the top, in one namespace; ``py`` is for
code that is only shown. ``python -m docs.machinery.outputs [PAGE ...]`` runs pages, all of them
unless some are named, and writes what they print; slow tests compare.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import pprint
import re
import shutil
import sys
import tempfile
import time
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
    return tuple(path for path in _written() if any(said for _, said in blocks(path.read_text())))


def blocks(text: str) -> list[tuple[str, str]]:
    """The code of a page, and what it prints according to the page: ``""`` for nothing."""
    return BLOCK.findall(text)


def run(text: str, name: str = "page", names: dict[str, Any] | None = None) -> Iterator[str]:
    """Runs the code of a page, and gives what each block prints, its last value included.

    Args:
      text: the page.
      name: what tracebacks call it.
      names: the namespace of the code; None for a new one.
    """
    names = {} if names is None else names
    for code, _ in blocks(text):
        tree, printed = ast.parse(code, name), io.StringIO()
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, name, "exec"), names)
            value = last and eval(compile(ast.Expression(last.value), name, "eval"), names)
        shown = "" if value is None else pprint.pformat(value, width=88, sort_dicts=False) + "\n"
        yield printed.getvalue() + shown


def refreshed(text: str, printed: list[str]) -> str:
    """A page with other outputs."""
    left = iter(printed)

    def block(match: re.Match[str]) -> str:
        said = next(left)
        return f"```python\n{match[1]}```\n" + (f"\n```text\n{said}```\n" if said else "")

    return BLOCK.sub(block, text)


def agree(found: str, shown: str) -> bool:
    """Whether two outputs are the same but for floats, of which training leaves a tenth in doubt.

    Example:
      >>> agree("3 runs, 0.95", "3 runs, 0.96"), agree("3 runs, 0.95", "4 runs, 0.95")
      (True, False)
    """
    if NUMBER.sub("#", found) != NUMBER.sub("#", shown):
        return False
    pairs = zip(NUMBER.findall(found), NUMBER.findall(shown), strict=True)
    return all(abs(float(a) - float(b)) <= 0.1 * abs(float(b)) + 0.02 for a, b in pairs)


def _written() -> list[Path]:
    return [path for path in sorted(DOCS.rglob("*.md")) if "generated" not in path.parts]


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """Works in a temporary folder, so that a page's code may write there."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


def main(names: list[str]) -> None:
    named = [path for path in _written() if path.stem in names]
    if missing := {*names} - {path.stem for path in named}:
        raise SystemExit(f"pages {', '.join(sorted(missing))} found; expected names such as sweep.")
    for path in named if names else executed_pages():
        text, start = path.read_text(), time.process_time()
        with empty_folder() as folder:
            path.write_text(refreshed(text, list(run(text, path.name))))
            for figure in re.findall(r"\((?:\.\./)?figures/(\S+\.png)\)", text):
                FIGURES.mkdir(exist_ok=True)
                shutil.copy(folder / figure, FIGURES / figure)
        print(f"{path.name}: {time.process_time() - start:.0f} processor seconds", flush=True)


__all__ = ["FIGURES", "agree", "blocks", "empty_folder", "executed_pages", "refreshed", "run"]

if __name__ == "__main__":
    main(sys.argv[1:])
