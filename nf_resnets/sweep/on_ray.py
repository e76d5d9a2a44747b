"""The shards of a sweep as tasks of Ray, which tries a task again if its worker or node dies.

A task goes on from the checkpoints and rows in the sweep's folder, which all nodes must share.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from nf_resnets import data
from nf_resnets.sweep import engine
from nf_resnets.sweep.engine import Outcome
from nf_resnets.sweep.grid import Sweep, make_sweep
from nf_resnets.sweep.options import Options
from nf_resnets.sweep.rows import Rows
from nf_resnets.training.callbacks import Callback

MOST_RETRIES = 20
"""How often a task is tried again."""

PAUSE = 0.5
"""Seconds between two looks at the tasks, and for so many times of a look at the rows."""

Submit = Callable[..., "Future[Any]"]
"""``submit(function, *arguments)``, as executors of ``concurrent.futures`` have it."""


def submitter(address: str) -> Submit:
    """Joins a Ray cluster, and returns what submits a function to it: on one GPU where it has some.

    The address ``auto`` is that of the cluster to which this machine belongs.
    """
    import ray

    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False)
    gpus = min(1, int(ray.cluster_resources().get("GPU", 0)))

    def submit(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        # The rows may still be held by a worker that is about to end: that is an OSError.
        task = ray.remote(function).options(
            num_cpus=1, num_gpus=gpus, max_retries=MOST_RETRIES, retry_exceptions=[OSError]
        )
        return task.remote(*arguments).future()

    return submit


def slots() -> int:
    """How many tasks a cluster of Ray runs at a time: its GPUs, or its cores."""
    import ray

    resources = ray.cluster_resources()
    return int(resources.get("GPU", 0) or resources.get("CPU", 0)) or 1


def make_shard(options: Options, axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]) -> int:
    """Makes the missing runs of a shard of a sweep, and returns how many it has of its own.

    Nothing is printed or drawn; ``options`` says which shard, and where.
    """
    sweep = make_sweep(axes, base, load=lambda name: data.load(name, options.data_dir))
    with Rows(options.out, options.shard).open() as rows:
        if options.retry:
            rows.retry()
        return len(engine.make(sweep.task, sweep.plans, rows, execution=options.execution).rows)


def make(
    options: Options, sweep: Sweep, submit: Submit, count: int, callback: Callback,
    stop: Callable[[], bool],
) -> Outcome:  # fmt: skip
    """Makes a sweep's missing runs as shards that an executor runs elsewhere.

    There are ``count`` of them, unless the folder has some already. ``callback`` hears of the runs
    that have ended; if ``stop()``, the tasks that have begun are told to stop where they can be.
    """
    names = [re.search(r"-of-(\d+)$", path.stem) for path in options.out.glob("rows-*.jsonl")]
    count = next((int(match[1]) for match in names if match), count)
    how = dataclasses.replace(options.execution, workers=options.execution.workers or 1)
    shards = [
        dataclasses.replace(options, shard=(index, count), execution=how) for index in range(count)
    ]
    futures = [submit(make_shard, shard, sweep.axes, sweep.base) for shard in shards]
    rows, looked = Rows(options.out), 0.0
    over = set(rows.keys())
    while True:
        is_over = all(future.done() for future in futures)
        if is_over or time.monotonic() > looked:
            begun = time.monotonic()
            there = rows.read()
            looked = begun + max(PAUSE, 20 * (time.monotonic() - begun))
            for plan in sweep.plans:
                if plan.key in there and plan.key not in over:
                    over.add(plan.key)
                    row = there[plan.key]
                    callback.on_run_end(plan.key, row["state"], row)
        if is_over or stop():
            break
        time.sleep(PAUSE / 10)
    for future in futures:
        if future.done():
            future.result()
        else:
            future.cancel()
    made = {plan.key: there[plan.key] for plan in sweep.plans if plan.key in there}
    return Outcome(made, not is_over, len(sweep.programs))
