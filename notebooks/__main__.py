"""`python -m notebooks [NAME ...]`: runs notebooks from their sources, and writes their .ipynb.

Needs the extra `nf_resnets[notebooks]`; all of them take some minutes on two cores.
"""

from __future__ import annotations

import base64
import io
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("[a-z]*.py")))
INSTALL = (FOLDER / "_install.py").read_text()
"""The first cell of code of all notebooks."""


def with_install(source: str) -> str:
    """A notebook's source with the cell that installs the package in place of its first one."""
    title, _, cells = source.partition("\n# %%\n")
    _, mark, others = cells.partition("\n# %%")
    return f"{title}\n# %%\n{INSTALL}{mark}{others}"


def execute(notebook: Any, folder: str | Path, timeout: int = 600) -> None:
    """Runs a notebook from the top, in a kernel of its own that begins in ``folder``.

    ``timeout`` is in seconds, for each cell.
    """
    import nbclient

    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=timeout, kernel_name="python3", resources=resources, record_timing=False
    ).execute()


def write(name: str, notebook: Any) -> Path:
    """Writes a notebook that was run beside its source, without what changes from run to run."""
    import jupytext

    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index}"
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            if "image/png" in data:
                # What a picture is called where it cannot be shown.
                data.pop("text/plain", None)
                data["image/png"] = smaller(data["image/png"])
    notebook.metadata["language_info"] = {"name": "python"}
    # The runtime that Colab and Kaggle begin with.
    notebook.metadata |= {"accelerator": "GPU", "kaggle": {"accelerator": "gpu"}}
    path = FOLDER / f"{name}.ipynb"
    path.write_text(jupytext.writes(notebook, fmt="ipynb") + "\n")
    return path


def smaller(picture: str) -> str:
    """The same PNG, as Base64, with the 256 colours that a plot gets by with."""
    from PIL import Image

    read, written = io.BytesIO(base64.b64decode(picture)), io.BytesIO()
    Image.open(read).convert("RGB").quantize(256).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main(names: list[str]) -> None:
    import jupytext

    for name in names or NAMES:
        start, source = time.monotonic(), FOLDER / f"{name}.py"
        source.write_text(with_install(source.read_text()))
        notebook = jupytext.read(source)
        with tempfile.TemporaryDirectory() as folder:
            execute(notebook, folder)
        path = write(name, notebook)
        seconds, size = time.monotonic() - start, path.stat().st_size
        print(f"{path}: {seconds:.0f} s, {size:,} bytes", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
