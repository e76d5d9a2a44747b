"""`python -m notebooks [NAME ...]`: runs notebooks from their sources, and writes their .ipynb.

Needs the extra `nf_resnets[notebooks]`; all of them take some minutes on two cores.
"""

from __future__ import annotations

import ast
import base64
import copy
import io
import json
import sys
import tempfile
import time
from collections.abc import Mapping
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


def with_values(notebook: Any, values: Mapping[str, Any]) -> Any:
    """A notebook with other values of its constants, such as fewer steps for a test.

    Args:
      notebook: as nbformat reads it.
      values: by the names of what it assigns on the first level of a cell.

    Raises:
      ValueError: if it assigns no such name, or one twice.
    """
    notebook, found = copy.deepcopy(notebook), []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        lines = cell.source.splitlines()
        # From the last one on, so that the places of those before stay.
        for node in reversed(ast.parse(cell.source).body):
            names = [ast.unparse(target) for target in getattr(node, "targets", ())]
            if len(names) == 1 and names[0] in values:
                lines[node.lineno - 1 : node.end_lineno] = [f"{names[0]} = {values[names[0]]!r}"]
                found += names
        cell.source = "\n".join(lines)
    if sorted(found) != sorted(values):
        raise ValueError(f"the notebook assigns {sorted(found)}; expected {sorted(values)}, once.")
    return notebook


def executed(
    name: str, folder: str | Path, timeout: int = 600, values: Mapping[str, Any] | None = None
) -> Any:
    """Runs a notebook's source from the top, in a kernel of its own that begins in ``folder``.

    Args:
      name: of the notebook.
      folder: where its kernel begins.
      timeout: seconds for each cell.
      values: as :func:`with_values` takes them.
    """
    import jupytext
    import nbclient

    notebook = with_values(jupytext.read(FOLDER / f"{name}.py"), values or {})
    client = nbclient.NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    client.execute()
    return notebook


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
    text = jupytext.writes(notebook, fmt="ipynb")
    path.write_text(json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n")
    return path


def smaller(picture: str) -> str:
    """The same PNG, as Base64, with the 256 colours that a plot gets by with."""
    from PIL import Image

    read, written = io.BytesIO(base64.b64decode(picture)), io.BytesIO()
    Image.open(read).convert("RGB").quantize(256).save(written, "PNG", optimize=True)
    return base64.b64encode(written.getvalue()).decode()


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        known = ", ".join(NAMES)
        print(f"{unknown[0]!r} is no notebook; expected some of {known}.", file=sys.stderr)
        return 2
    for name in names or NAMES:
        start = time.monotonic()
        source = FOLDER / f"{name}.py"
        source.write_text(with_install(source.read_text()))
        with tempfile.TemporaryDirectory() as folder:
            path = write(name, executed(name, folder))
        seconds, size = time.monotonic() - start, path.stat().st_size
        print(f"{path}: {seconds:.0f} s, {size:,} bytes", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
