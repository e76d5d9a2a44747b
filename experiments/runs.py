"""The runs of an experiment as a sweep: entered in a ledger, trained, and read back as rows."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import re
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from nf_resnets import places, schemes, training, translation
from nf_resnets.models import DTYPES, dtype_of
from nf_resnets.sweep import Callbacks
from nf_resnets.sweep.display import Display
from nf_resnets.sweep.ledger import Ledger, open_ledger
from nf_resnets.sweep.programs import store_programs
from nf_resnets.sweep.task import Resolved
from nf_resnets.sweep.worker import Outcome, enter, run_sweep
from nf_resnets.training import Program, Start, hosts
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

from .experiment import FIGURE, Experiment, Point, Setup, standard_columns
from .folder import CurvesFile, ResultsFolder, Row
from .table import counted

NEVER = 10**9
"""``evaluate_every`` of a run that is tested at its end only."""

CURVE_POINTS = 2_000
"""The most points that the ledger keeps of a run's curve; shorter runs keep every step."""


class ExperimentTask:
    """The runs of an experiment as a :class:`nf_resnets.sweep.task.Task`."""

    def __init__(
        self,
        experiment: Experiment,
        settings: Any,
        data: Any,
        dtype: str = DTYPES[0],
        optimizer: str | None = None,  # by default the experiment's own
    ) -> None:
        self.experiment, self.settings, self.data = experiment, settings, data
        self._dtype, self._optimizer = dtype, optimizer
        self.points: dict[str, Point] = {}
        self.runs: dict[str, Resolved] = {}
        self._programs: dict[str, Any] = {}  # by name
        values = dataclasses.asdict(settings)
        fixed = {name: of for name, of in values.items() if name not in experiment.grid}
        self._fixed = json.dumps(fixed, sort_keys=True)
        self._lock, self._splits = threading.Lock(), {}
        self.probe = None if experiment.probe is None else self._probe
        self.finish = None if experiment.finish is None else self._finish

    def add(self, points: Sequence[Point]) -> list[Resolved]:
        """Resolves points, in the order of their priority, then the longest programs first."""
        programs: dict[Any, list[Point]] = {}
        for point in points:
            programs.setdefault((point.priority, point.program), []).append(point)

        def order(group: Sequence[Point]) -> tuple[int, int]:
            return group[0].priority, -sum(point.num_steps for point in group)

        found = []
        for group in sorted(programs.values(), key=order):
            # The same in every process, whatever else there is to be made: without the addresses of
            # functions, of which a scheme's constants may be made.
            program = re.sub(r" at 0x[0-9a-f]+", "", repr(group[0].program))
            words = [self.experiment.name, self._fixed, program]
            words += [self._dtype] if self._dtype != DTYPES[0] else []
            words += [self._optimizer] if self._optimizer else []
            name = hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]
            if self._programs.setdefault(name, group[0].program) != group[0].program:
                raise ValueError(f"two programs are {program}; expected functions of other names.")
            step_cost = self._step_cost(group[0])
            for point in group:
                named = {
                    "experiment": self.experiment.name,
                    "settings": self._fixed,
                    "dtype": self._dtype,
                }
                if self._optimizer:
                    named["optimizer"] = self._optimizer
                run = Resolved(
                    settings={**named, **point.key},
                    label=point.name,
                    program=name,
                    num_steps=point.num_steps,
                    steps_per_epoch=point.steps_per_epoch,
                    step_cost=step_cost,
                    evaluate_every=1 if self.experiment.test_every_epoch else NEVER,
                    curve_points=CURVE_POINTS,
                )
                self.points[run.key], self.runs[run.key] = point, run
                found.append(run)
        return found

    def _step_cost(self, point: Point) -> float:
        """Of a step, examples times layers; 1 where that is not known."""
        try:
            return (1.0 + self.setup(point).model.num_branches) * max(1, point.batch_size)
        except Exception:  # the run says it, when it is its turn
            return 1.0

    def resolve(self, settings: Mapping[str, Any]) -> Resolved:
        """The run of these settings."""
        return self.runs[Resolved(settings, "", "", 0, 0).key]

    def setup(self, point: Point) -> Setup:
        """What the runs of a program share; the network computes in what the command says."""
        found = self.experiment.setup(self.settings, self.data, point)
        if self._optimizer:
            rule = functools.partial(found.optimizer, name=self._optimizer)
            found = found._replace(optimizer=rule)
        if self._dtype == DTYPES[0]:
            return found
        return found._replace(model=found.model.clone(dtype=dtype_of(self._dtype)))

    def check(self, run: Resolved, devices_per_run: int) -> None:
        """Refuses a batch that several processes cannot share; one process uses fewer devices.

        All processes raise, so that none waits for another.
        """
        point = self.points[run.key]
        if jax.process_count() == 1 or not point.batch_size:
            return
        model, _, steps, _ = self.setup(point)
        parts = devices_per_run * getattr(steps, "micro_batches", 1)
        if slices_of(model, point) % parts:
            raise SystemExit(
                f"{run.label}: a batch of {slices_of(model, point)} parts found; expected a "
                f"multiple of {parts}, some for each of {devices_per_run} devices."
            )

    def build(
        self,
        run: Resolved,
        mesh: jax.sharding.Mesh,
        *,
        runs_per_device: int = 1,
        vectorize: Literal["auto", "vmap", "loop"] = "auto",
    ) -> Program:
        """Compiles the program of a run, on as many devices as divide its batch."""
        point = self.points[run.key]
        model, optimizer, steps, data = self.setup(point)
        mesh = divisible_mesh(mesh, model, point, getattr(steps, "micro_batches", 1))
        given = (model, data, optimizer, mesh, steps, point.start)
        if isinstance(steps, training.StreamedTraining):
            return training.streamed_program(*given)
        if isinstance(steps, translation.TokenTraining):
            return translation.token_program(*given)
        with self._lock:  # all programs share one copy of the data on the devices
            place = id(data), mesh
            if place not in self._splits:
                self._splits[place] = training.device_splits(data, mesh)
        return training.image_program(
            *given,
            splits=self._splits[place],
            runs_per_device=runs_per_device,
            vectorize=vectorize,
        )

    def start(self, run: Resolved) -> Start:
        """The start of a run: scheme, seed and hyper-parameters."""
        return self.points[run.key].start

    def _probe(self, program: Program, run: Resolved, state: Any, step: int) -> Mapping[str, Any]:
        point = self.points[run.key]
        return self.experiment.probe(self.settings, self.data, point, program, state, step)

    def _finish(self, program: Program, run: Resolved, state: Any) -> Mapping[str, Any]:
        point = self.points[run.key]
        return self.experiment.finish(self.settings, self.data, point, program, state)

    def row(self, key: str, run: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run for ``rows.csv``, from its row in the ledger and its ``epochs``."""
        point, experiment = self.points[key], self.experiment
        model = experiment.setup(self.settings, self.data, point).model
        found = standard_columns(point, model, run) | experiment.row(self.settings, point, run)
        return {name: found[name] for name in experiment.columns}


def slices_of(model: Any, point: Point) -> int:
    """How many parts a batch can be cut into: its examples, or BatchNorm's slices."""
    batch_norm = schemes.get(model.scheme).anatomy.has_batch_norm
    return math.gcd(model.bn_groups, point.batch_size) if batch_norm else point.batch_size


def divisible_mesh(
    mesh: jax.sharding.Mesh, model: Any, point: Point, micro_batches: int
) -> jax.sharding.Mesh:
    """The mesh of as many devices as divide a batch; with several processes, of all devices."""
    if jax.process_count() > 1 or not point.batch_size:
        return mesh
    sweep, data = mesh.devices.shape
    data = math.gcd(slices_of(model, point) // micro_batches, data)
    return training.make_mesh(sweep, data, devices=mesh.devices[:, :data].flatten().tolist())


class RowWriter:
    """A callback that writes the row of each run that ends; it ignores all other events.

    ``failures`` has the traceback of each run whose row could not be made, by the run's label.
    """

    def __init__(
        self,
        task: ExperimentTask,
        ledger: Ledger,
        folder: ResultsFolder,
        curves: Mapping[str, CurvesFile],
    ) -> None:
        self.task, self.ledger, self.folder, self.curves = task, ledger, folder, curves
        self.failures: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended: list[Resolved] = []
        self._wait_until = 0.0

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: None

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run has ended."""
        if state not in ("finished", "diverged"):
            return
        with self._lock:
            self._ended.append(self.task.runs[key])
            if time.monotonic() < self._wait_until:
                return
            ended, self._ended = self._ended, []
        # Reading takes longer the more runs there are: at most a twentieth of the time goes there.
        start = time.monotonic()
        self.write(ended)
        end = time.monotonic()
        self._wait_until = end + 19 * (end - start)

    def write(self, runs: Sequence[Resolved]) -> None:
        """Writes the rows of those runs that have ended and have no row yet."""
        with self._lock:
            for run in self.ledger.rows([run.key for run in runs]):
                point = self.task.points[run["key"]]
                if run["state"] not in ("finished", "diverged") or self.folder.has(**point.key):
                    continue
                run |= {"epochs": self.ledger.epochs(run["key"])}
                try:
                    row = self.task.row(run["key"], run)
                    for name, lines in self.task.experiment.lines.items():
                        self.curves[name].put(point.key, lines.of(self.task.settings, point, run))
                    self.folder.add(row)
                except Exception:  # an error in one row must not prevent the others
                    self.failures[point.name] = traceback.format_exc()


class Drawer:
    """A callback and a context manager: draws the figure again as runs end, in a thread of its own.

    Args:
      draw: draws it; what it raises is left to the last drawing, since some rows are missing here.
      tell: gets one sentence when there is a first picture.
      path: of the picture.
    """

    def __init__(self, draw: Callable[[], None], tell: Callable[[str], None], path: Path) -> None:
        self._draw, self._tell, self._path = draw, tell, path
        self._ended, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="drawer", daemon=True)

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: None

    def on_run_end(self, *_: Any) -> None:
        """A run has ended."""
        self._ended.set()

    def __enter__(self) -> Drawer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        is_first = True
        while self._ended.wait() and not self._over.is_set():
            self._ended.clear()
            start = time.monotonic()
            with contextlib.suppress(Exception):
                self._draw()
                if is_first:
                    self._tell(f"The figure so far, drawn again as runs end: {self._path}")
                is_first = False
            # At most a twentieth of the time goes there.
            self._over.wait(19 * (time.monotonic() - start))


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of :func:`make_runs`."""

    points: Sequence[Point]  # of all runs that the experiment asks for
    failures: Mapping[str, str]  # tracebacks by label
    exit_code: int = 0  # 128 + the signal, if one stopped it


def make_runs(
    task: ExperimentTask,
    folder: ResultsFolder | None,
    curves: Mapping[str, CurvesFile],
    command: Any,
    draw: Callable[[Sequence[Point]], None],
) -> Result:
    """Makes the missing runs, and those that the experiment asks for once it has their rows.

    Interrupted runs continue from their checkpoints. The folder holds ledger and checkpoints; it is
    None on all processes but process 0, which writes. ``draw(points)`` draws those made so far.
    """
    out = Path() if folder is None else folder.path
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        writer, stop = None, stack.enter_context(Preemption())
        while True:
            rows = hosts.broadcast(None if folder is None else folder.rows)
            points = task.experiment.points(task.settings, task.data, rows)
            missing = [point for point in points if not _has(rows, point)]
            if not missing or hosts.broadcast(bool(failures)):
                break
            runs = task.add(missing)
            if folder is not None:
                if writer is None:
                    store_programs(folder.path)
                    ledger = stack.enter_context(open_ledger(_place(command, folder)))
                    writer = RowWriter(task, ledger, folder, curves)
                enter(runs, writer.ledger)
                writer.ledger.retry(keys=[run.key for run in runs])
                writer.write(runs)  # those that ended just before an earlier process did
            drawn = functools.partial(draw, points)
            outcome = _sweep(task, runs, writer, out, command, stop, drawn)
            if writer is not None:
                writer.write(runs)
            if outcome.stopped:
                return Result(points, {}, stop.exit_code or 128 + signal.SIGTERM)
            if writer is not None:
                failures = _failures(task, writer.ledger, runs) | writer.failures
        if folder is not None and writer is None:
            are = "is" if len(points) == 1 else "are"
            print(f"{counted(points, 'run')} {are} there already.")
    if folder is not None and not failures:
        for place in ("checkpoints", "compiled"):
            shutil.rmtree(out / place, ignore_errors=True)
    return Result(points, failures)


def _place(command: Any, folder: ResultsFolder) -> str | Path:
    """The path of the ledger, or the URL of its database."""
    if command.ledger is None or "://" in command.ledger:
        return command.ledger or folder.path / "ledger.db"
    return places.expanded(command.ledger, "--ledger")


def _has(rows: Sequence[Row], point: Point) -> bool:
    key = {name: str(value) for name, value in point.key.items()}
    return any(key.items() <= row.items() for row in rows)


def _sweep(
    task: ExperimentTask,
    runs: Sequence[Resolved],
    writer: RowWriter | None,
    out: Path,
    command: Any,
    stop: Preemption,
    draw: Callable[[], None],
) -> Outcome:
    with contextlib.ExitStack() as stack:
        callbacks: list[Any] = []
        if writer is not None:
            rows = writer.ledger.rows([run.key for run in runs])
            display = Display(runs, rows=rows, describe=task.experiment.describe)
            callbacks = [writer, stack.enter_context(display)]
            drawer = Drawer(draw, display.on_message, writer.folder.path / FIGURE)
            callbacks.append(stack.enter_context(drawer))
            if command.tensorboard:
                boards = TensorBoard(out / "tensorboard", tell=display.on_message)
                callbacks.append(stack.enter_context(boards))
            if command.wandb:
                callbacks.append(stack.enter_context(WandB(out)))
        return run_sweep(
            task,
            runs,
            None if writer is None else writer.ledger,
            out / "checkpoints",
            Callbacks(*callbacks),
            stop=lambda: stop.requested,
            execution=command.execution,
        )


def _failures(task: ExperimentTask, ledger: Ledger, runs: Sequence[Resolved]) -> dict[str, str]:
    """The last traceback of each failed run, or its message, by label."""
    found = {}
    for run in ledger.rows([run.key for run in runs]):
        if run["state"] in ("failed", "oom"):
            traces = [attempt["traceback"] for attempt in ledger.attempts(run["key"])]
            traces = [trace for trace in traces if trace] or [run["message"]]
            found[task.points[run["key"]].name] = traces[-1]
    return found


__all__ = ["ExperimentTask", "Result", "RowWriter", "make_runs"]
