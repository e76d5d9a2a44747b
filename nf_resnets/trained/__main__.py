"""`python -m nf_resnets.trained`: train, show, predict with, fine-tune and export a network.

python -m nf_resnets.trained train --out digits.safetensors --samples digits
python -m nf_resnets.trained predict digits.safetensors digits/*.png
"""

from __future__ import annotations

import tyro

from nf_resnets.trained import command


def run(prog: str = "python -m nf_resnets.trained") -> int:
    """Does what the command line says; its help calls it ``prog``. Returns the exit code."""
    parsed = tyro.cli(
        command.Command,  # type: ignore[arg-type]
        prog=prog,
        description="Make and use a trained network, kept in one safetensors file.",
    )
    return command.run(parsed)


__all__ = ["run"]

if __name__ == "__main__":
    raise SystemExit(run())
