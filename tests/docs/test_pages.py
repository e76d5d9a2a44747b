"""The documentation's pages without Sphinx: no scheme lacks one, and their code can run."""

import ast
import functools
import importlib
import importlib.util
import pkgutil
import re
import shlex
from pathlib import Path

import pytest

import nf_resnets
from docs.machinery import pages, results
from nf_resnets import schemes
from nf_resnets.trained.torch_layouts import LAYOUTS

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


def test_names_in_the_text_of_pages_are_there():
    parts, missing = "|".join(nf_resnets.__all__), set()
    for path in set(WRITTEN) - {DOCS / "upgrade.md"}:  # which names what is gone
        for name in re.findall(rf"`((?:{parts})(?:\.[A-Za-z]\w*)+)", path.read_text()):
            try:
                functools.reduce(getattr, name.split("."), nf_resnets)
            except AttributeError:
                missing.add((path.name, name))
    assert not missing


def test_every_scheme_has_a_page_and_every_page_a_scheme():
    found = {path.stem for path in pages.SCHEMES.glob("*.md")} - {"index"}
    assert found == {*schemes.names()}
    # Each is in the table of contents, too.
    listed = re.findall(r"^(\w+)$", (DOCS / "schemes/index.md").read_text(), re.M)
    assert sorted(listed) == sorted(schemes.names())


def test_a_page_shows_the_numbers_of_the_files():
    """Against the text of the file itself, not what is made of it."""
    shown = pages.scheme_numbers("fixup", COMMITTED)
    folder = ROOT / "results/fixup_fig3_depth-laptop"
    line = next(
        line for line in (folder / "table.txt").read_text().splitlines() if line.startswith("Fixup")
    )
    assert f"\n{line}\n" in shown


def test_a_page_has_the_rows_of_its_scheme_under_all_of_its_names():
    cells = {
        "T-Fixup, no LayerNorm": "t_fixup", "DyT instead of LayerNorm": "dyt",
        "LayerNorm": "layernorm_post", "LayerNorm before each branch": "layernorm_pre",
        "GroupNorm + mixup": "groupnorm", "BatchNorm, block × ½": "batchnorm_sqrt_half",
    }  # fmt: skip
    for cell, name in cells.items():
        assert pages.schemes_of(cell) == {name}
        assert f"{cell}  " in pages.scheme_numbers(name, COMMITTED)


def test_the_page_on_checkpoints_has_every_layout():
    text = (DOCS / "how_to/from_torch.md").read_text()
    for one in LAYOUTS.values():
        line = rf"^\| `{one.name}` \|.*\| `{one.network.__name__}\(.*\)` \| `{one.scheme}` \|$"
        assert re.search(line, text, re.M), one.name


@pytest.mark.parametrize("path", WRITTEN, ids=IDS)
def test_code_is_python_and_takes_what_is_there(path):
    code = "\n".join(blocks(path, "python", "py"))
    ast.parse(code)
    assert missing_names(code) == []


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
