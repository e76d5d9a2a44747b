"""A worker: makes the runs of a grid that are missing, alone or beside others on one ledger."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from nf_resnets import data, schemes, training
from nf_resnets.sweep import grid, lane
from nf_resnets.sweep.callback import Callback
from nf_resnets.sweep.clock import Clock
from nf_resnets.sweep.crew import Crew, device_name, versions
from nf_resnets.sweep.ledger import Ledger, LedgerError, NewRun, this_worker
from nf_resnets.sweep.program import Plan, Program, Programs, plan
from nf_resnets.sweep.settings import FIELDS, NUMBERS, RunSettings, shown
from nf_resnets.sweep.together import runs_per_device
from nf_resnets.sweep.words import SINGLE, label, swept
from nf_resnets.training.checkpoint import Checkpoints

MOST_LANES = 8

MOST_KINDS = 4096
"""Combinations of settings of which most need a program of their own."""

_LOOKS_UP = 0.05  # seconds at most until the main thread sees a signal
_LANE = "lane of a sweep"


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A grid whose every point has been checked against its data.

    Attributes:
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      kinds: a plan for each combination of all settings but ``NUMBERS``, of whichever numbers.
      dataset: ``dataset(name)`` loads a data set.
    """

    axes: Mapping[str, tuple[Any, ...]]
    base: Mapping[str, Any]
    kinds: tuple[Plan, ...]
    dataset: Callable[[str], data.Dataset]

    @property
    def runs_of_a_kind(self) -> int:
        """How many points each kind stands for."""
        return math.prod(len(values) for name, values in self.axes.items() if name in NUMBERS)

    @property
    def size(self) -> int:
        """How many points there are, known without making them."""
        return len(self.kinds) * self.runs_of_a_kind

    @functools.cached_property
    def plans(self) -> tuple[Plan, ...]:
        """One for each point, those of one program together, in the order of the grid otherwise."""
        kinds = {_kind(vars(each.settings)): each for each in self.kinds}
        points = grid.points(self.axes, self.base)
        found = [
            dataclasses.replace(kinds[_kind(vars(settings))], settings=settings)
            for settings in points
        ]
        order: dict[str, int] = {}
        for each in found:
            order.setdefault(each.program, len(order))
        return tuple(sorted(found, key=lambda each: order[each.program]))

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The keys of its runs."""
        return frozenset(each.key for each in self.plans)

    def count(self, rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
        """Of each program how many of a ledger's rows are points of the grid."""
        kinds = {_kind(vars(each.settings)): each for each in self.kinds}
        swept = {name: frozenset(self.axes[name]) for name in NUMBERS if name in self.axes}
        found: Counter[str] = Counter()
        for row in rows:
            kind = kinds.get(_kind(row))
            if kind is not None and all(
                row.get(name) in (swept.get(name) or (getattr(kind.settings, name),))
                for name in NUMBERS
            ):
                found[kind.program] += 1
        return found

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
    dataset, base = functools.cache(load), dict(base or {})
    axes = grid.checked(axes, base)
    if None in axes.get("scalar_factor", ()):
        # What it stands for is the scheme's, and could be there twice.
        raise ValueError("the axis scalar_factor has the value none; expected numbers.")
    first = {name: values[0] for name, values in axes.items() if name in NUMBERS}
    others = {name: values for name, values in axes.items() if name not in NUMBERS}
    count = math.prod(len(values) for values in others.values())
    if count > MOST_KINDS:
        raise ValueError(
            f"a grid of {count:,} combinations of {', '.join(others)} found, each a program to "
            f"compile; expected at most {MOST_KINDS:,}."
        )
    points = grid.points(others, {**base, **first})
    kinds = [plan(settings, dataset(settings.dataset)) for settings in points]
    for name in ("alpha", "dropout"):
        _refuse_without_effect(name, axes.get(name, (base.get(name),)), points)
    return Sweep(axes, base, tuple(kinds), dataset)


def _kind(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    """The settings of a point in which no other one of its kind differs."""
    return tuple(settings.get(name) for name in FIELDS if name not in NUMBERS)


def _refuse_without_effect(name: str, values: Sequence[Any], points: Sequence[RunSettings]) -> None:
    """Refuses a setting that no scheme of the grid reads: its values would all be one run."""
    given = [value for value in values if value is not None]
    if given and not any(getattr(schemes.get(point.scheme).anatomy, name) for point in points):
        raise ValueError(
            f"{name}={given[0]:g} found, but scheme={points[0].scheme!r} has no {name}, nor has "
            "another scheme of the grid; expected none."
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
    start = sum(ledger.counts().values())
    return ledger.add(
        [
            NewRun(each.text, each.program, start + position, each.resolved())
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
    first = sweep.kinds[0].settings
    now = dict(vars(first))
    if "scheme" in sweep.axes and first.scalar_factor == schemes.get(first.scheme).scalar_factor:
        del now["scalar_factor"]  # each scheme has its own
    changed = [
        f"{name}: {_some(there[name])} there, {value!r} now"
        for name, value in now.items()
        if name not in sweep.axes and value not in there.get(name, {value})
    ]
    if changed:
        raise ValueError(
            f"the ledger {ledger.name} holds runs of other settings ({'; '.join(changed)}); make "
            "them axes of the grid to compare them, or choose another folder."
        )


def refuse_older_ledger(sweep: Sweep, ledger: Ledger, folder: Path) -> None:
    """Refuses a ledger that knows less of runs than their checkpoints, which lie beside it.

    The row of an epoch is written before the checkpoint that follows it: where the checkpoint is
    there and the row is not, the ledger was deleted, emptied or replaced, and going on would leave
    its rows out for good.

    Args:
      sweep: the grid; its runs are in the ledger.
      ledger: what is known.
      folder: of the checkpoints.

    Raises:
      LedgerError: it does; the sentence names a run and its epochs.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    behind = {}
    for each in sweep.plans:
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


def _some(values: Collection[Any]) -> str:
    """The first few of some values."""
    words = list(map(shown, sorted(values, key=str)[:6]))
    return ", ".join(words if len(values) <= 6 else [*words[:5], "..."])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What a worker did.

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
    if schemes.get(settings.scheme).anatomy.has_batch_norm and plan.bn_groups % parts:
        raise ValueError(
            f"ghost_batch={settings.ghost_batch} found, {plan.bn_groups} in a batch of "
            f"{settings.batch_size}; expected a multiple of {parts}, some for each of "
            f"devices_per_run={devices_per_run} devices."
        )


def drive(
    sweep: Sweep,
    ledger: Ledger | None,
    folder: Path,
    callback: Callback,
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
    chunk_seconds: float = 1.0,
    devices: Sequence[jax.Device] | None = None,
) -> Outcome:
    """Makes the runs of a grid that the ledger says are missing, and waits for those of others.

    Args:
      sweep: the grid; its runs are in the ledger (:func:`enter`).
      ledger: where results are kept; None on all but the leading one of several processes.
      folder: for the checkpoints of unfinished runs.
      callback: receives the events.
      stop: is asked between steps; once it says so, all runs are saved and released.
      lanes: how many programs are at work at a time, each in a thread; 0 for as many as there are
        cores on a CPU of one device (up to 8), else one.
      devices_per_run: over how many devices a run's batch is spread.
      runs_on_a_device: how many runs a device carries at a time; 0 to measure what pays.
      together: how a device computes several runs.
      lease_seconds: a run whose worker has not been heard of for so long is another's to take.
      max_attempts: how often a run may raise.
      checkpoint_epochs: epochs between two checkpoints of a run.
      checkpoint_share: of the time between two checkpoints, what writing one may take: the next one
        waits until it does; 1 for no such limit.
      chunk_seconds: after about so long the worker looks up from its steps.
      devices: where the runs are made; by default on all, of every process.

    Raises:
      ValueError: if the devices do not divide by ``devices_per_run``, or a batch does not divide
        over so many.
      LedgerError: if the ledger is older than the checkpoints (:func:`refuse_older_ledger`).
      Exception: whatever kept the worker itself from working, such as a ledger that is gone.
    """
    if ledger is not None:
        refuse_older_ledger(sweep, ledger, folder)
    devices = list(jax.devices() if devices is None else devices)
    mesh = sweep_mesh(devices, devices_per_run)
    for each in sweep.kinds:
        refuse_indivisible(each, devices_per_run)
    # No more slots than there are runs.
    most = -(-sweep.size // mesh.shape[training.SWEEP])
    runs_on_a_device = min(runs_on_a_device, max(1, most))
    lanes = lanes or default_lanes(devices)
    device = device_name()
    worker = this_worker(device, versions())
    names = swept(sweep.axes) or SINGLE
    programs = Programs(
        sweep.dataset,
        mesh,
        runs_per_device=functools.partial(runs_per_device, runs_on_a_device, ledger, device),
        together=together,
        callback=callback,
        label=functools.partial(label, names=[name for name in names if name not in NUMBERS]),
    )
    given_up = threading.Event()
    crew = Crew(
        ledger=ledger,
        worker=worker,
        keys=sweep.keys,
        programs=programs,
        folder=folder,
        callback=callback,
        label=functools.partial(label, names=names),
        stop=lambda: stop() or given_up.is_set(),
        lease_seconds=lease_seconds,
        max_attempts=max_attempts,
        checkpoint_epochs=checkpoint_epochs,
        checkpoint_share=checkpoint_share,
        chunk_seconds=chunk_seconds,
    )
    with _heartbeat(crew, given_up):
        if jax.process_count() > 1 and lanes == 1:
            lane.work(crew)  # all processes compile together, and leave together
        else:
            _work_in_threads(crew, min(lanes, sweep.size), given_up)
    counts = crew.agree(lambda ledger: ledger.counts(sweep.keys))
    return Outcome(counts, crew.clock, programs.built, crew.is_over())


def _work_in_threads(crew: Crew, lanes: int, given_up: threading.Event) -> None:
    """Works in lanes of a thread each; once told to stop, waits for none that only compiles."""
    failures: list[BaseException] = []

    def work() -> None:
        try:
            lane.work(crew)
        except BaseException as error:
            failures.append(error)
            given_up.set()  # the other lanes save their runs and leave

    threads = [threading.Thread(target=work, name=_LANE, daemon=True) for _ in range(lanes)]
    for thread in threads:
        thread.start()
    try:
        while at_work := [thread for thread in threads if thread.is_alive()]:
            # Python handles signals in this thread only, and the system may hand one to another
            # thread, which does not wake this one: it wakes by itself.
            at_work[0].join(_LOOKS_UP)
            if crew.stop() and crew.leave([each for each in at_work if each.is_alive()]):
                break
    except BaseException:
        given_up.set()
        raise
    if failures:
        raise failures[0]


def is_at_work() -> bool:
    """Whether a lane is at work that was left behind, as its compilation could not be ended."""
    return any(thread.name == _LANE for thread in threading.enumerate())


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
    "MOST_KINDS", "MOST_LANES", "Outcome", "Sweep", "drive", "enter", "make_sweep",
    "default_lanes", "is_at_work", "refuse_indivisible", "refuse_older_ledger",
    "refuse_other_settings", "sweep_mesh",
]  # fmt: skip
