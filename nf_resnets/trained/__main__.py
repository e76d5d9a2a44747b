"""`python -m nf_resnets.trained`: train, show, predict with, fine-tune and export a network.

nf-resnets train --out digits.safetensors --samples digits
nf-resnets predict digits.safetensors digits/*.png
"""

from __future__ import annotations

import inspect
import sys

from nf_resnets.command_line import MISTAKE, choose, program, read
from nf_resnets.sweep.config import with_config
from nf_resnets.trained import command


def run(prog: str = "") -> int:
    """Does what the command line says; its help calls it ``prog``. Returns the exit code."""
    prog = prog or program()
    about = {name: inspect.getdoc(of) or "" for name, of in command.COMMANDS.items()}
    name = choose(prog, {each: text.partition("\n\n")[0] for each, text in about.items()})
    of, default = command.COMMANDS[name], None
    if of is command.Train:
        try:
            default = with_config(of(), sys.argv[1:])
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return MISTAKE
    return command.run(read(of, f"{prog} {name}", default=default))


__all__ = ["run"]

if __name__ == "__main__":
    raise SystemExit(run())
