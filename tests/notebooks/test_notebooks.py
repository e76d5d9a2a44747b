"""Notebooks: paired with their sources cell by cell, shown with outputs, and run from the top."""

import base64
import json
import re
from pathlib import Path

import pytest

from notebooks.__main__ import FOLDER, INSTALL, NAMES, executed, with_install

ROOT = Path(__file__).parents[2]
LARGEST = 300_000  # bytes of a notebook with its pictures

every_notebook = pytest.mark.parametrize("name", NAMES)


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]


def outputs(name):
    return [output for cell in cells(name) for output in cell.get("outputs", [])]


def test_all_notebooks_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == list(NAMES)
    assert {"quickstart", "normalization_free_transformer"} <= set(NAMES)


@every_notebook
def test_the_pair_has_the_same_cells(name):
    jupytext = pytest.importorskip("jupytext")
    source = jupytext.read(FOLDER / f"{name}.py")
    paired = jupytext.read(FOLDER / f"{name}.ipynb")
    assert [(c.cell_type, c.source) for c in source.cells] == [
        (c.cell_type, c.source) for c in paired.cells
    ]


@every_notebook
def test_outputs_are_there_whole_and_small(name):
    """Each code cell was executed in order, without error or warning, and there is a picture."""
    code = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = [output["output_type"] for output in outputs(name)]
    assert "error" not in kinds
    assert not any(output.get("name") == "stderr" for output in outputs(name))
    pictures = [
        base64.b64decode(output["data"]["image/png"])
        for output in outputs(name)
        if "image/png" in output.get("data", {})
    ]
    assert pictures and all(data.startswith(b"\x89PNG") for data in pictures)
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST
    # Nothing of the machine that they were made on.
    assert not re.search(r"/(tmp|home|root|work|Users)/", json.dumps(cells(name)))


@every_notebook
def test_it_begins_with_what_is_learnt_and_installs_itself_on_colab(name):
    first, install = cells(name)[:2]
    assert first["cell_type"] == "markdown" and first["source"][0].startswith("# ")
    assert "learn" in "".join(first["source"]) or "measure" in "".join(first["source"])
    assert "".join(install["source"]) == INSTALL.rstrip("\n")
    source = (FOLDER / f"{name}.py").read_text()
    assert with_install(source) == source


@pytest.mark.slow
@every_notebook
def test_it_runs_from_the_top(name, tmp_path, monkeypatch):
    """With smoke parameters, in a kernel of its own; an error in a cell is an error here."""
    pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    if name == "normalization_free_transformer":
        pytest.importorskip("sentencepiece")
    monkeypatch.setenv("NF_RESNETS_SMOKE", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = executed(name, tmp_path, timeout=280)
    shown = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert list(tmp_path.iterdir()) == []
