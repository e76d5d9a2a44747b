"""A worker of a sweep: claims runs from the ledger and trains them in the slots of programs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from nf_resnets import training
from nf_resnets.machine import device_name, versions
from nf_resnets.sweep.claims import Claims, Clock
from nf_resnets.sweep.ledger import Claim, Ledger, LedgerError, NewRun, this_worker
from nf_resnets.sweep.programs import Compiled, Execution, Programs
from nf_resnets.sweep.slots import FATAL, SHORTEST_PAUSE, Slots
from nf_resnets.sweep.task import Resolved, Task
from nf_resnets.training.callbacks import Callback
from nf_resnets.training.checkpoint import Checkpoints

LONGEST_PAUSE = 1.0
"""Seconds between two queries of a ledger in which no run waits, at most."""

MOST_WORKERS = 8
"""How many threads there are at most, unless ``Execution.workers`` says more."""

_SIGNAL_SECONDS = 0.05  # at most until the main thread handles a signal
_THREAD = "worker of a sweep"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of :func:`run_sweep`."""

    counts: dict[str, int]  # how many runs are in each state
    clock: Clock
    programs: dict[str, Compiled]  # those that this worker compiled, by name
    stopped: bool  # whether the worker was told to stop


def enter(runs: Sequence[Resolved], ledger: Ledger) -> int:
    """Enters runs into a ledger, in the order in which they are made; known runs stay as they are.

    Returns:
      How many are new.

    Example:
      >>> import tempfile
      >>> import numpy as np
      >>> from nf_resnets import data, sweep
      >>> images = np.arange(1280, dtype=np.uint8).reshape(20, 8, 8, 1)
      >>> grid = sweep.make_sweep(
      ...     {"peak_lr": (0.1, 0.2), "seed": (0, 1)}, {"model": "wrn-10-1", "batch_size": 8},
      ...     load=lambda name: data.from_arrays(images, np.arange(20) % 10))
      >>> ledger = sweep.open_ledger(Path(tempfile.mkdtemp(), "ledger.db"))
      >>> enter(grid.runs, ledger), len(grid.programs)
      (4, 1)
      >>> ledger.counts()["waiting"]
      4
      >>> ledger.close()
      >>> run_sweep(grid.task, grid.runs, ledger, folder, callback).counts  # doctest: +SKIP
    """
    start = sum(ledger.counts().values())
    new = (
        NewRun(each.text, each.program, position, json.dumps(dict(each.facts)))
        for position, each in enumerate(runs, start)
    )
    return ledger.add(list(new))


def run_sweep(
    task: Task,
    runs: Sequence[Resolved],
    ledger: Ledger | None,
    folder: Path,
    callback: Callback,
    *,
    stop: Callable[[], bool] = lambda: False,
    execution: Execution = Execution(),  # noqa: B008 (a frozen value)
    devices: Sequence[jax.Device] | None = None,
) -> Outcome:
    """Makes the runs that wait in the ledger, and waits for those that other workers hold.

    Args:
      task: describes the runs and builds their programs.
      runs: the runs to make; :func:`enter` has put them into the ledger.
      ledger: where results are kept; None on all processes but process 0.
      folder: for the checkpoints of unfinished runs.
      callback: is told what happens.
      stop: ``stop()`` is called between steps; once it is true, all runs are saved and released.
      execution: how the runs are made.
      devices: the devices to train on; by default all, of every process.

    Raises:
      ValueError: if the devices do not divide by ``execution.devices_per_run``, or a batch does not
        divide over so many.
      LedgerError: if the ledger is older than the checkpoints.
      Exception: any error that is not of a single run, such as a ledger that is gone.
    """
    if ledger is not None:
        refuse_older_ledger(runs, ledger, folder)
    devices = list(jax.devices() if devices is None else devices)
    mesh = sweep_mesh(devices, execution.devices_per_run or len(devices))
    for run in {run.program: run for run in runs}.values():
        task.check(run, mesh.shape[training.DATA])
    # No more slots than there are runs.
    most = max(1, -(-len(runs) // mesh.shape[training.SWEEP]))
    carried = dataclasses.replace(execution, runs_per_device=min(execution.runs_per_device, most))
    given_up = threading.Event()
    device = device_name()
    programs = Programs(task, mesh, callback, carried, ledger, device)
    claims = Claims(
        ledger, this_worker(device, versions()), task, frozenset(run.key for run in runs), programs,
        folder, callback, lambda: stop() or given_up.is_set(), execution,
    )  # fmt: skip
    threads = min(execution.workers or default_workers(devices), len(runs))
    with _heartbeat(claims, given_up):
        if jax.process_count() > 1 and threads <= 1:
            work(claims)  # all processes compile together, and leave together
        else:
            _work_in_threads(claims, threads, given_up)
    counts = claims.agree(lambda ledger: ledger.counts(claims.keys))
    return Outcome(counts, claims.clock, claims.programs.compiled, claims.must_stop())


def sweep_mesh(devices: Sequence[jax.Device], devices_per_run: int) -> jax.sharding.Mesh:
    """The mesh of a sweep, whose ``data`` axis has the devices of one run.

    Raises:
      ValueError: if ``devices_per_run`` does not divide the devices.
    """
    if devices_per_run < 1 or len(devices) % devices_per_run:
        raise ValueError(
            f"devices_per_run={devices_per_run} found; expected a divisor of the {len(devices)} "
            "devices."
        )
    return training.make_mesh(len(devices) // devices_per_run, devices_per_run, devices=devices)


def default_workers(devices: Sequence[jax.Device]) -> int:
    """How many threads train at a time: one a core on a CPU of one device, else one."""
    alone = len(devices) == 1 and devices[0].platform == "cpu"
    return min(os.cpu_count() or 1, MOST_WORKERS) if alone else 1


def refuse_older_ledger(runs: Sequence[Resolved], ledger: Ledger, folder: Path) -> None:
    """Refuses a ledger that lacks epochs of which there are checkpoints.

    The row of an epoch is written before the checkpoint that follows it. A checkpoint without its
    row means that the ledger was deleted, emptied or replaced; a resumed run would never write the
    missing rows.

    Raises:
      LedgerError: if it lacks one; the message names the run and the epoch.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    behind = {}
    for each in runs:
        place = folder / each.key[:20]
        steps = Checkpoints(place, {}).steps() if place.name in there else []
        steps = [step for step in steps if (place / f"step_{step}" / "manifest.json").is_file()]
        rows = {row["epoch"] for row in ledger.epochs(each.key)} if steps else set()
        made = max(steps, default=0) // each.steps_per_epoch
        if missing := sorted(set(range(1, made + 1)) - rows):
            behind[each.key] = f"epoch {missing[-1]} of the run {each.key}, saved in {place}"
    if behind:
        over = {r["key"] for r in ledger.rows(behind) if r["state"] in ("finished", "diverged")}
        behind = {key: words for key, words in behind.items() if key not in over}
    if behind:
        others = f" and epochs of {len(behind) - 1} other runs" if len(behind) > 1 else ""
        raise LedgerError(
            f"the ledger {ledger.name} lacks {next(iter(behind.values()))}{others}: it was "
            "deleted, emptied or replaced by an older one; put the newer one back, or move the "
            "checkpoints away to train these runs from the start"
        )


@contextlib.contextmanager
def _heartbeat(claims: Claims, given_up: threading.Event) -> Iterator[None]:
    """Renews the leases in a thread of its own until the block ends."""
    over = threading.Event()
    failures: list[BaseException] = []

    def beat() -> None:
        while not over.wait(claims.execution.lease_seconds / 4):
            try:
                claims.beat()
            except Exception as error:
                failures.append(error)
                given_up.set()
                return

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failures:
        raise failures[0]


def _work_in_threads(claims: Claims, count: int, given_up: threading.Event) -> None:
    """Calls :func:`work` in threads; at a stop, does not wait for those that compile."""
    failures: list[BaseException] = []

    def in_thread() -> None:
        try:
            work(claims)
        except BaseException as error:
            failures.append(error)
            given_up.set()  # the other threads save their runs and leave

    threads = [threading.Thread(target=in_thread, name=_THREAD, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        while at_work := [thread for thread in threads if thread.is_alive()]:
            # Python handles signals in this thread only. The system may deliver one to another
            # thread, which does not wake this one; so it wakes by itself.
            at_work[0].join(_SIGNAL_SECONDS)
            if claims.stop() and claims.leave([each for each in at_work if each.is_alive()]):
                break
    except BaseException:
        given_up.set()
        raise
    if failures:
        raise failures[0]


def is_at_work() -> bool:
    """Whether a thread is left that still compiles, since a compilation cannot be interrupted."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def work(claims: Claims) -> None:
    """Trains runs until none in the ledger waits or is being trained."""
    pause = SHORTEST_PAUSE
    with claims.clock.spent("working"):
        while not claims.must_stop():
            found = claims.claim(None, 1)
            if found:
                _work_on(claims, found)
                pause = SHORTEST_PAUSE
            elif not claims.agree(lambda ledger: _some_left(claims)):
                return
            else:
                # Other workers hold the rest. Each query of the ledger costs them time, too.
                with claims.clock.spent("idle"):
                    time.sleep(pause)
                pause = min(1.5 * pause, LONGEST_PAUSE)


def _some_left(claims: Claims) -> bool:
    """Whether a run waits or is being trained."""
    assert claims.ledger is not None
    counts = claims.ledger.counts(claims.keys)
    return bool(counts.get("waiting") or counts.get("running"))


def _work_on(claims: Claims, found: list[Claim]) -> None:
    """Trains these runs, then the others of their program."""
    try:
        resolved = claims.task.resolve(json.loads(found[0].settings))
        try:
            with claims.clock.spent("compiling"), claims.compile_for(found):
                program = claims.programs.get(resolved)
            if claims.holds(found[0]):  # not if the worker was told to stop meanwhile
                Slots(claims, program, resolved.program).train(found)
        finally:
            claims.programs.release(resolved.program)
    except Exception as error:
        if jax.process_count() > 1 or isinstance(error, FATAL):
            raise
        claims.record_failure(found, error)


__all__ = [
    "MOST_WORKERS", "Outcome", "default_workers", "enter", "is_at_work", "refuse_older_ledger",
    "run_sweep", "sweep_mesh", "work",
]  # fmt: skip
