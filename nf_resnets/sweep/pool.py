"""A worker: makes runs that the ledger lacks, alone or beside other workers on one ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax

from nf_resnets import training
from nf_resnets.sweep import worker
from nf_resnets.sweep.callback import Callback
from nf_resnets.sweep.claims import Claims, Clock, Execution, device_name, versions
from nf_resnets.sweep.ledger import Ledger, LedgerError, NewRun, this_worker
from nf_resnets.sweep.programs import Programs
from nf_resnets.sweep.task import Resolved, Task
from nf_resnets.training.checkpoint import Checkpoints
from nf_resnets.training.program import Program

MOST_WORKERS = 8

_SIGNAL_SECONDS = 0.05  # at most until the main thread sees a signal
_THREAD = "worker of a sweep"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a worker did.

    Attributes:
      counts: how many of the runs are in each state.
      clock: where the time went.
      programs: what was compiled, by name.
      stopped: whether it was told to stop before all was done.
    """

    counts: dict[str, int]
    clock: Clock
    programs: dict[str, Program]
    stopped: bool


def enter(runs: Sequence[Resolved], ledger: Ledger) -> int:
    """Puts runs into a ledger, to be made in this order; those that are there stay as they are.

    Returns:
      How many are new.
    """
    start = sum(ledger.counts().values())
    return ledger.add(
        [
            NewRun(each.text, each.program, start + position, json.dumps(dict(each.facts)))
            for position, each in enumerate(runs)
        ]
    )


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
    call_seconds: float = 1.0,
) -> Outcome:
    """Makes the runs that the ledger says are missing, and waits for those of other workers.

    Args:
      task: what the runs are.
      runs: those to make; they are in the ledger (:func:`enter`).
      ledger: where results are kept; None on all but process 0.
      folder: for the checkpoints of unfinished runs.
      callback: hears what happens.
      stop: is asked between calls; once it says so, all runs are saved and released.
      execution: how the runs are made.
      devices: where; by default on all, of every process.
      call_seconds: about so long is a call that makes steps.

    Raises:
      ValueError: if the devices do not divide by ``execution.devices_per_run``, or a batch does not
        divide over so many.
      LedgerError: if the ledger is older than the checkpoints.
      Exception: whatever kept the worker itself from working, such as a ledger that is gone.
    """
    if ledger is not None:
        refuse_older_ledger(runs, ledger, folder)
    devices = list(jax.devices() if devices is None else devices)
    mesh = sweep_mesh(devices, execution.devices_per_run or len(devices))
    for run in {run.program: run for run in runs}.values():
        task.check(run, mesh.shape[training.DATA])
    # No more slots than there are runs.
    most = max(1, -(-len(runs) // mesh.shape[training.SWEEP]))
    given_up = threading.Event()
    device = device_name()
    claims = Claims(
        ledger=ledger,
        worker=this_worker(device, versions()),
        task=task,
        keys=frozenset(run.key for run in runs),
        programs=Programs(
            task,
            mesh,
            callback,
            runs_per_device=min(execution.runs_per_device, most),
            vectorize=execution.vectorize,
            ledger=ledger,
            device=device,
        ),
        folder=folder,
        callback=callback,
        stop=lambda: stop() or given_up.is_set(),
        execution=execution,
        call_seconds=call_seconds,
    )
    threads = min(execution.workers or default_workers(devices), len(runs))
    with _heartbeat(claims, given_up):
        if jax.process_count() > 1 and threads <= 1:
            worker.work(claims)  # all processes compile together, and leave together
        else:
            _work_in_threads(claims, threads, given_up)
    counts = claims.agree(lambda ledger: ledger.counts(claims.keys))
    return Outcome(counts, claims.clock, claims.programs.built, claims.is_over())


def sweep_mesh(devices: Sequence[jax.Device], devices_per_run: int) -> jax.sharding.Mesh:
    """The mesh on which runs are spread, each over so many devices.

    Raises:
      ValueError: if the devices do not divide by that.
    """
    if devices_per_run < 1 or len(devices) % devices_per_run:
        raise ValueError(
            f"devices_per_run={devices_per_run} found; expected a divisor of the {len(devices)} "
            "devices."
        )
    return training.make_mesh(len(devices) // devices_per_run, devices_per_run, devices=devices)


def default_workers(devices: Sequence[jax.Device]) -> int:
    """How many programs are at work at a time: one a core on a CPU of one device, else one."""
    alone = len(devices) == 1 and devices[0].platform == "cpu"
    return min(os.cpu_count() or 1, MOST_WORKERS) if alone else 1


def refuse_older_ledger(runs: Sequence[Resolved], ledger: Ledger, folder: Path) -> None:
    """Refuses a ledger that knows less of runs than their checkpoints, which lie beside it.

    The row of an epoch is written before the checkpoint that follows it: where the checkpoint is
    there and the row is not, the ledger was deleted, emptied or replaced, and going on would leave
    its rows out for good.

    Args:
      runs: those to make; they are in the ledger.
      ledger: what is known.
      folder: of the checkpoints.

    Raises:
      LedgerError: it does; the sentence names a run and its epochs.
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


def _work_in_threads(claims: Claims, count: int, given_up: threading.Event) -> None:
    """Works in threads; once told to stop, waits for none that only compiles."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            worker.work(claims)
        except BaseException as error:
            failures.append(error)
            given_up.set()  # the other threads save their runs and leave

    threads = [threading.Thread(target=work, name=_THREAD, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        while at_work := [thread for thread in threads if thread.is_alive()]:
            # Python handles signals in this thread only, and the system may hand one to another
            # thread, which does not wake this one: it wakes by itself.
            at_work[0].join(_SIGNAL_SECONDS)
            if claims.stop() and claims.leave([each for each in at_work if each.is_alive()]):
                break
    except BaseException:
        given_up.set()
        raise
    if failures:
        raise failures[0]


def is_at_work() -> bool:
    """Whether a thread was left behind, as its compilation could not be ended."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


@contextlib.contextmanager
def _heartbeat(claims: Claims, given_up: threading.Event) -> Iterator[None]:
    """Renews the leases in a thread of its own for as long as the block lasts."""
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


__all__ = [
    "MOST_WORKERS", "Outcome", "default_workers", "enter", "is_at_work",
    "refuse_older_ledger", "run_sweep", "sweep_mesh",
]  # fmt: skip
