"""`nf-resnets COMMAND`, or `python -m nf_resnets COMMAND`: the commands of the library by name."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
import sys
from pathlib import Path
from typing import Any

from nf_resnets import __version__
from nf_resnets.command_line import choose, program

COMMANDS = {
    "demo": "train networks of 10 to 1,000 layers, draw Fixup's figure 3",
    "experiment": "redraw a figure or a table of the papers, by name",
    "sweep": "train a grid of runs, and draw what came of it",
    "find-lr": "find the learning rate of a network with short runs",
    "analyze": "write a page about how a network starts",
    "train": "train a network for images, and keep it in one file",
    "train-translator": "train a Transformer to translate, and keep it in one file",
    "predict": "say what a network sees in images, or translate sentences",
    "tune": "fine-tune a network on another data set",
    "export": "write a network as a StableHLO program",
    "from-torch": "keep a PyTorch checkpoint as a network of this library",
    "show": "say what a network's file holds",
}
PARTS = {
    "sweep": "sweep.__main__", "analyze": "analysis.__main__", "find-lr": "sweep.find_lr"
}  # fmt: skip


def experiments() -> dict[str, str]:
    """The experiments' modules by name: in this package where it is installed, else in a clone."""
    installed = importlib.util.find_spec("nf_resnets.experiments") is not None
    package = importlib.import_module("nf_resnets.experiments" if installed else "experiments")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    # The names of what they share have no underscore.
    return {name: f"{package.__name__}.{name}" for name in names if "_" in name}


def main() -> int:
    """Runs the command that the command line names; returns the exit code, where it does not exit.

    The commands are imported when they are called, and read their options from ``sys.argv``.
    """
    prog = program()
    if sys.argv[1:] == ["--version"]:
        print(__version__)
        return 0
    name = choose(prog, COMMANDS)
    if name == "demo":
        return _experiment("fixup_fig3_depth", f"{prog} demo", scale="demo")
    if name == "experiment":
        modules = experiments()
        titles = {each: _title(module) for each, module in modules.items()}
        chosen = choose(f"{prog} experiment", titles, "NAME")
        return _experiment(chosen, f"{prog} experiment {chosen}")
    if name in PARTS:
        return _module(f"nf_resnets.{PARTS[name]}").run(f"{prog} {name}")
    # A trained network's commands are those of one module, which reads their names itself.
    sys.argv.insert(1, name)
    return _module("nf_resnets.trained.__main__").run(prog)


def _experiment(name: str, prog: str, **changed: Any) -> int:
    module = _module(experiments()[name])
    known = [module.EXPERIMENT] if hasattr(module, "EXPERIMENT") else []
    return module.run(*known, prog, **changed)


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _title(module: str) -> str:
    """The first line of a module that is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8")))
    return (text or "").partition("\n\n")[0].replace("\n", " ").rstrip(".")


__all__ = ["COMMANDS", "experiments", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
