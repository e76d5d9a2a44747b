"""`nf-resnets COMMAND`, or `python -m nf_resnets COMMAND`: the commands of the library by name."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

COMMANDS = {
    "demo": "train networks of 10 to 1,000 layers, draw figure 3 of the Fixup paper",
    "experiment": "redraw a figure or a table of the papers, by name",
    "sweep": "train a grid of runs, and draw what came of it",
    "analyze": "write a page about how a network starts",
    "train": "train a network for images, and keep it in one file",
    "train-translator": "train a Transformer to translate, and keep it in one file",
    "predict": "say what a network sees in images, or translate sentences",
    "tune": "fine-tune a network on another data set",
    "export": "write a network as a StableHLO program",
    "from-torch": "keep a PyTorch checkpoint as a network of this library",
    "show": "say what a network's file holds",
}
PARTS = {"sweep": "sweep", "analyze": "analysis"}


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
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        lines = [f"  {each:<18}{about}" for each, about in COMMANDS.items()]
        print("usage: nf-resnets COMMAND [OPTIONS]", "", *lines, "", sep="\n")
        print("nf-resnets COMMAND --help shows a command's options.")
        return 0
    if name not in COMMANDS:
        return _refuse(f"nf-resnets {name}", COMMANDS)
    if name == "demo":
        return _experiment("fixup_fig3_depth", rest, "nf-resnets demo")
    if name == "experiment":
        chosen, *rest = rest or [""]
        if chosen in ("-h", "--help"):
            print("usage: nf-resnets experiment NAME [OPTIONS]", "", *experiments(), sep="\n  ")
            return 0
        typed = f"nf-resnets experiment {chosen}".rstrip()
        if chosen not in experiments():
            return _refuse(typed, experiments())
        return _experiment(chosen, rest, typed)
    if name in PARTS:
        sys.argv[1:] = rest
        return _command(PARTS[name])(f"nf-resnets {name}")
    # A trained network's commands are subcommands of one, which reads their names itself.
    return _command("trained")("nf-resnets")


def _command(part: str) -> Callable[[str], int]:
    return importlib.import_module(f"nf_resnets.{part}.__main__").run


def _experiment(name: str, options: Sequence[str], typed: str) -> int:
    sys.argv[1:] = options
    module: Any = importlib.import_module(experiments()[name])
    known = [module.EXPERIMENT] if hasattr(module, "EXPERIMENT") else []
    return module.run(*known, typed)


def _refuse(typed: str, expected: Iterable[str]) -> int:
    print(f"{typed} found; expected one of {', '.join(expected)}.", file=sys.stderr)
    return 2


__all__ = ["COMMANDS", "experiments", "main"]

if __name__ == "__main__":
    raise SystemExit(main())
