"""`nf-resnets COMMAND`, or `python -m nf_resnets COMMAND`: the commands of the library by name."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import shutil
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nf_resnets import __version__
from nf_resnets.command_line import MISTAKE, program, read

COMMANDS = {
    "demo": "train networks of 10 to 1,000 layers, draw Fixup's figure 3",
    "experiment": "redraw a figure or a table of the papers, by name",
    "sweep": "train a grid of runs, and draw the results",
    "find-lr": "find the learning rate of a network with short runs",
    "analyze": "write a page about a network before training",
    "train": "train a network for images, and keep it in one file",
    "train-translator": "train a Transformer to translate, and keep it in one file",
    "predict": "name the classes of images, or translate sentences",
    "tune": "fine-tune a network on another data set",
    "export": "write a network as a StableHLO program",
    "from-torch": "keep a PyTorch checkpoint as a network of this library",
    "show": "print the contents of a network's file",
}


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
    name = _chosen(prog, "COMMAND", COMMANDS)
    if name == "demo":
        return _experiment("fixup_fig3_depth", f"{prog} demo", scale="demo")
    if name == "experiment":
        titles = {each: _title(module) for each, module in experiments().items()}
        name = _chosen(f"{prog} experiment", "NAME", titles)
        return _experiment(name, f"{prog} experiment {name}")
    from nf_resnets.sweep.command import end

    command = _command(name)
    return end(lambda: read(command, f"{prog} {name}")())


def _command(name: str) -> Any:
    """The dataclass of a command: some have a module of :mod:`nf_resnets.cli` for themselves."""
    own = name in ("sweep", "find-lr", "analyze")
    module = f"nf_resnets.cli.{name.replace('-', '_') if own else 'networks'}"
    return getattr(importlib.import_module(module), name.title().replace("-", ""))


def _chosen(prog: str, kind: str, names: Mapping[str, str]) -> str:
    """Takes a name out of ``sys.argv``; without one, prints the list of them and exits."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name in names:
        return name
    if name in ("-h", "--help"):
        print(f"usage: {prog} {kind} [OPTIONS]\n")
        width, indent = shutil.get_terminal_size().columns - 1, max(map(len, names)) + 4
        for each, about in names.items():
            line = f"  {each}".ljust(indent) + about
            print(textwrap.fill(line, width, subsequent_indent=" " * indent))
        print(f"\n{prog} {kind} --help shows its options.")
        raise SystemExit(0)
    print(f"{kind}={name!r} found; expected one of {', '.join(names)}.", file=sys.stderr)
    raise SystemExit(MISTAKE)


def _experiment(name: str, prog: str, **changed: Any) -> int:
    module: Any = importlib.import_module(experiments()[name])
    known = [module.EXPERIMENT] if hasattr(module, "EXPERIMENT") else []
    return int(module.run(*known, prog, **changed))


def _title(module: str) -> str:
    """The first sentence of the docstring of a module, which is not imported."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8").partition('"""')[2]
    return " ".join(text.partition('"""')[0].partition("\n\n")[0].split()).rstrip(".")


if __name__ == "__main__":
    raise SystemExit(main())
