"""The networks of a sweep's runs, each in a file that ``nf-resnets predict`` opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from nf_resnets.sweep.grid import Sweep
from nf_resnets.sweep.rows import Rows
from nf_resnets.sweep.settings import FIELDS
from nf_resnets.trained.fit import trained_of
from nf_resnets.trained.settings import to_json
from nf_resnets.training import hosts
from nf_resnets.training.program import Program
from nf_resnets.training.run import Plan
from nf_resnets.training.tensorboard import run_name


class Networks:
    """Saves the networks of a sweep's finished runs in ``networks/``; a callback that prunes them.

    ``which`` is ``"all"``, or ``"best"`` for the one of the highest test accuracy among the runs
    that differ in rate and seed only. Several processes may share the folder: a network is removed
    only where there is the row of a better one.
    """

    def __init__(self, sweep: Sweep, folder: Path, which: Literal["best", "all"]) -> None:
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


__all__ = ["Networks"]
