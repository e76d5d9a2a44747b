"""Notebooks: paired with their sources cell by cell, shown with outputs, and run from the top."""

import ast
import fnmatch
import glob
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from notebooks.__main__ import FOLDER, INSTALL, NAMES, execute, with_install

ROOT = Path(__file__).parents[2]
LARGEST = 300_000  # bytes of a notebook with its pictures

# What the constants of the notebooks are in tests: everything runs, and nothing is learnt.
SMALL = {
    "carry_a_learning_rate": {
        "DEPTHS": (2, 4), "WIDTH": 4, "RATES": (0.001, 0.01), "SEEDS": (0,), "STEPS": 4,
    },
    "quickstart": {"BLOCKS": 1, "STEPS": 3, "EPOCHS": 0.2},
    "why_deep_residual_networks_train": {
        "LAYERS": 16, "CHANNELS": 4, "BATCH": 4, "DEPTHS": (10, 16),
    },
    "sweep_learning_rate_and_batch_size": {
        "GRID": {"scheme": ("skipinit",), "batch_size": (64, 128), "peak_lr": (0.1, 0.2)},
        "BASE": {"model": "wrn-10-1", "stem_channels": 4, "steps": 2},
    },
    "normalization_free_transformer": {
        "PAIRS": 400, "VOCABULARY": 200, "LAYERS": 1, "CHANNELS": 8, "STEPS": 2, "TOKENS": 256,
    },
}  # fmt: skip

every_notebook = pytest.mark.parametrize("name", NAMES)


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"]


def outputs(name):
    return [output for cell in cells(name) for output in cell.get("outputs", [])]


def with_values(notebook, values):
    """Gives other values to constants that a notebook assigns, each once."""
    replaced = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            lines = cell.source.splitlines()
            # From the last one on, so that the places of those before stay.
            for node in reversed(ast.parse(cell.source).body):
                names = [ast.unparse(target) for target in getattr(node, "targets", ())]
                if len(names) == 1 and names[0] in values:
                    line = f"{names[0]} = {values[names[0]]!r}"
                    lines[node.lineno - 1 : node.end_lineno] = [line]
                    replaced += names
            cell.source = "\n".join(lines)
    assert sorted(replaced) == sorted(values)
    return notebook


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
    for output in outputs(name):
        assert output["output_type"] != "error" and output.get("name") != "stderr"
    assert any("image/png" in output.get("data", {}) for output in outputs(name))
    assert (FOLDER / f"{name}.ipynb").stat().st_size < LARGEST
    # Nothing of the machine that they were made on.
    assert not re.search(r"/(tmp|home|root|work|Users)/", json.dumps(cells(name)))


@every_notebook
def test_it_begins_with_what_installs_it_on_colab(name):
    source = (FOLDER / f"{name}.py").read_text()
    assert with_install(source) == source


@pytest.fixture
def hosted(monkeypatch):
    """Runs the first cell on a host of notebooks; returns what it asks pip for."""

    def run(*files, installed=False, version=jax.__version__, address=""):
        asked = []
        monkeypatch.setitem(sys.modules, "google.colab", types.ModuleType("google.colab"))
        found = lambda pattern, **_: fnmatch.filter(files, pattern)  # noqa: E731
        monkeypatch.setattr(glob, "glob", found)
        spec = types.SimpleNamespace() if installed else None
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
        monkeypatch.setattr(subprocess, "run", lambda command, check: asked.append(command[-1]))
        real = importlib.metadata.version
        versions = {"jax": version}
        monkeypatch.setattr(
            importlib.metadata, "version", lambda name: versions.get(name) or real(name)
        )
        try:
            exec(INSTALL.replace('ADDRESS = ""', f"ADDRESS = {address!r}"), {})
        except (SystemExit, AssertionError) as error:
            return [*asked, str(error)]
        return asked

    return run


WHEEL = "nf_resnets-0.1.0-py3-none-any.whl"


def test_the_first_cell_installs_what_the_hardware_needs(hosted):
    for wheel in (WHEEL, f"drive/MyDrive/{WHEEL}"):
        assert hosted(wheel) == [f"{wheel}[experiments,translation]"]
    # The driver of a graphics card makes other devices, too.
    for devices, extra in ((["nvidia0", "accel0"], "cuda"), (["vfio/0"], "tpu")):
        wheel, sentence = hosted(WHEEL, *(f"/dev/{device}" for device in devices))
        assert wheel == f"{WHEEL}[{extra},experiments,translation]"
        # JAX sees none of these devices here.
        assert sentence.startswith("JAX uses the cpu, and there is a ")


def test_the_first_cell_says_what_is_missing_and_when_to_restart(hosted):
    assert hosted() == ["No nf_resnets-*.whl is here; upload one, or set ADDRESS."]
    address = "git+https://host/nf_resnets.git"
    assert hosted(address=address) == [f"nf_resnets[experiments,translation] @ {address}"]
    assert hosted(installed=True) == []
    restart = f"jax {jax.__version__} was imported before: restart, and run this again."
    assert hosted(WHEEL, version="99.0") == [f"{WHEEL}[experiments,translation]", restart]


@pytest.mark.slow
@every_notebook
def test_it_runs_from_the_top(name, tmp_path, monkeypatch):
    """With small values, in a kernel of its own; an error in a cell is an error here."""
    jupytext = pytest.importorskip("jupytext")
    pytest.importorskip("nbclient")
    if name == "normalization_free_transformer":
        pytest.importorskip("sentencepiece")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = with_values(jupytext.read(FOLDER / f"{name}.py"), SMALL[name])
    execute(notebook, tmp_path, timeout=900)
    shown = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in shown)
    assert list(tmp_path.iterdir()) == []
