"""The documentation's pages without Sphinx: no scheme lacks one, and their code can run."""

import ast
import importlib
import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

from docs.machinery import pages, results, scheme_pages
from nf_resnets import schemes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
WRITTEN = sorted(
    path
    for path in DOCS.rglob("*.md")
    if not {"generated", "_build"} & set(path.relative_to(DOCS).parts)
)
IDS = [path.relative_to(DOCS).as_posix() for path in WRITTEN]
COMMITTED = results.committed()


def blocks(path, *languages):
    """The code of a page in some languages."""
    found = re.findall(r"^```(\S+?)\n(.*?)^```$", path.read_text(), re.S | re.M)
    return [code for kind, code in found if kind in languages]


def missing_names(code):
    """What a block takes from the package and does not find there."""
    modules, missing = {}, []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nf_resnets"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                if hasattr(module, alias.name):
                    modules[alias.asname or alias.name] = getattr(module, alias.name)
                else:
                    missing.append(f"{node.module}.{alias.name}")
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = modules.get(node.value.id)
            if owner is not None and not hasattr(owner, node.attr):
                missing.append(f"{node.value.id}.{node.attr}")
    return missing


def test_every_scheme_has_a_page_and_every_page_a_scheme():
    pages = {path.stem for path in scheme_pages.FOLDER.glob("*.md")} - {"index"}
    assert pages == {*schemes.names()}
    # Each is in the table of contents, too.
    listed = re.findall(r"^(\w+)$", (DOCS / "schemes/index.md").read_text(), re.M)
    assert sorted(listed) == sorted(schemes.names())


def test_what_a_page_calls_itself_is_found_in_the_results():
    """Or it would show fewer rows than there are, without a word."""
    found = {row[0] for result in COMMITTED for table in result.tables for row in table.rows}
    for name in schemes.names():
        assert set(scheme_pages.names_in_tables(name)[1:]) <= found, name


def test_a_page_shows_the_numbers_of_the_files():
    """Against the text of the file itself, not what is made of it."""
    shown = scheme_pages.numbers("fixup", COMMITTED)
    folder = ROOT / "results/fixup_fig3_depth-laptop"
    line = next(
        line for line in (folder / "table.txt").read_text().splitlines() if line.startswith("Fixup")
    )
    assert "| " + " | ".join(line.split()) + " |" in shown


def test_tables_are_taken_apart_whole():
    """No number of a committed table is lost on the way to its page."""
    shown = pages.results_page(COMMITTED)
    assert len(COMMITTED) >= 11
    for result in COMMITTED:
        section = shown[shown.index(f"(results-{result.name})=") :]
        section = section[: section.find("\n(results-", 1)].replace("\\", "")
        for number in re.findall(r"\d[\d.,]*", (result.folder / "table.txt").read_text()):
            assert number in section, (result.name, number)


def test_tables_with_and_without_a_header():
    (depth,) = results.parse_tables(
        "scheme   10  1,000\nFixup  95.0  93.9\nα = 1  95.8  diverged\n"
    )
    assert depth.header == ("scheme", "10", "1,000")
    assert depth.rows == (("Fixup", "95.0", "93.9"), ("α = 1", "95.8", "diverged"))
    (sweep,) = results.parse_tables("       batch  best\nFixup      8   2^1!\n! at the edge\n")
    assert (sweep.header, sweep.rows) == (("", "batch", "best"), (("Fixup", "8", "2^1!"),))
    assert sweep.notes == ("! at the edge",)
    (bench,) = results.parse_tables("wrn-16-1  step time  1.35 (1.3 to 1.4)\nwrn-16-4  b  2 (1)\n")
    assert bench.header == () and len(bench.rows) == 2
    first, second = results.parse_tables("a  1  2\nb  3  4\n\nc  1\nd  2\n")
    assert first.header == ("a", "1", "2") and second.rows == (("d", "2"),)


def test_every_committed_figure_is_in_the_gallery():
    shown = pages.gallery_page(COMMITTED)
    figures = sorted((ROOT / "results").rglob("*.svg"))
    assert figures
    for figure in figures:
        assert f"../../{figure.relative_to(ROOT).as_posix()}" in shown
    for result in COMMITTED:
        if result.figures:
            assert len(result.claim) > 80, f"{result.module} says no claim"
            assert f"`{result.scale}" in shown


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_code_is_python_and_takes_what_is_there(path):
    code = "\n".join(blocks(path, "python", "py"))
    ast.parse(code)
    assert missing_names(code) == []


def test_a_name_that_is_not_there_is_found():
    code = "from nf_resnets import init, nothing\ninit.fixup\ninit.fix_up(1)\n"
    assert missing_names(code) == ["nf_resnets.nothing", "init.fix_up"]


def test_the_reference_names_what_is_there():
    names = re.findall(r"^   (nf_resnets\.\S+)$", (DOCS / "reference.rst").read_text(), re.M)
    assert names
    for name in names:
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_commands_name_what_is_there(path):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    for command in [*lines, *re.findall(r"`(make \w+)`", path.read_text())]:
        words = shlex.split(command, comments=True)
        if words[:1] == ["make"]:
            assert words[1] in targets, command
        if "-m" in words:
            assert importlib.util.find_spec(words[words.index("-m") + 1]), command
        if words and words[0].startswith("experiments/"):
            assert (ROOT / words[0]).exists(), command


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_links_lead_to_pages(path):
    text = path.read_text()
    targets = re.findall(r"\{doc\}`(?:[^`<]*<)?([^`>]+)>?`", text)
    for block in re.findall(r"```\{toctree\}\n(.*?)```", text, re.S):
        targets += [line for line in block.splitlines() if line and not line.startswith(":")]
    api = {f"generated/notebooks/{source.stem}" for source in (ROOT / "notebooks").glob("*.ipynb")}
    for target in targets:
        start = DOCS if target.startswith("/") else path.parent
        place = (start / target.lstrip("/")).resolve().relative_to(DOCS).as_posix()
        known = place in api | {"generated/gallery", "generated/results"}
        assert known or any((DOCS / f"{place}{kind}").exists() for kind in (".md", ".rst")), target


def test_formulas_become_mathml_and_faults_are_told():
    pytest.importorskip("docutils", reason="docutils is not installed: make docs installs it")
    from docs.machinery.mathml import mathml

    for path in WRITTEN:
        text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", path.read_text(), flags=re.S | re.M)
        for block in re.findall(r"\$\$(.*?)\$\$", text, re.S):
            assert mathml(block, as_block=True).startswith("<math")
        for formula in re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.S)):
            assert mathml(formula, as_block=False).startswith("<math"), path
    assert "<msup>" in mathml("L^{-1/2}")
    with pytest.raises(ValueError, match="nothing"):
        mathml(r"\nothing")
