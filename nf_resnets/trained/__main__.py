"""`python -m nf_resnets.trained`: train, show, predict with, fine-tune and export a network.

nf-resnets train --out digits.safetensors --samples digits
nf-resnets predict digits.safetensors digits/*.png
"""

from __future__ import annotations

import inspect

from nf_resnets.command_line import choose, program, read
from nf_resnets.trained import command


def run(prog: str = "") -> int:
    """Does what the command line says; its help calls it ``prog``. Returns the exit code."""
    prog = prog or program()
    about = {name: inspect.getdoc(of) or "" for name, of in command.COMMANDS.items()}
    name = choose(prog, {each: text.partition("\n\n")[0] for each, text in about.items()})
    return command.run(read(command.COMMANDS[name], f"{prog} {name}"))


__all__ = ["run"]

if __name__ == "__main__":
    raise SystemExit(run())
