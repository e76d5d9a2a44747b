"""`nf-resnets sweep`: trains a grid of runs, keeps networks, and draws what came of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from nf_resnets.command_line import program
from nf_resnets.sweep import command, grid
from nf_resnets.sweep.options import Config, Options
from nf_resnets.sweep.results import finish
from nf_resnets.sweep.rows import Rows
from nf_resnets.sweep.settings import FIELDS, RunSettings, parse
from nf_resnets.trained.file import to_json
from nf_resnets.trained.fit import trained_of
from nf_resnets.training import hosts
from nf_resnets.training.program import Program
from nf_resnets.training.run import Plan
from nf_resnets.training.tensorboard import run_name

SweepOptions = Annotated[Options, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="sweep")]
RunOptions = Annotated[RunSettings, tyro.conf.OmitArgPrefixes, tyro.conf.arg(name="run")]


@dataclasses.dataclass(frozen=True)
class Sweep:
    """Train every combination of some settings, survive interruptions, and draw the results.

    Any setting of a run, listed below, can be an axis of the grid: NAME=VALUES with commas between
    the values. Ranges have both ends: 2^-8:2^2 is every power from the one to the other, 0:4 is 0,
    1, 2, 3, 4. Runs that differ only in numbers (peak_lr, momentum, weight_decay,
    scalar_factor, alpha, branch_scale, seed, clip_norm and adaptive_clip above 0, or schemes that
    compile alike) share one program.

    The best rate, and the range of rates as good, are reported for each batch size by test accuracy
    and by training loss, after De and Smith (NeurIPS 2020).
    """

    grid: tuple[str, ...] = ()
    """The axes, such as peak_lr=2^-8:2^2 batch_size=8,32,128,512 seed=0:4 scheme=fixup,skipinit."""
    config: Config = None
    keep: Literal["none", "best", "all"] = "none"
    """Which runs that finish from now on keep their networks, in the folder's networks/, for
    predict: best, the one of the highest test accuracy among those that differ in rate and seed
    only; all."""
    options: SweepOptions = Options()
    settings: RunOptions = RunSettings()

    def __call__(self) -> int:
        """Makes what is missing, prints the table, draws the figures; returns the exit code."""
        axes, base = parse(self.grid), command.base_of(self.settings)
        keep = None if self.keep == "none" else functools.partial(Networks, which=self.keep)
        result = command.run(self.options, axes, base, "Sweep", keep=keep)
        if result is None:
            return 0
        named = (name.replace("peak_lr", "learning rate").replace("_", " ") for name in axes)
        code = finish(result, self.options, title=f"Sweep of {', '.join(named)}")
        networks = sorted((self.options.out.expanduser() / "networks").glob("*.safetensors"))
        if keep is not None and networks:
            print(f"  networks/, {len(networks)} of them: {program()} predict {networks[0]}")
        return code


class Networks:
    """Saves the networks of a sweep's finished runs in ``networks/``; a callback that prunes them.

    ``"best"`` is that of the highest test accuracy among the runs that differ in rate and seed
    only. Several processes may share the folder: a network is removed only where there is the row
    of a better one.
    """

    def __init__(self, sweep: grid.Sweep, folder: Path, which: Literal["best", "all"]) -> None:
        self._task, self._folder, self._which = sweep.task, folder, which
        self._best: dict[tuple[Any, ...], tuple[float, str]] = {}
        for plan in sweep.firsts:
            to_json(sweep.task.parts(plan)[0])
        sweep.task.finish = self.save
        self.prune()

    def save(self, program: Program, plan: Plan, state: Any) -> Mapping[str, Any]:
        """Writes the network of a finished run; its row has nothing more for it."""
        if hosts.is_process_zero():
            path = self._folder / "networks" / f"{run_name(plan.key, plan.label)}.safetensors"
            dataset = self._task.dataset(plan.settings["dataset"])
            trained_of(program, plan, state, dataset, key=plan.key).save(path, overwrite=True)
        return {}

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """Removes the network of this run, or the one that was the best before."""
        if self._which == "all" or state != "finished":
            return
        group = tuple(result.get(n) for n in (*FIELDS, "data") if n not in ("peak_lr", "seed"))
        this = result["test_accuracy"], key
        worse, better = sorted((this, self._best.get(group, this)))
        self._best[group] = better
        if worse != better:
            for path in (self._folder / "networks").glob(f"*-{worse[1][:10]}.safetensors"):
                path.unlink(missing_ok=True)

    def prune(self) -> None:
        """Goes through the rows of all processes."""
        for key, row in Rows(self._folder).read().items():
            self.on_run_end(key, row["state"], row)
