"""Makes what is missing of a sweep, or says how long that takes; the grid can grow."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import io
import json
import os
import shutil
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from nf_resnets import command_line, data, places
from nf_resnets.machine import device_name
from nf_resnets.plotting.whole import whole_file
from nf_resnets.sweep import for_topology, programs, worker
from nf_resnets.sweep.display import Display
from nf_resnets.sweep.export import to_csv
from nf_resnets.sweep.image_task import (
    Sweep,
    make_sweep,
    refuse_indivisible,
    refuse_other_settings,
)  # fmt: skip
from nf_resnets.sweep.ledger import Ledger, LedgerError, open_ledger
from nf_resnets.sweep.options import Options, check, parse_target, placed
from nf_resnets.sweep.programs import Execution, store_programs
from nf_resnets.sweep.results import METRICS, STOPPED, Result, curves_at_best, states_in_words
from nf_resnets.sweep.schema import redacted
from nf_resnets.sweep.select import Row, Rule, optima
from nf_resnets.sweep.settings import RunSettings, swept, typed, value_text
from nf_resnets.sweep.task import Resolved
from nf_resnets.topology import topology_devices
from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.checkpoint import CheckpointError
from nf_resnets.training.compiling import duration_text
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB


def base_of(settings: RunSettings, axes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a command line changes; refuses one that is an axis of the grid as well."""
    default = RunSettings()
    changed = {n: value for n, value in vars(settings).items() if value != getattr(default, n)}
    for name in axes:
        if name in changed:
            raise SystemExit(
                f"--{name.replace('_', '-')} {changed[name]} found beside --grid {name}=...; "
                "expected one of the two."
            )
    return changed


WRITTEN = ("rows.csv", "settings.json", "table.txt", "report.html")
"""The files of a sweep that are no figures."""


def run(options: Options, axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any],
        title: str, *, metrics: Sequence[str] = METRICS, read: Callable[[Row], Row] = dict,
        ) -> Result | None:  # fmt: skip
    """Makes what is missing of a sweep.

    Args:
      options: of the command line.
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      title: what the first line calls it.
      metrics: by which rates are compared, for ``--extend``.
      read: makes of a row of the ledger that which is compared.

    Returns:
      None after a dry run, and on all but process 0.

    Raises:
      SystemExit: if an option, the grid, the data or the ledger is not in order, with one sentence.
    """
    check(options)
    try:
        options = placed(options)
        # First: from then on JAX computes on the CPU, as it must where there are no such chips.
        chips = topology_devices(options.topology) if options.topology else []
        if not chips:
            hosts.initialize(options.coordinator, options.num_processes, options.process_id)
        sweep = make_sweep(axes, base, load=_loader(options.data_dir))
        devices = chips or jax.devices()
        data_devices = options.execution.devices_per_run or len(devices)
        worker.sweep_mesh(devices, data_devices)
        for each in sweep.kinds:
            refuse_indivisible(each, data_devices)
        with hosts.abort_on_error():
            if not options.dry_run:
                return _run(options, sweep, title, metrics, read)
            _dry_run(options, sweep, chips)
            return None
    except (ValueError, OSError, ImportError, LedgerError, CheckpointError) as error:
        raise SystemExit(redacted(str(error))) from error


def end(main: Callable[[], int]) -> NoReturn:
    """Runs a command to its exit, as :func:`nf_resnets.command_line.finish`.

    Raises:
      SystemExit: always.
    """
    code = command_line.finish(
        main, "Stopped; what was finished is kept, and the same command goes on."
    )
    if worker.is_at_work():
        # Nothing else ends a compilation, and Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def _loader(data_dir: str | None) -> Any:
    return lambda name: data.load(name, data_dir)


def _dry_run(options: Options, sweep: Sweep, chips: Sequence[Any]) -> None:
    """Prints what would be made, and how long it would take, measured or on chips elsewhere."""
    path = options.out / "ledger.db"
    where: str | Path = options.ledger or path
    ledger = open_ledger(where, create=False) if options.ledger or path.exists() else None
    left, done = _left(sweep, ledger, retry=options.retry)
    of_them = f", {done:,} of them done" if done else ""
    print(f"Grid: {sweep.size:,} runs{of_them}")
    wide = max(map(len, sweep.axes), default=0)
    for name, values in sweep.axes.items():
        print(f"  {name:<{wide}}  {len(values):>4}  {values_in_words(name, values)}")
    if not chips:
        _measured(options.execution, sweep, ledger, left)
    elif for_topology.report(sweep.task, left, chips, options.execution, options.topology):
        raise SystemExit(1)


def _left(
    sweep: Sweep, ledger: Ledger | None, *, retry: bool
) -> tuple[dict[str, tuple[Resolved, int]], int]:
    """Of each program one of its runs and how many are left, and how many runs are done."""
    done: Counter[str] = Counter()
    to_do = {"waiting", "running"} | ({"failed", "oom"} if retry else set())
    if ledger is not None:
        refuse_other_settings(sweep, ledger)
        done = sweep.count(row for row in ledger.rows() if row["state"] not in to_do)
    left: dict[str, tuple[Any, int]] = {}
    for each in sweep.kinds:
        first, runs = left.get(each.program, (each, -done[each.program]))
        left[each.program] = first, runs + sweep.runs_of_a_kind
    resolve = sweep.task.resolve
    found = {name: (resolve(k.settings), n) for name, (k, n) in left.items() if n > 0}
    return found, done.total()


def _measured(
    execution: Execution, sweep: Sweep, ledger: Ledger | None,
    left: Mapping[str, tuple[Resolved, int]],
) -> None:  # fmt: skip
    """Prints what programs cost here, from earlier runs or a few steps."""
    devices = jax.devices()
    mesh = worker.sweep_mesh(devices, execution.devices_per_run or len(devices))
    workers = execution.workers or worker.default_workers(devices)
    most = min(execution.runs_per_device or 1, sweep.size)
    carried = dataclasses.replace(execution, runs_per_device=most)
    builder = programs.Programs(sweep.task, mesh, Callbacks(), carried, ledger, device_name())
    costs = programs.estimate(
        left,
        builder,
        workers=workers,
        on_message=lambda text: print(f"  {text} ...", file=sys.stderr, flush=True),
    )
    print(f"Programs: {len(costs)}, each compiled once")
    for cost in costs:
        how = "as earlier runs took" if cost.known else "measured now"
        print(
            f"  {programs.describe(cost.run)}: {cost.runs:,} runs of {cost.run.num_steps:,} "
            f"steps, {1e3 * cost.seconds_per_step:.3g} ms a step {how}, compiled in "
            f"{cost.compile_seconds:.0f} s"
        )
    seconds = programs.total(costs, workers)
    print(
        f"Time: about {duration_text(seconds)} on {device_name()}"
        + (f", {workers} programs at a time" if workers > 1 else "")
    )


def values_in_words(name: str, values: Sequence[Any]) -> str:
    """The values of an axis on one line, powers of two as such."""
    few = values if len(values) <= 12 else [*values[:5], values[-1]]
    words = [value_text(name, value) for value in few]
    return ", ".join(words) if few is values else f"{', '.join(words[:5])}, ... {words[-1]}"


def _run(
    options: Options, sweep: Sweep, title: str, metrics: Sequence[str], read: Callable[[Row], Row]
) -> Result | None:
    store_programs(options.out)
    with contextlib.ExitStack() as stack:
        ledger = None
        if hosts.is_process_zero():
            places.try_folder(options.out, "--out")
            where = options.ledger or options.out / "ledger.db"
            if not Path(where).is_file():
                _refuse_to_overwrite(options.out)
            ledger = stack.enter_context(open_ledger(where))
            _begin(options, sweep, ledger)
            runs, programs = sweep.size, len(sweep.programs)
            print(
                f"{title}: {runs:,} run{'s'[: runs != 1]}, {programs} program"
                f"{'s'[: programs != 1]} on {device_name()}; results in {options.out.resolve()}",
                flush=True,
            )
        stop = Preemption()
        sweep, outcome = _train_and_grow(options, sweep, ledger, stop, metrics, read)
        # Another process than this one can have been told to stop.
        code = stop.exit_code or (143 if outcome.stopped else 0)
        if code == 128 + signal.SIGTERM and ledger is not None:
            # Who sends it does not wait for figures.
            print(f"{states_in_words(outcome.counts)}\n{STOPPED}", flush=True)
            raise SystemExit(code)
        if ledger is not None:
            found = _result(options, sweep, ledger, outcome, code)
            return dataclasses.replace(found, rows=[dict(read(row)) for row in found.rows])
        if code:
            raise SystemExit(code)
        return None


def _begin(options: Options, sweep: Sweep, ledger: Ledger) -> None:
    """Enters the grid, and removes checkpoints of runs that are done.

    A worker that is killed between a run's result and the removal leaves them.
    """
    done = {row["key"] for row in ledger.rows() if row["state"] in ("finished", "diverged")}
    _refuse_to_forget(options.out / "rows.csv", ledger, done)
    _enter(sweep, ledger)
    if options.retry:
        ledger.retry(keys=sweep.keys)
    _clear_leftovers(options.out / "checkpoints", done)


def _train_and_grow(
    options: Options, sweep: Sweep, ledger: Ledger | None, stop: Preemption,
    metrics: Sequence[str], read: Callable[[Row], Row],
) -> tuple[Sweep, worker.Outcome]:  # fmt: skip
    """Trains what is missing, and adds rates for as long as the best one lies at an edge."""
    grown = dict.fromkeys(("lowest", "highest"), 0)
    while True:
        outcome = _train(options, sweep, ledger, stop)
        if outcome.stopped or (stop.requested and jax.process_count() == 1):
            return sweep, outcome
        more = None
        if ledger is not None and options.extend:
            rows = [read(row) for row in sweep.rows(ledger)]
            more = growth(rows, sweep.axes, grown, options.extend, options.best, metrics)
        if jax.process_count() > 1:
            more = hosts.broadcast(more)
        if more is None:
            return sweep, outcome
        rates = tuple(sorted({*sweep.axes["peak_lr"], *more}))
        load = _loader(options.data_dir)
        sweep = make_sweep({**sweep.axes, "peak_lr": rates}, sweep.base, load=load)
        if ledger is not None:
            added = values_in_words("peak_lr", more)
            print(f"The best rate lies at the grid's edge: adding {added}.")
            _enter(sweep, ledger)


def _result(
    options: Options, sweep: Sweep, ledger: Ledger, outcome: worker.Outcome, code: int
) -> Result:
    rows = sweep.rows(ledger)
    if parse_target(options.target)[0].startswith("test"):
        rows = _with_tests(rows, ledger)
    faults = []
    try:
        # Written anew each time: it can always be made from the ledger.
        with whole_file(options.out / "rows.csv") as new:
            to_csv(ledger, new, keys=sweep.keys)
    except (LedgerError, OSError) as error:  # the runs are done all the same
        faults.append(f"{options.out / 'rows.csv'} cannot be made: {error}")
    try:
        programs.remember(ledger, rows, outcome.programs, device_name())
    except LedgerError as error:
        faults.append(f"how long the runs took cannot be kept: {error}")
    failed = {row["key"] for row in rows if row["state"] == "failed"}
    attempts = [each for each in ledger.attempts() if each["key"] in sweep.keys]
    raised = [each for each in attempts if each["key"] in failed and each["traceback"]]
    failures = {each["key"]: each["traceback"] for each in raised}
    return Result(
        rows, sweep.axes, sweep.base, outcome.counts, outcome.clock, code or int(bool(failed)),
        failures, len(outcome.programs), _makers(attempts), faults,
        curves_at_best(ledger, rows, sweep.axes, options.best),
    )  # fmt: skip


def _with_tests(rows: Sequence[dict[str, Any]], ledger: Ledger) -> list[dict[str, Any]]:
    """The rows with what their tests gave, as ``steps_to_target`` takes it."""
    tests: dict[str, dict[str, list[Any]]] = {}
    for epoch in ledger.epochs():
        if epoch["test_loss"] is not None:
            of_run = tests.setdefault(epoch["key"], {"step": [], "loss": [], "accuracy": []})
            for name, column in (("step", "step"), ("loss", "test_loss"),
                                 ("accuracy", "test_accuracy")):  # fmt: skip
                of_run[name].append(epoch[column])
    return [{**row, "tests": tests.get(row["key"])} for row in rows]


def _enter(sweep: Sweep, ledger: Ledger) -> None:
    refuse_other_settings(sweep, ledger)
    worker.enter(sweep.runs, ledger)


def _makers(attempts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """On what the runs came to their end, as the ledger says: not where they are looked at."""
    found: dict[str, dict[str, Any]] = {}
    for attempt in attempts:
        if attempt["outcome"] in ("finished", "diverged"):
            what = {"device": attempt["device"], **attempt["versions"]}
            day = datetime.datetime.fromtimestamp(attempt["ended_at"], datetime.UTC).date()
            maker = found.setdefault(
                json.dumps(what, sort_keys=True), {"first": day.isoformat(), **what, "runs": 0}
            )
            maker |= {"last": day.isoformat(), "runs": maker["runs"] + 1}
    return list(found.values())


def _refuse_to_overwrite(folder: Path) -> None:
    """Refuses a folder with files of the names that a sweep writes and that none has written."""
    table = folder / "rows.csv"
    if table.exists():
        try:
            columns = next(csv.reader(io.StringIO(places.read_file(table).decode())), [])
        except (ValueError, csv.Error):
            columns = []
        is_one = {"key", "state"} <= set(columns)
        foreign = [] if is_one else [table]
    else:
        foreign = [folder / name for name in WRITTEN if (folder / name).exists()]
    if foreign:
        raise ValueError(
            f"{foreign[0]} is there, and no sweep has written it; it would be overwritten. Move it "
            "away, or choose another folder with --out."
        )


def _refuse_to_forget(table: Path, ledger: Ledger, done: Collection[str]) -> None:
    """Refuses a ledger without the results that the table of an earlier start has."""
    try:
        text = places.read_file(table).decode()
        over = {
            row["key"]
            for row in csv.DictReader(io.StringIO(text, newline=""))
            if row.get("state") in ("finished", "diverged") and row.get("key")
        }
    except (OSError, ValueError, csv.Error):
        return  # there is none, or none that can be read
    if missing := over.difference(done):
        raise LedgerError(
            f"the ledger {ledger.name} lacks the results of {len(missing):,} runs of {table}, such "
            f"as {min(missing)[:64]}: it was deleted, emptied or replaced by an older one; put the "
            "newer one back, or move the table away to train these runs anew"
        )


def _clear_leftovers(folder: Path, done: Collection[str]) -> None:
    names = {key[:20] for key in done}
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name in names:
            shutil.rmtree(path, ignore_errors=True)


def _train(
    options: Options, sweep: Sweep, ledger: Ledger | None, stop: Preemption
) -> worker.Outcome:
    """Trains the runs that are missing, and shows them on process 0."""
    with contextlib.ExitStack() as stack:
        callbacks: list[Callback] = []
        if ledger is not None:
            rows = sweep.rows(ledger)
            display = stack.enter_context(Display(sweep.runs, rows=rows, swept=swept(sweep.axes)))
            callbacks.append(display)
            if options.tensorboard:
                boards = TensorBoard(options.out / "tensorboard", tell=display.on_message)
                callbacks.append(stack.enter_context(boards))
            if options.wandb:
                callbacks.append(stack.enter_context(WandB(options.out)))
            stack.enter_context(warnings.catch_warnings())
            # Damaged checkpoints that were passed over: a line, and not a warning of Python's.
            warnings.showwarning = lambda message, *_, **__: display.on_message(str(message))
        # Only while runs are trained is there anything to save: before and after, a signal ends
        # the process at once.
        stack.enter_context(stop)
        return worker.run_sweep(
            sweep.task, sweep.runs, ledger, options.out / "checkpoints", Callbacks(*callbacks),
            stop=lambda: stop.requested, execution=options.execution,
        )  # fmt: skip


def growth(
    rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[Any]], grown: dict[str, int],
    most: int, rule: Rule = "strict", metrics: Sequence[str] = METRICS,
) -> list[float] | None:  # fmt: skip
    """Rates beyond the edges at which a best one lies, in the steps of the grid.

    How often it has ``grown`` at its lowest and highest rate, at ``most`` so often, is counted up.
    """
    rates = sorted(axes.get("peak_lr", ()))
    if len(rates) < 2:
        return None
    by = [name for name in axes if name not in ("peak_lr", "seed")]
    edges = {
        # Where every rate diverged, the best one is lower than all.
        "lowest"
        if best.best is None and any(rate.diverged for rate in best.rates)
        else best.at_edge
        for metric in metrics
        for best in optima(rows, metric=metric, by=by, rule=rule)
    }
    more = []
    for edge, rate, next_rate in (
        ("lowest", rates[0], rates[1]), ("highest", rates[-1], rates[-2])
    ):  # fmt: skip
        if edge in edges and grown[edge] < most:
            grown[edge] += 1
            with contextlib.suppress(ValueError):  # no number is beyond the largest
                more.append(typed("peak_lr", rate * rate / next_rate))
    return more or None


__all__ = ["base_of", "end", "growth", "run", "values_in_words"]
