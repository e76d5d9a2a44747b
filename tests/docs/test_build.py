"""The documentation is built as `make docs` builds it; a dead link is an error to Sphinx."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("sphinx", "myst_nb", "furo"):
    pytest.importorskip(package, reason=f"{package} is not installed: make docs installs it")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "html"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-j", "auto",
               "-b", "html", "docs"]  # fmt: skip
    before = _status()
    done = subprocess.run(
        [*command, str(folder)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert _status() == before, "the build changed what git sees"
    return folder


def _status():
    command = ["git", "status", "--porcelain", "docs", "results"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_formulas_are_formulas(built):
    text = (built / "schemes/fixup.html").read_text()
    assert "<math" in text and "$" not in text[text.index("<h2>Equation") : text.index("<h2>Code")]
