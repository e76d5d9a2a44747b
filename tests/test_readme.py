"""The README and the pages that it links to are true: links, code, commands, numbers."""

import dataclasses
import json
import re
import warnings
from pathlib import Path

import pytest

from benchmarks.__main__ import targets
from benchmarks.timing import Ratio, Row
from tests.test_main import run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
PAGES = ("README.md", *(
    f"docs/{name}.md"
    for name in ("results", "speed", "limits", "overview", "notebooks", "how_to/sweep",
                 "how_to/analyse", "schemes/index")
))  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links or "results/" not in text
    for link in links:
        assert link.startswith("http") or ((ROOT / page).parent / link).exists(), link


def test_the_results_tables_are_those_of_the_files():
    text = "".join((ROOT / page).read_text() for page in PAGES)
    found = re.findall(
        r"<!-- (results/\S+/table.txt) -->\n```\n(.*?)\n```\n<!-- end -->", text, re.S
    )
    assert len(found) >= 8
    for file, text in found:
        assert text.strip() == (ROOT / file).read_text().strip(), file


def options():
    """The options that README and pages show, by the ``nf-resnets`` command they are shown with."""
    pages = [
        path
        for path in (ROOT / "docs").rglob("*.md")
        if not {"generated", "_build"} & {*path.parts}
    ]
    text = "\n".join([TEXT, *(path.read_text() for path in pages)]).replace("\\\n", " ")
    found = {}
    for line in re.findall(r"(?:^|`)nf-resnets ([^`\n]+)", text, re.M):
        words = line.partition("#")[0].split()
        name = tuple(words[:2] if words[0] == "experiment" else words[:1])
        found.setdefault(name, set()).update(word for word in words if word.startswith("--"))
    return {name: shown for name, shown in found.items() if "NAME" not in name}


def test_the_commands_of_the_shell_examples_are_there(monkeypatch, capsys):
    assert len(options()) >= 12 and "--topology" in options()[("sweep",)]
    for name, shown in options().items():
        assert run(monkeypatch, *name, "--help") == 0
        said = capsys.readouterr().out
        for option in shown - {"--help"}:
            assert re.search(rf"{option}\b", said), (name, option)


@pytest.mark.parametrize(
    "folder", [path.parent.name for path in (ROOT / "results").glob("bench*/table.txt")]
)
def test_the_table_of_the_benchmarks_is_that_of_its_rows(folder):
    kept = json.loads((ROOT / f"results/{folder}/bench.json").read_text())
    rows = []
    for row in kept["rows"]:
        row["ratio"] = Ratio(**row["ratio"])
        rows.append(Row(*(row[field.name] for field in dataclasses.fields(Row))))
        assert rows[-1].held is row["held"]
    assert targets(rows).strip() == (ROOT / f"results/{folder}/table.txt").read_text().strip()


def test_the_examples_run_as_pasted(capsys):
    first, second = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(first, {})
    # Fixup's head is zero, and 0 @ x is 0 exactly.
    assert capsys.readouterr().out == "3 branches, logits (8, 10) all 0.0\n"
    names = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(second, names)
    assert "3 residual branches, each of 2 layers" in capsys.readouterr().out
    assert not names["params"]["head"].any() and names["params"]["stem"].any()
