"""Plain words: no private vocabulary in names, docstrings, comments, pages and displays."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A word that this library once had to itself, and the field's term for it.
NAMES = {
    "crew": "worker", "lane": "thread", "lanes": "workers", "seat": "slot", "seats": "slots",
    "seated": "in a slot", "watch": "callback", "several": "callbacks", "told": "on_step",
    "went": "on_step", "went_on": "on_step", "plan": "resolved", "together": "vectorize",
    "wave": "priority", "job": "group", "jobs": "groups", "usual": "default_init",
    "beside": "branch lookup", "goes": "cond", "goes_on": "cond", "feed": "device iterator",
    "feeds": "device iterators", "leader": "process 0",
    "leads": "process 0", "share": "fraction", "promised": "target", "house": "architecture",
    "ledgered": "recorded",
}  # fmt: skip

SENTENCES = (
    r"\bcrews?\b", r"\blanes?\b", r"\bseat(s|ed)?\b", r"\bused up\b",
    r"\bledgered\b", r"\bonlookers?\b", r"\bsits? (down|no more)\b", r"\bleading process\b",
    r"\bwaves?\b of (runs|jobs)\b", r"\b(map|style) of the house\b",
)  # fmt: skip

# html.parser's method; the branch's share of a sum, which files of results call so, too; the
# benchmark of runs together, after which its results are named.
ALLOWED = {("tests", "feed"), ("nf_resnets/analysis", "share"), ("nf_resnets/models", "share"),
           ("tests/analysis", "share"), ("experiments", "share"), ("docs", "share"),
           ("notebooks", "share"), ("benchmarks/together.py", "together")}  # fmt: skip

FOLDERS = ("nf_resnets", "experiments", "benchmarks", "docs", "notebooks", "tests")


def python_files():
    return [
        path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))
        if "_build" not in path.parts and path != Path(__file__)
    ]  # fmt: skip


def pages():
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "Makefile")),
        *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in path.parts),
    ]


def defined(tree):
    """Names that others see: of functions, classes, arguments, fields and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg | ast.keyword) and node.arg:
            yield node.lineno if isinstance(node, ast.arg) else node.value.lineno, node.arg
        elif isinstance(node, ast.Attribute):
            yield node.lineno, node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.lineno, node.target.id


def old_names(path):
    text = path.read_text()
    # Few files hold one of the words at all, and only these are parsed.
    held = re.search(rf"(?<![a-z0-9])({'|'.join(NAMES)})(?![a-z0-9])", text, re.IGNORECASE)
    found = [(0, path.stem), *(defined(ast.parse(text)) if held else ())]
    return [
        f"{path.relative_to(ROOT)}:{line}: {name} ({NAMES[name.strip('_').lower()]})"
        for line, name in found
        if name.strip("_").lower() in NAMES and not is_allowed(path, name)
    ]


def is_allowed(path, name):
    place = str(path.relative_to(ROOT))
    return any(place.startswith(where) and name == word for where, word in ALLOWED)


def old_sentences(path):
    text = path.read_text()
    if not re.search("|".join(SENTENCES), text, re.IGNORECASE):
        return []
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern in SENTENCES
        if re.search(pattern, line, re.IGNORECASE)
    ]


def test_names_are_the_field_s_terms():
    found = [each for path in python_files() for each in old_names(path)]
    assert not found, "\n".join(found)


def test_sentences_are_plain():
    found = [each for path in (*python_files(), *pages()) for each in old_sentences(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("class Crew:\n    pass", "Crew"),
        ("def step(x, *, together=1):\n    pass", "together"),
        ("class Run:\n    seat: int = 0", "seat"),
        ("program.leads()", "leads"),
        ("run(lanes=2)", "lanes"),
    ],
)
def test_an_old_name_is_found(tmp_path, monkeypatch, source, name):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "new.py"
    path.write_text(source)
    (found,) = old_names(path)
    assert f"{name} (" in found


def test_an_old_sentence_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "new.md"
    path.write_text("The states are used up.\nA run is seated in a lane.\n")
    assert len(old_sentences(path)) == 3
