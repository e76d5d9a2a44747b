"""A driver: makes the runs of a grid that are missing, alone or beside others on one ledger."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import os
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from nf_resnets import data, schemes, training
from nf_resnets.sweep import grid, lane
from nf_resnets.sweep.clock import Clock
from nf_resnets.sweep.crew import Crew, device_name, versions
from nf_resnets.sweep.ledger import Ledger, NewRun, this_driver
from nf_resnets.sweep.program import Plan, Program, Programs, plan
from nf_resnets.sweep.settings import RunSettings, canonical, key
from nf_resnets.sweep.together import runs_per_device
from nf_resnets.sweep.watch import Watch

MOST_LANES = 8

_LOOKS_UP = 0.05  # seconds at most until the main thread sees a signal


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data.

    Attributes:
      axes: of each swept setting its values.
      plans: one for each point, those of one program together, in the order of the grid otherwise.
      dataset: ``dataset(name)`` loads a data set.
    """

    axes: Mapping[str, tuple[Any, ...]]
    plans: tuple[Plan, ...]
    dataset: Callable[[str], data.Dataset]

    @property
    def keys(self) -> frozenset[str]:
        """The keys of its runs."""
        return frozenset(key(each.settings) for each in self.plans)

    @property
    def programs(self) -> dict[str, list[Plan]]:
        """The plans of each program."""
        found: dict[str, list[Plan]] = {}
        for each in self.plans:
            found.setdefault(each.program, []).append(each)
        return found


def make_sweep(
    axes: Mapping[str, Sequence[Any]],
    base: Mapping[str, Any] | None = None,
    *,
    load: Callable[[str], data.Dataset] = data.load,
) -> Sweep:
    """Checks a grid, before anything starts.

    Args:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      load: ``load(name)`` gives a data set.

    Raises:
      ValueError: if a value is not in order, or does not fit the network or the data; the sentence
        names the field and the value.
      OSError, ImportError: if a data set cannot be read.
    """
    dataset = functools.cache(load)
    points = grid.points(axes, base)
    plans = [plan(settings, dataset(settings.dataset)) for settings in points]
    for name in ("alpha", "dropout"):
        _refuse_without_effect(name, points)
    order: dict[str, int] = {}
    for each in plans:
        order.setdefault(each.program, len(order))
    plans.sort(key=lambda each: order[each.program])
    return Sweep({name: tuple(values) for name, values in axes.items()}, tuple(plans), dataset)


def _refuse_without_effect(name: str, points: Sequence[RunSettings]) -> None:
    """Refuses a setting that no scheme of the grid reads: its values would all be one run."""
    given = [point for point in points if getattr(point, name) is not None]
    if given and not any(getattr(schemes.get(p.scheme).anatomy, name) for p in given):
        raise ValueError(
            f"{name}={getattr(given[0], name):g} found, but scheme={given[0].scheme!r} has no "
            f"{name}, nor has another scheme of the grid; expected none."
        )


def enter(sweep: Sweep, ledger: Ledger) -> int:
    """Puts the runs of a grid into a ledger; those that are there stay as they are.

    Returns:
      How many are new.

    Raises:
      ValueError: if the ledger holds runs of other settings in a field that is no axis of the grid:
        a slip, for which the sentence names the field and both values.
    """
    refuse_other_settings(sweep, ledger)
    start = len(ledger.settings())
    return ledger.add(
        [
            NewRun(
                key(each.settings),
                canonical(each.settings),
                each.program,
                start + position,
                each.resolved(),
            )
            for position, each in enumerate(sweep.plans)
        ]
    )


def refuse_other_settings(sweep: Sweep, ledger: Ledger) -> None:
    """Refuses a grid whose fixed settings are not those of the runs in the ledger."""
    there: dict[str, set[Any]] = {}
    for text in ledger.settings():
        for name, value in json.loads(text).items():
            there.setdefault(name, set()).add(value)
    if not there:
        return
    first = sweep.plans[0].settings
    now = json.loads(canonical(first))
    if "scheme" in sweep.axes and first.scalar_factor == schemes.get(first.scheme).scalar_factor:
        del now["scalar_factor"]  # each scheme has its own
    changed = [
        f"{name}: {', '.join(map(repr, sorted(there[name], key=str)))} there, {value!r} now"
        for name, value in now.items()
        if name not in sweep.axes and value not in there.get(name, {value})
    ]
    if changed:
        raise ValueError(
            f"the ledger {ledger.name} holds runs of other settings ({'; '.join(changed)}); make "
            "them axes of the grid to compare them, or choose another folder."
        )


def without(sweep: Sweep, keys: Collection[str]) -> Sweep:
    """The grid without some of its runs."""
    left = tuple(each for each in sweep.plans if key(each.settings) not in keys)
    return dataclasses.replace(sweep, plans=left)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a driver did.

    Attributes:
      counts: how many runs of the grid are in each state.
      clock: where the time went.
      programs: what was compiled.
      stopped: whether it was told to stop before all was done.
    """

    counts: dict[str, int]
    clock: Clock
    programs: tuple[Program, ...]
    stopped: bool


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


def default_lanes(devices: Sequence[jax.Device]) -> int:
    """How many programs are at work at a time: one a core on a CPU of one device, else one."""
    alone = len(devices) == 1 and devices[0].platform == "cpu"
    return min(os.cpu_count() or 1, MOST_LANES) if alone else 1


def refuse_indivisible(plan: Plan, devices_per_run: int) -> None:
    """Refuses a run whose batch does not divide over its devices.

    Raises:
      ValueError: that says which number does not.
    """
    settings, parts = plan.settings, devices_per_run * plan.micro_batches
    if settings.batch_size % parts:
        raise ValueError(
            f"batch_size={settings.batch_size} does not divide evenly into {plan.micro_batches} "
            f"micro-batches on each of devices_per_run={devices_per_run} devices."
        )
    if schemes.get(settings.scheme).anatomy.norm == "batch" and plan.bn_groups % parts:
        raise ValueError(
            f"ghost_batch={settings.ghost_batch} found, {plan.bn_groups} in a batch of "
            f"{settings.batch_size}; expected a multiple of {parts}, some for each of "
            f"devices_per_run={devices_per_run} devices."
        )


def drive(
    sweep: Sweep,
    ledger: Ledger | None,
    folder: Path,
    watch: Watch,
    *,
    stop: Callable[[], bool] = lambda: False,
    lanes: int = 0,
    devices_per_run: int = 1,
    runs_on_a_device: int = 0,
    together: Literal["auto", "vmap", "loop"] = "auto",
    lease_seconds: float = 60.0,
    max_attempts: int = 3,
    checkpoint_epochs: int = 1,
    checkpoint_share: float = 1.0,
    chunk_seconds: float = 2.0,
    devices: Sequence[jax.Device] | None = None,
) -> Outcome:
    """Makes the runs of a grid that the ledger says are missing, and waits for those of others.

    Args:
      sweep: the grid; its runs are in the ledger (:func:`enter`).
      ledger: where results are kept; None on all but the leading one of several processes.
      folder: for the checkpoints of unfinished runs.
      watch: is told what happens.
      stop: is asked between steps; once it says so, all runs are saved and released.
      lanes: how many programs are at work at a time, each in a thread; 0 for as many as there are
        cores on a CPU of one device (up to 8), else one.
      devices_per_run: over how many devices a run's batch is spread.
      runs_on_a_device: how many runs a device carries at a time; 0 to measure what pays.
      together: how a device computes several runs.
      lease_seconds: a run whose driver has not been heard of for so long is another's to take.
      max_attempts: how often a run may raise.
      checkpoint_epochs: epochs between two checkpoints of a run.
      checkpoint_share: of the time between two checkpoints, what writing one may take: the next one
        waits until it does; 1 for no such limit.
      chunk_seconds: after about so long the driver looks up from its steps.
      devices: where the runs are made; by default on all, of every process.

    Raises:
      ValueError: if the devices do not divide by ``devices_per_run``, or a batch does not divide
        over so many.
      Exception: whatever kept the driver itself from working, such as a ledger that is gone.
    """
    devices = list(jax.devices() if devices is None else devices)
    mesh = sweep_mesh(devices, devices_per_run)
    for each in sweep.plans:
        refuse_indivisible(each, devices_per_run)
    # No more slots than there are runs.
    most = -(-len(sweep.plans) // mesh.shape[training.SWEEP])
    runs_on_a_device = min(runs_on_a_device, max(1, most))
    lanes = lanes or default_lanes(devices)
    device = device_name()
    driver = this_driver(device, versions())
    programs = Programs(
        sweep.dataset,
        mesh,
        runs_per_device=functools.partial(runs_per_device, runs_on_a_device, ledger, device),
        together=together,
        compiling=watch.compiling,
        compiled=watch.compiled,
    )
    given_up = threading.Event()
    crew = Crew(
        ledger=ledger,
        driver=driver,
        keys=sweep.keys,
        programs=programs,
        folder=folder,
        watch=watch,
        stop=lambda: stop() or given_up.is_set(),
        lease_seconds=lease_seconds,
        max_attempts=max_attempts,
        checkpoint_epochs=checkpoint_epochs,
        checkpoint_share=checkpoint_share,
        chunk_seconds=chunk_seconds,
    )
    with _heartbeat(crew, given_up):
        if lanes == 1:
            lane.work(crew)
        else:
            with concurrent.futures.ThreadPoolExecutor(lanes) as pool:
                work = {pool.submit(lane.work, crew) for _ in range(lanes)}
                try:
                    # Python handles signals in this thread only, and the system may hand one to
                    # another thread, which does not wake this one: it wakes by itself.
                    while work:
                        done, work = concurrent.futures.wait(
                            work, _LOOKS_UP, concurrent.futures.FIRST_COMPLETED
                        )
                        for one in done:
                            one.result()
                except BaseException:
                    given_up.set()  # the other lanes save their runs and leave
                    raise
    counts = crew.agree(lambda ledger: ledger.counts(sweep.keys))
    return Outcome(counts, crew.clock, programs.built, crew.is_over())


@contextlib.contextmanager
def _heartbeat(crew: Crew, given_up: threading.Event) -> Iterator[None]:
    """Renews the leases in a thread of its own for as long as the block lasts."""
    over = threading.Event()
    failures: list[BaseException] = []

    def beat() -> None:
        while not over.wait(crew.lease_seconds / 4):
            try:
                crew.beat()
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
    "MOST_LANES", "Outcome", "Sweep", "drive", "enter", "make_sweep",
    "default_lanes", "refuse_indivisible", "refuse_other_settings", "sweep_mesh", "without",
]  # fmt: skip
