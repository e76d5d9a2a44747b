"""What the commands that make a sweep share: options, the grid that grows, pictures."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import datetime
import io
import json
import math
import os
import shlex
import shutil
import signal
import sys
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import jax
import tyro

from nf_resnets import command_line, data, places, plotting, schemes
from nf_resnets.plotting.sweep import table
from nf_resnets.plotting.whole import whole_file
from nf_resnets.sweep import for_topology, programs, worker
from nf_resnets.sweep.claims import Clock, device_name
from nf_resnets.sweep.display import Display
from nf_resnets.sweep.export import to_csv
from nf_resnets.sweep.image_task import (
    Sweep,
    make_sweep,
    refuse_indivisible,
    refuse_other_settings,
)  # fmt: skip
from nf_resnets.sweep.ledger import LONGEST_LEASE, Ledger, LedgerError, open_ledger
from nf_resnets.sweep.programs import Execution, store_programs
from nf_resnets.sweep.regimes import regimes_of
from nf_resnets.sweep.schema import redacted
from nf_resnets.sweep.select import METRICS as TARGETS
from nf_resnets.sweep.select import Isolation, Optimum, Row, Rule, grouped, isolated, optima
from nf_resnets.sweep.settings import (
    RunSettings,
    shown,
    swept,
    typed,
    value_text,
)  # fmt: skip
from nf_resnets.sweep.targets import StepsToTarget, common_target, knees, steps_to_target
from nf_resnets.sweep.task import Resolved
from nf_resnets.topology import topology_devices
from nf_resnets.training import hosts
from nf_resnets.training.callbacks import Callback, Callbacks
from nf_resnets.training.checkpoint import CheckpointError
from nf_resnets.training.compiling import duration_text
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB


@dataclasses.dataclass(frozen=True)
class Options:
    """How a sweep is made; nothing of it changes a run's numbers."""

    out: Path = Path("runs/sweep")
    """The sweep's folder: ledger, checkpoints of unfinished runs, compiled programs, report.
    Started again with the same folder, the command makes only what is missing; several may be at
    work on one folder."""
    ledger: str | None = None
    """Another ledger than the folder's: a file, or postgresql://USER@HOST/DATABASE for many
    machines."""
    dry_run: bool = False
    """Print the grid, the programs and how long it will take, from measured steps; make nothing."""
    topology: str | None = None
    """With --dry-run: compile every program for this TPU slice, such as v5e:4x4, on this machine,
    which needs none, and print what it needs of the chips and the least time it can take."""
    extend: int = 0
    """While a best rate lies at the edge of the grid, add a rate beyond it; at most so many times
    on each side."""
    best: Rule = "strict"
    """How rates are compared of which some seeds diverged. strict: the more diverged, the further
    behind. trimmed: as long as half of them finished, by the mean over those that did."""
    target: str = ""
    """A metric and its value, such as train_loss=0.5 or test_accuracy=0.9, to which the steps are
    counted at each batch size; by default the lowest training loss that all batch sizes reach."""
    retry: bool = False
    """Try runs again that failed or ran out of memory."""
    tensorboard: bool = False
    """Write TensorBoard logs into the folder's tensorboard/."""
    wandb: bool = False
    """Log with Weights & Biases into the folder's wandb/: offline, unless WANDB_MODE is online."""
    data_dir: str | None = None
    """Where tensorflow-datasets keeps its data; by default its own default. Digits need none."""
    execution: Annotated[Execution, tyro.conf.OmitArgPrefixes] = Execution()
    coordinator: str | None = None
    """HOST:PORT of process 0, where several processes work as one; on a Cloud TPU leave it out."""
    num_processes: int | None = None
    """How many processes there are."""
    process_id: int | None = None
    """The index of this process, from 0."""


@dataclasses.dataclass(frozen=True)
class Result:
    """What there is of a sweep when its command ends."""

    rows: list[dict[str, Any]]  # of the grid's runs, as the ledger has them
    axes: Mapping[str, tuple[Any, ...]]  # with the rates that were added
    base: Mapping[str, Any]  # the other settings that are not the defaults
    counts: Mapping[str, int]  # of the runs in each state
    clock: Clock
    exit_code: int  # 0; 1 if runs failed; 143 and the like after a signal
    failures: Mapping[str, str]  # tracebacks, by key
    compiled: int  # programs
    makers: list[dict[str, Any]]  # devices and versions, how many of the runs they made, and when
    faults: Sequence[str] = ()  # what could not be written of the runs that were made
    curves: Sequence[Mapping[str, Any]] = ()  # of the runs at the best rates, to be drawn


STOPPED = "Stopped; all runs are kept where they stood, and the same command goes on."


def states_in_words(counts: Mapping[str, int]) -> str:
    """How many runs are in each state, on one line."""
    return ", ".join(f"{number:,} {state}" for state, number in counts.items() if number)


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


def run(options: Options, axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any],
        title: str) -> Result | None:  # fmt: skip
    """Makes what is missing of a sweep.

    Args:
      options: of the command line.
      axes: of each swept setting its values.
      base: the other settings, where they are not the defaults.
      title: what the first line calls it.

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
                return _run(options, sweep, title)
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


def check(options: Options) -> None:
    """Refuses options that are out of their range."""
    given = {**vars(options), **vars(options.execution)}
    for name, least, most in (
        ("extend", 0, 100), ("workers", 0, 1000), ("devices_per_run", 0, 10**6),
        ("runs_per_device", 0, 10**4), ("checkpoint_epochs", 0, 10**9),
        ("checkpoint_seconds", 0, 10**9), ("lease_seconds", 1, LONGEST_LEASE),
        ("max_attempts", 1, 10**6),
    ):  # fmt: skip
        value = given[name]
        if not least <= value <= most:
            expected = f"at least {least}" if not value > most else f"at most {most:,}"
            raise SystemExit(
                f"--{name.replace('_', '-')} {shown(value)} found; expected {expected}."
            )
    fraction = options.execution.checkpoint_fraction
    if not 0 < fraction <= 1:
        raise SystemExit(
            f"--checkpoint-fraction {fraction:g} found; expected more than 0 and at most 1."
        )
    parse_target(options.target)
    if options.topology and not options.dry_run:
        raise SystemExit(
            f"--topology {options.topology} found without --dry-run; expected both, since programs "
            "for that slice are compiled here and cannot run here."
        )
    if options.out == Path():
        raise SystemExit("--out names no folder; expected one, such as --out runs/my_sweep.")


def parse_target(text: str) -> tuple[str, float | None]:
    """The metric of ``--target`` and its value; without one the training loss, and None.

    Raises:
      SystemExit: if it names no metric or no number.

    Example:
      >>> parse_target("test_accuracy=0.9"), parse_target("")
      (('test_accuracy', 0.9), ('train_loss', None))
    """
    if not text:
        return "train_loss", None
    metric, _, number = text.partition("=")
    with contextlib.suppress(ValueError):
        if metric in TARGETS and math.isfinite(float(number)):
            return metric, float(number)
    raise SystemExit(
        f"--target {shown(text)} found; expected METRIC=NUMBER with one of {', '.join(TARGETS)}."
    )


def placed(options: Options) -> Options:
    """The options with ``~`` expanded in the names of folder and ledger."""
    ledger = options.ledger
    if ledger is not None and "://" not in ledger:
        ledger = str(places.expanded(ledger, "--ledger"))
    return dataclasses.replace(options, out=places.expanded(options.out, "--out"), ledger=ledger)


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


def _run(options: Options, sweep: Sweep, title: str) -> Result | None:
    store_programs(options.out)
    with contextlib.ExitStack() as stack:
        ledger = None
        if hosts.is_process_zero():
            places.try_folder(options.out, "--out")
            where = options.ledger or options.out / "ledger.db"
            ledger = stack.enter_context(open_ledger(where))
            _begin(options, sweep, ledger)
            print(
                f"{title}: {sweep.size:,} runs, {len(sweep.programs)} programs on "
                f"{device_name()}; results in {options.out.resolve()}",
                flush=True,
            )
        stop = Preemption()
        sweep, outcome = _train_and_grow(options, sweep, ledger, stop)
        # Another process than this one can have been told to stop.
        code = stop.exit_code or (143 if outcome.stopped else 0)
        if code == 128 + signal.SIGTERM and ledger is not None:
            # Who sends it does not wait for figures.
            print(f"{states_in_words(outcome.counts)}\n{STOPPED}", flush=True)
            raise SystemExit(code)
        if ledger is not None:
            return _result(options, sweep, ledger, outcome, code)
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
    options: Options, sweep: Sweep, ledger: Ledger | None, stop: Preemption
) -> tuple[Sweep, worker.Outcome]:
    """Trains what is missing, and adds rates for as long as the best one lies at an edge."""
    grown = dict.fromkeys(("lowest", "highest"), 0)
    while True:
        outcome = _train(options, sweep, ledger, stop)
        if outcome.stopped or (stop.requested and jax.process_count() == 1):
            return sweep, outcome
        more = None
        if ledger is not None and options.extend:
            rows = sweep.rows(ledger)
            more = growth(rows, sweep.axes, grown, options.extend, options.best)
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
        _curves(ledger, rows, sweep.axes, options.best),
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


def _curves(
    ledger: Ledger, rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Any], rule: Rule
) -> list[dict[str, Any]]:
    """Training loss after every epoch of the runs at the best rates, at most of `MOST_CURVES`."""
    groups = {}
    for best in _best(rows, axes, rule)[0]:
        if best.metric != METRICS[0] or best.best is None:
            continue
        at_best = {**best.group, "peak_lr": best.best, "state": "finished"}
        for row in rows:
            if all(row[name] == at_best[name] for name in at_best):
                groups[row["key"]] = dict(best.group)
    chosen = list(groups)[:MOST_CURVES]
    curves: dict[str, dict[str, list[Any]]] = {
        key: {"step": [], "train_loss": []} for key in chosen
    }
    for epoch in ledger.epochs(chosen):
        if epoch["train_loss"] is not None:
            for name, values in curves[epoch["key"]].items():
                values.append(epoch[name])
    return [
        {"group": groups[key], **curve} for key, curve in curves.items() if len(curve["step"]) > 1
    ]


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
    most: int, rule: Rule = "strict",
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
        for metric in ("test_accuracy", "train_loss")
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


# What a person looks at


METRICS = ("test_accuracy", "train_loss")
MOST_CURVES = 100
"""Runs whose curves are drawn."""


def draw(
    result: Result, folder: Path, *, title: str, rule: Rule = "strict",
    chance: float | None = None, failed: Callable[[str, Exception], Any] | None = None,
    target: str = "",
) -> list[str]:  # fmt: skip
    """Chooses the best rates, fits the regimes, and draws everything into a folder.

    Args:
      result: the runs and their grid.
      folder: where to.
      title: what the sweep is.
      rule: how rates are compared of which some seeds diverged.
      chance: the accuracy of guessing, 0 to 1.
      failed: called with the name of a file that cannot be made, and why; by default that is an
        error.
      target: as ``Options.target``.

    Returns:
      The names of the files; none if there is no run.
    """
    rows, axes = result.rows, result.axes
    if not rows:
        return []
    best, names = _best(rows, axes, rule)
    sizes = len(axes.get("batch_size", ())) > 1
    fits = regimes_of(best) if sizes else []
    reached = _targets(rows, list(best[0].group), target) if sizes else []
    falls = knees(reached)
    found = plotting.SweepResults(
        title=title,
        subtitle=in_one_line(rows[0], axes, result.base),
        rows=rows,
        optima=[dataclasses.asdict(one) for one in best],
        regimes=[dataclasses.asdict(fit) for fit in fits],
        chance=chance,
        command=command_of(axes, result.base),
        curves=result.curves,
        facts={f"{maker['runs']} runs made": maker for maker in result.makers},
        failures=[
            {"key": row["key"], "state": row["state"], "message": row["message"],
             "traceback": result.failures.get(row["key"], "")}
            for row in rows
            if row["state"] in ("failed", "oom")
        ],
        names=names,
        isolations=[dataclasses.asdict(one) for one in _isolations(rows, axes, rule)],
        targets=[dataclasses.asdict(one) for one in reached],
        knees=[dataclasses.asdict(fit) for fit in falls],
    )  # fmt: skip
    return plotting.sweep_figures(folder, found, failed=failed)


def _best(
    rows: Sequence[Mapping[str, Any]], axes: Mapping[str, Sequence[Any]], rule: Rule
) -> tuple[list[Optimum], dict[str, str]]:
    """The best rates by both metrics, and what to call the schemes."""
    fields = [name for name in axes if name not in ("peak_lr", "seed")]
    by = list(dict.fromkeys(["scheme", *fields, "batch_size"]))
    best = [one for metric in METRICS for one in optima(rows, metric=metric, by=by, rule=rule)]
    return best, {name: schemes.get(name).title for name in {row["scheme"] for row in rows}}


def _targets(rows: Sequence[Row], by: Sequence[str], target: str) -> list[StepsToTarget]:
    """The steps to the target, or to the one that all groups reach; none if no run has finished."""
    metric, value = parse_target(target)
    if value is None:
        value = common_target(rows, metric=metric, by=by)
    return [] if value is None else steps_to_target(rows, value, metric=metric, by=by)


def _isolations(
    rows: Sequence[Row], axes: Mapping[str, Sequence[Any]], rule: Rule
) -> list[Isolation]:
    """Each setting by itself, by both metrics and for each scheme, where several are swept."""
    fields = [name for name in swept(axes) if name not in ("scheme", "seed")]
    if len(fields) < 2:
        return []
    return [
        isolated(of, field, fields=fields, metric=metric, rule=rule, group={"scheme": scheme})
        for metric in METRICS
        for (scheme,), of in grouped(rows, ("scheme",)).items()
        for field in fields
    ]


def command_of(axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]) -> str:
    """A command that makes the same runs, its settings as axes of one value.

    Example:
      >>> command_of({"scheme": ("fixup",), "peak_lr": (0.25, 0.5)}, {"epochs": 2.0})
      "nf-resnets sweep --grid scheme=fixup 'peak_lr=2^-2,2^-1' epochs=2.0"
    """

    def exact(name: str, value: Any) -> str:
        text = value_text(name, value)  # which may round
        return str(value) if isinstance(value, float) and not text.startswith("2^") else text

    named = {**axes, **{name: (value,) for name, value in base.items()}}
    words = (
        f"{name}={','.join(exact(name, value) for value in values)}"
        for name, values in named.items()
    )
    return shlex.join(["nf-resnets", "sweep", "--grid"]) + " " + " ".join(map(shlex.quote, words))


def in_one_line(
    row: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], base: Mapping[str, Any]
) -> str:
    """The settings that all runs share, as far as they matter, on one line."""
    budget = f"{row['steps']:,} steps" if row["steps"] else f"{row['epochs']:g} epochs"
    seeds = len(axes.get("seed", (0,)))
    words = [
        "" if "model" in axes else row["model"],
        "" if "dataset" in axes else f"on {row['dataset']}",
        "" if {"epochs", "steps"} & set(axes) else budget,
        f"{seeds} seed{'s' if seeds > 1 else ''}",
    ]
    shown = ("model", "dataset", "epochs", "steps", "seed", "batch_size", "peak_lr", "scheme")
    words += [
        f"{n.replace('_', ' ').replace('bn ', 'BatchNorm ')} {value_text(n, value)}"
        for n, value in base.items()
        if n not in shown
    ]
    return ", ".join(word for word in words if word)


def finish(result: Result, options: Options, *, title: str) -> int:
    """Draws everything, prints the table and the last words; returns the exit code.

    It is 1 as well if a file could not be made, of which each is said with a sentence: the runs are
    done, and what else can be made of them is result.
    """
    folder = places.expanded(options.out)
    faults = list(result.faults)

    def failed(name: str, error: Exception) -> None:
        what = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        faults.append(f"{folder / name} cannot be made: {' '.join(what.split())}.")

    datasets = {row["dataset"] for row in result.rows}
    chance = None
    if len(datasets) == 1:
        with contextlib.suppress(ValueError, OSError, ImportError):
            chance = 1 / data.load(datasets.pop(), options.data_dir).num_classes
    files: list[str] = []
    try:
        files = draw(
            result, folder, title=title, rule=options.best, chance=chance, failed=failed,
            target=options.target,
        )  # fmt: skip
    except Exception as error:  # the runs are done, and what else there is to say is said
        failed("report.html", error)
    try:
        _write_settings(result, folder)
    except OSError as error:
        failed("settings.json", error)
    print()
    if "table.txt" in files:
        print((folder / "table.txt").read_text())
    elif result.rows:
        best, names = _best(result.rows, result.axes, options.best)
        print(table([dataclasses.asdict(one) for one in best], names=names) + "\n")
    print(states_in_words(result.counts))
    if result.rows and result.counts.get("diverged") == len(result.rows):
        print("All runs diverged: lower the learning rates.")
    print(_time(result))
    print(f"In {folder.resolve()}:")
    for file in [*files, "settings.json", "rows.csv", *([] if options.ledger else ["ledger.db"])]:
        if (folder / file).is_file():
            print(f"  {file}")
    if result.exit_code == 1:
        print("Failed runs are in the report with their tracebacks; --retry tries them again.")
    if result.exit_code > 1:
        print(STOPPED)
    sys.stdout.flush()
    for fault in faults:
        print(fault, file=sys.stderr)
    return result.exit_code or int(bool(faults))


def _write_settings(result: Result, folder: Path) -> None:
    """Keeps the grid, on what its runs were made, and what the last worker spent."""
    record: dict[str, Any] = {
        "grid": {name: list(values) for name, values in result.axes.items()},
        "settings": dict(result.base),
        "made": result.makers,
        "runs": dict(result.counts),
    }
    file = folder / "settings.json"
    if result.compiled:
        # A start that finds all done has nothing to say of what it took.
        seconds = result.clock.seconds()
        record["seconds"] = {kind: round(spent, 1) for kind, spent in seconds.items()}
        record["cores"] = os.cpu_count()
    elif file.exists():
        try:
            before = dict(json.loads(places.read_file(file)))
            record |= {name: before[name] for name in ("seconds", "cores") if name in before}
        except (ValueError, TypeError, RecursionError):
            kept = file.with_name(f"damaged-{uuid.uuid4().hex[:8]}-settings.json")
            file.rename(kept)
            print(f"{file} was damaged, and is made anew; what was there is {kept.name}.",
                  file=sys.stderr)  # fmt: skip
    with whole_file(file) as new:
        new.write_text(json.dumps(record, indent=2) + "\n")


def _time(result: Result) -> str:
    seconds = result.clock.seconds()
    computing, compiling = (duration_text(seconds[kind]) for kind in ("computing", "compiling"))
    programs = f"{result.compiled} program{'' if result.compiled == 1 else 's'}"
    text = f"{computing} of computing, {compiling} of compiling {programs}"
    if seconds["computing"]:
        text += (
            f"; {100 * result.clock.fraction_outside():.1f}% of the time outside compiled functions"
        )
    return text + "."


__all__ = [
    "METRICS", "STOPPED", "Options", "Result", "base_of", "check", "draw", "end", "finish",
    "growth", "in_one_line", "parse_target", "run", "states_in_words", "values_in_words",
]  # fmt: skip
