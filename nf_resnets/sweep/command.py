"""Makes what is missing of a sweep, or says how long that takes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
import statistics
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from nf_resnets import command_line, data, places
from nf_resnets.machine import device_name, small_pages
from nf_resnets.places import write_csv
from nf_resnets.sweep import engine, for_topology, on_ray
from nf_resnets.sweep.engine import Execution, Outcome, store_programs
from nf_resnets.sweep.grid import Sweep, make_sweep
from nf_resnets.sweep.options import Logs, Options, check
from nf_resnets.sweep.results import STOPPED, Result, makers, states_in_words
from nf_resnets.sweep.rows import FAILED, Rows, flat
from nf_resnets.sweep.select import Row
from nf_resnets.sweep.settings import RunSettings, value_text
from nf_resnets.topology import topology_devices
from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callbacks
from nf_resnets.training.display import Display, counted, duration_text
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.run import Plan


def base_of(settings: RunSettings) -> dict[str, Any]:
    """The settings that a command line changes."""
    default = vars(RunSettings())
    return {name: value for name, value in vars(settings).items() if value != default[name]}


def run(
    options: Options, axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any], title: str
) -> Result | None:
    """Makes what is missing of a sweep; None after a dry run, and on all but process 0.

    ``base`` are the settings that are no axes, where they are not the defaults.
    """
    check(options)
    options = dataclasses.replace(options, out=options.out.expanduser())
    # First: from then on JAX computes on the CPU, as it must where there are no such chips.
    chips = topology_devices(options.topology) if options.topology else []
    if not chips:
        hosts.initialize(*dataclasses.astuple(options.processes))
    sweep = make_sweep(axes, base, load=functools.partial(data.load, data_dir=options.data_dir))
    devices = chips or jax.devices()
    data_devices = options.execution.devices_per_run or len(devices)
    engine.sweep_mesh(devices, data_devices)
    for first, *_ in sweep.programs.values():
        sweep.task.check(first, data_devices)
    with hosts.abort_on_error():
        if not options.dry_run:
            return _run(options, sweep, title)
        _dry_run(options, sweep, chips)
        return None


def end(command: Callable[[], int | None]) -> int:
    """Runs a command, as :func:`nf_resnets.command_line.finish`; exits where runs still compile."""
    code = command_line.finish(command)
    if engine.is_at_work():
        # Nothing else ends a compilation, and Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _dry_run(options: Options, sweep: Sweep, chips: Sequence[Any]) -> None:
    """Prints what would be made, and how long it would take, here or on chips elsewhere."""
    rows = Rows(options.out)
    if options.retry:
        rows.retry()
    groups = sweep.programs.values()
    missing = ([plan for plan in plans if plan.key not in rows] for plans in groups)
    left = [plans for plans in missing if plans]
    done = sweep.size - sum(map(len, left))
    of_them = f", {done:,} of them done" if done else ""
    print(f"Grid: {counted(sweep.size)}{of_them}")
    wide = max(map(len, sweep.axes), default=0)
    for name, values in sweep.axes.items():
        print(f"  {name:<{wide}}  {len(values):>4}  {values_in_words(name, values)}")
    if not chips:
        _timed(options.execution, list(rows.read().values()), left)
    elif for_topology.report(sweep.task, left, chips, options.execution, options.topology):
        raise SystemExit(1)


def _timed(execution: Execution, rows: Sequence[Row], left: Sequence[Sequence[Plan]]) -> None:
    """Prints what programs cost here, as far as runs that have finished say it."""
    workers = execution.workers or engine.default_workers(jax.devices())
    print(f"Programs: {len(left)}, each compiled once")
    seconds, unknown = 0.0, 0
    for plan, *others in left:
        runs, each = 1 + len(others), step_seconds(plan, rows)
        seconds += runs * plan.num_steps * (each or 0.0)
        unknown += each is None
        step = "" if each is None else f", {1e3 * each:.3g} ms a step"
        print(f"  {for_topology.describe(plan, runs)}{step}")
    if unknown:
        print(f"Time: unknown until a run of each program has finished (missing: {unknown})")
        return
    print(
        f"Time: about {duration_text(seconds / workers)} on {device_name()}, without compiling"
        + (f", {workers} programs at a time" if workers > 1 else "")
    )


def step_seconds(plan: Plan, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """The seconds of one step of one run, by the finished runs of the program, or None."""
    times = [
        row["seconds"] / row["steps_done"]
        for row in rows
        if row["program"] == plan.program and row["state"] == "finished"
    ]
    return statistics.median(times) if times else None


def values_in_words(name: str, values: Sequence[Any]) -> str:
    """The values of an axis on one line, powers of two as such."""
    words = [value_text(name, value) for value in values]
    return ", ".join(words if len(words) <= 12 else [*words[:5], f"... {words[-1]}"])


def _run(options: Options, sweep: Sweep, title: str) -> Result | None:
    store_programs(options.out)
    writes = hosts.is_process_zero()
    if writes:
        places.try_folder(options.out)
        refuse_without_rows(options.out)
    stop = Preemption()
    with contextlib.ExitStack() as stack:
        writes_rows = writes and options.ray is None
        rows = stack.enter_context(Rows(options.out, options.shard, writes=writes_rows).open())
        if options.retry:
            rows.retry()
        submit = on_ray.submitter(options.ray) if options.ray else None
        if writes:
            where = f"Ray at {options.ray}" if options.ray else device_name()
            print(
                f"{title}: {counted(sweep.size)}, {counted(len(sweep.programs), 'program')} on "
                f"{where}; results in {options.out.resolve()}",
                flush=True,
            )
            say_what_is_damaged(rows)
        # Only while runs are trained is there anything to save: before and after, a signal ends the
        # process at once.
        missing = [plan for plan in sweep.plans if plan.key not in rows]
        with watched(missing, options.logs, options.out) as callback, stop:
            hooks: Any = {"callback": callback, "stop": lambda: stop.requested}
            if submit is not None:
                outcome = on_ray.make(options, sweep, submit, on_ray.slots(), **hooks)
            else:
                how = options.execution
                outcome = engine.make(sweep.task, sweep.plans, rows, execution=how, **hooks)
    # Another process than this one can have been told to stop.
    code = stop.exit_code or (143 if outcome.stopped else 0)
    counts = Counter(row["state"] for row in outcome.rows.values())
    counts["to be made"] = sweep.size - counts.total()
    is_terminated = code == 128 + signal.SIGTERM  # who sends it does not wait for figures
    if is_terminated and writes:
        print(f"{states_in_words(counts)}\n{STOPPED}", flush=True)
    if code and (is_terminated or not writes):
        raise SystemExit(code)
    return _result(options, sweep, outcome, counts, code) if writes else None


def refuse_without_rows(folder: Path) -> None:
    """Refuses a folder with files of the results, but without the rows that they were made of."""
    names = ("rows.csv", "settings.json", "table.txt", "figure.png", "report.html", "compiled")
    there = [folder / name for name in names if (folder / name).exists()]
    if there and not any(folder.glob("rows-*.jsonl")):
        raise ValueError(
            f"{there[0]} is there without the rows-*.jsonl that it is made of: an earlier version "
            "or somebody else wrote it. It can be read, but not gone on with; choose another "
            "folder with --out."
        )


def say_what_is_damaged(rows: Rows) -> None:
    """Prints which lines are passed over."""
    if rows.damaged:
        more = f" and {len(rows.damaged) - 3:,} more" if len(rows.damaged) > 3 else ""
        print(
            f"Damaged, passed over and made again: {'; '.join(rows.damaged[:3])}{more}.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def watched(plans: Sequence[Plan], logs: Logs, folder: Path, *others: Any) -> Iterator[Callbacks]:
    """What shows and logs the runs that are to be made, with other callbacks, on process 0."""
    if not hosts.is_process_zero():
        yield Callbacks()
        return
    with contextlib.ExitStack() as stack:
        display = stack.enter_context(Display(plans))
        if advice := small_pages():
            display.on_message(advice)
        stack.enter_context(warnings.catch_warnings())
        # Damaged checkpoints that were passed over: a line, and not a warning of Python's.
        warnings.showwarning = lambda message, *_, **__: display.on_message(str(message))
        yield Callbacks(display, *stack.enter_context(logs.opened(folder)), *others)


def _result(
    options: Options, sweep: Sweep, outcome: Outcome, counts: Counter[str], code: int
) -> Result:
    """What there is to show; the table is written anew, from the rows."""
    rows = list(outcome.rows.values())
    write_csv(options.out / "rows.csv", list(map(flat, rows)))
    failed = any(row["state"] in FAILED for row in rows)
    classes = {sweep.task.dataset(row["dataset"]).num_classes for row in rows}
    return Result(
        rows, sweep.axes, sweep.base, counts, code or int(failed), outcome.programs, makers(rows),
        chance=1 / classes.pop() if len(classes) == 1 else None,
    )  # fmt: skip
