"""The options of the commands that make a sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shown
from typing import Annotated, Any

import tyro

from nf_resnets.sweep.engine import Execution
from nf_resnets.sweep.rows import check_shard
from nf_resnets.sweep.select import METRICS
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

DataDir = Annotated[
    str | None,
    tyro.conf.arg(
        help="Where tensorflow-datasets keeps its data, or CIFAR's binary files lie; by default "
        "where tensorflow-datasets looks. Digits need none."
    ),
]


@dataclasses.dataclass(frozen=True)
class Logs:
    """Where else runs are logged."""

    tensorboard: bool = False
    """Write TensorBoard logs into tensorboard/ in the folder of the results."""
    wandb: bool = False
    """Log with Weights & Biases into wandb/ in the folder of the results: offline, unless
    WANDB_MODE is online."""

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[list[Any]]:
        """The callbacks that write the logs into a folder."""
        with contextlib.ExitStack() as stack:
            logs: list[Any] = []
            if self.tensorboard:
                logs.append(stack.enter_context(TensorBoard(folder / "tensorboard")))
            if self.wandb:
                logs.append(stack.enter_context(WandB(folder)))
            yield logs


@dataclasses.dataclass(frozen=True)
class Processes:
    """Several processes that work as one."""

    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes work as one; on a Cloud TPU leave it out."""
    num_processes: int | None = None
    """How many processes there are."""
    process_id: int | None = None
    """The index of this process, from 0."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How a sweep is made; nothing of it changes a run's numbers."""

    out: Path = Path("runs/sweep")
    """The sweep's folder: rows, checkpoints of unfinished runs, compiled programs, report. Started
    again with the same folder, the command makes only what is missing."""
    shard: tuple[int, int] = (0, 1)
    """Which of how many parts of the sweep this command makes: I N takes every N-th wave of runs,
    from the I-th on, counted from 0. Several machines share a folder so, such as the tasks of a
    Slurm array; each draws what all have made."""
    ray: str | None = None
    """Make the runs as tasks on a cluster of Ray: its address, or auto. All nodes must share the
    folder. Where a worker or a node dies, its task goes on elsewhere."""
    dry_run: bool = False
    """Print the grid, the programs and, once a run of each has finished, how long the others will
    take; make nothing."""
    topology: str | None = None
    """With --dry-run: compile every program for this TPU slice, such as v5e:4x4, on this machine,
    which needs none, and print what it needs of the chips and the least time it can take."""
    target: str = ""
    """A metric and its value, such as train_loss=0.5 or test_accuracy=0.9, to which the steps are
    counted at each batch size."""
    retry: bool = False
    """Try runs again that failed or ran out of memory."""
    data_dir: DataDir = None
    logs: Logs = Logs()
    execution: Execution = Execution()
    processes: Processes = Processes()


def check(options: Options) -> None:
    """Refuses options that are out of their range."""
    parse_target(options.target)
    options.execution.check()
    check_shard(options.shard)
    if options.shard[1] > 1 and options.ray:
        raise ValueError("--ray found with --shard; expected one of the two.")
    if options.topology and not options.dry_run:
        raise ValueError(
            f"--topology {options.topology} found without --dry-run; expected both, since programs "
            "for that slice are compiled here and cannot run here."
        )


def parse_target(text: str) -> tuple[str, float] | None:
    """The metric of ``--target`` and its value; None without one."""
    if not text:
        return None
    metric, _, number = text.partition("=")
    with contextlib.suppress(ValueError):
        if metric in METRICS and math.isfinite(float(number)):
            return metric, float(number)
    raise ValueError(
        f"--target {shown(text)} found; expected METRIC=NUMBER with one of {', '.join(METRICS)}."
    )
