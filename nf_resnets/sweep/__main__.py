"""`python -m nf_resnets.sweep`: trains a grid of runs, and draws what came of it.

python -m nf_resnets.sweep --grid peak_lr=2^-8:2^2 batch_size=8,32,128,512 seed=0:5 \
        scheme=fixup,skipinit --model wrn-16-1 --epochs 10 --out runs/mine
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any, NoReturn

import tyro

from nf_resnets import command_line
from nf_resnets.sweep import command
from nf_resnets.sweep.export import export, salvage
from nf_resnets.sweep.ledger import LedgerError, open_ledger
from nf_resnets.sweep.options import Options, placed
from nf_resnets.sweep.results import finish
from nf_resnets.sweep.schema import redacted
from nf_resnets.sweep.settings import RunSettings, parse


@dataclasses.dataclass(frozen=True)
class Command:
    """Train every combination of some settings, survive interruptions, and draw the results.

    Any setting of a run, listed below, can be an axis of the grid: NAME=VALUES with commas between
    the values. 2^-8:2^2 is every power from the one to the other, both included; 0:5 is 0, 1, 2, 3,
    4, as in Python. Runs that differ only in numbers (peak_lr, momentum, weight_decay,
    scalar_factor, alpha, branch_scale, seed, or schemes that compile alike) share one program.

    The best rate, and the range of rates as good, are reported for each batch size by test accuracy
    and by training loss, after De and Smith (NeurIPS 2020).
    """

    grid: tuple[str, ...] = ()
    """The axes, such as peak_lr=2^-8:2^2 batch_size=8,32,128,512 seed=0:5 scheme=fixup,skipinit."""
    options: Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="sweep")] = (
        dataclasses.field(default_factory=Options)
    )
    settings: Annotated[RunSettings, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")] = (
        dataclasses.field(default_factory=RunSettings)
    )
    export: tuple[str, ...] = ()
    """Write the ledger of --out or --ledger to these files and do nothing else: .csv, .parquet, or
    .db or the URL of a storage for an Optuna study, which optuna-dashboard opens."""
    salvage: Path | None = None
    """Copy all that is whole of the damaged ledger of --out or --ledger into this new one, say what
    is left out, and do nothing else."""


def main(wanted: Command) -> int:
    """Makes what is missing, prints the table, draws the figures; returns the exit code."""
    if wanted.export or wanted.salvage:
        return _copy(wanted)
    try:
        axes = parse(wanted.grid)
    except ValueError as error:
        raise SystemExit(f"--grid: {error}") from None
    base = command.base_of(wanted.settings, axes)
    result = command.run(wanted.options, axes, base, "Sweep")
    if result is None:
        return 0
    named = (name.replace("peak_lr", "learning rate").replace("_", " ") for name in axes)
    return finish(result, wanted.options, title=f"Sweep of {', '.join(named)}")


def _copy(wanted: Command) -> int:
    try:
        options = placed(wanted.options)
        where: Any = options.ledger or options.out / "ledger.db"
        if wanted.salvage:
            copied, left = salvage(where, wanted.salvage)
            print(f"{copied:,} runs: {redacted(str(wanted.salvage))}")
            for line in left:
                print(f"left out: {redacted(line)}")
        if wanted.export:
            with open_ledger(where, create=False) as ledger:
                for path in wanted.export:
                    print(f"{export(ledger, path):,} runs: {redacted(path)}")
    except (LedgerError, OSError, ValueError, ImportError) as error:
        raise SystemExit(redacted(str(error))) from None
    return 0


def run(prog: str = "") -> NoReturn:
    """Does what the command line says, and exits; its help calls it ``prog``."""
    command.end(lambda: main(command_line.read(Command, prog)))


__all__ = ["Command", "main", "run"]

if __name__ == "__main__":
    run()
