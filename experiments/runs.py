"""The runs of an experiment as a sweep."""

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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax

from nf_resnets import schemes, training, translation
from nf_resnets.data import fingerprint
from nf_resnets.models import DTYPES, dtype_of
from nf_resnets.sweep import Callbacks, engine
from nf_resnets.sweep.command import refuse_without_rows, say_what_is_damaged
from nf_resnets.sweep.engine import Outcome
from nf_resnets.sweep.programs import store_programs
from nf_resnets.sweep.rows import Rows, plain
from nf_resnets.training import Plan, Program, Start, hosts
from nf_resnets.training.display import Display
from nf_resnets.training.preemption import Preemption
from nf_resnets.training.tensorboard import TensorBoard
from nf_resnets.training.wandb import WandB

from .experiment import FIGURE, Experiment, Point, Setup, standard_columns
from .folder import CurvesFile, ResultsFolder, Row
from .table import counted

NEVER = 10**9
"""``evaluate_every`` of a run that is tested at its end only."""

CURVE_POINTS = 2_000
"""The most points of a run's curve that are kept; shorter runs keep every step."""


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
        self.plans: dict[str, Plan] = {}
        self._programs: dict[str, Any] = {}  # by name
        values = dataclasses.asdict(settings)
        fixed = {name: of for name, of in values.items() if name not in experiment.grid}
        self._fixed = json.dumps(fixed, sort_keys=True)
        self._data = "" if data is None else fingerprint(data)
        self._lock, self._splits = threading.Lock(), {}
        self.probe = None if experiment.probe is None else self._probe
        self.finish = None if experiment.finish is None else self._finish

    def add(self, points: Sequence[Point]) -> list[Plan]:
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
                plan = Plan(
                    settings={**named, **point.key},
                    label=point.name,
                    program=name,
                    data=self._data,
                    num_steps=point.num_steps,
                    steps_per_epoch=point.steps_per_epoch,
                    step_cost=step_cost,
                    evaluate_every=1 if self.experiment.test_every_epoch else NEVER,
                    curve_points=CURVE_POINTS,
                )
                self.points[plan.key], self.plans[plan.key] = point, plan
                found.append(plan)
        return found

    def _step_cost(self, point: Point) -> float:
        """Of a step, examples times layers; 1 where that is not known."""
        try:
            return (1.0 + self.setup(point).model.num_branches) * max(1, point.batch_size)
        except Exception:  # the run says it, when it is its turn
            return 1.0

    def setup(self, point: Point) -> Setup:
        """What the runs of a program share; the network computes in what the command says."""
        found = self.experiment.setup(self.settings, self.data, point)
        if self._optimizer:
            rule = functools.partial(found.optimizer, name=self._optimizer)
            found = found._replace(optimizer=rule)
        if self._dtype == DTYPES[0]:
            return found
        return found._replace(model=found.model.clone(dtype=dtype_of(self._dtype)))

    def check(self, plan: Plan, devices_per_run: int) -> None:
        """Refuses a batch that several processes cannot share; one process uses fewer devices.

        All processes raise, so that none waits for another.
        """
        point = self.points[plan.key]
        if jax.process_count() == 1 or not point.batch_size:
            return
        model, _, steps, _ = self.setup(point)
        parts = devices_per_run * getattr(steps, "micro_batches", 1)
        if slices_of(model, point) % parts:
            raise SystemExit(
                f"{plan.label}: a batch of {slices_of(model, point)} parts found; expected a "
                f"multiple of {parts}, some for each of {devices_per_run} devices."
            )

    def build(
        self,
        plan: Plan,
        mesh: jax.sharding.Mesh,
        *,
        runs_per_device: int = 1,
        vectorize: Literal["auto", "vmap", "loop"] = "auto",
    ) -> Program:
        """Compiles the program of a run, on as many devices as divide its batch."""
        point = self.points[plan.key]
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

    def start(self, plan: Plan) -> Start:
        """The start of a run: scheme, seed and hyper-parameters."""
        return self.points[plan.key].start

    def _probe(self, program: Program, plan: Plan, state: Any, step: int) -> Mapping[str, Any]:
        point = self.points[plan.key]
        return self.experiment.probe(self.settings, self.data, point, program, state, step)

    def _finish(self, program: Program, plan: Plan, state: Any) -> Mapping[str, Any]:
        point = self.points[plan.key]
        return self.experiment.finish(self.settings, self.data, point, program, state)

    def row(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run for ``rows.csv``, from its row in the sweep."""
        point, experiment = self.points[run["key"]], self.experiment
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

    ``failures`` has the traceback of each run that failed, or whose row could not be made, by the
    run's label.
    """

    def __init__(
        self, task: ExperimentTask, folder: ResultsFolder, curves: Mapping[str, CurvesFile]
    ) -> None:
        self.task, self.folder, self.curves = task, folder, curves
        self.failures: dict[str, str] = {}
        self._lock = threading.Lock()
        self._ended: list[Mapping[str, Any]] = []
        self._wait_until = 0.0

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: None

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run has ended."""
        with self._lock:
            self._ended.append(plain(result))
            if time.monotonic() < self._wait_until:
                return
            ended, self._ended = self._ended, []
        # Files are written whole, which takes longer the more runs there are: at most a twentieth
        # of the time goes there.
        start = time.monotonic()
        self.write(ended)
        end = time.monotonic()
        self._wait_until = end + 19 * (end - start)

    def write(self, runs: Iterable[Mapping[str, Any]]) -> None:
        """Writes the rows of those runs that have ended and have no row yet."""
        with self._lock:
            for run in runs:
                point = self.task.points[run["key"]]
                if run["state"] not in ("finished", "diverged"):
                    self.failures[point.name] = run.get("traceback") or str(run["message"])
                elif not self.folder.has(**point.key):
                    try:
                        self._add(point, run)
                    except Exception:  # an error in one row must not prevent the others
                        self.failures[point.name] = traceback.format_exc()

    def _add(self, point: Point, run: Mapping[str, Any]) -> None:
        row = self.task.row(run)
        for name, lines in self.task.experiment.lines.items():
            self.curves[name].put(point.key, lines.of(self.task.settings, point, run))
        self.folder.add(row)


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

    Interrupted runs continue from their checkpoints. The folder holds rows and checkpoints; it is
    None on all processes but process 0, which writes. ``draw(points)`` draws those made so far.
    """
    writer = None if folder is None else RowWriter(task, folder, curves)
    with contextlib.ExitStack() as stack:
        rows: Rows | None = None
        while True:
            there = hosts.broadcast(None if folder is None else folder.rows)
            points = task.experiment.points(task.settings, task.data, there)
            missing = [point for point in points if not _has(there, point)]
            if not missing or hosts.broadcast(bool(writer and writer.failures)):
                break
            plans = task.add(missing)
            if rows is None:
                rows = stack.enter_context(_open(folder))
                rows.retry()
                stop = stack.enter_context(Preemption())
            if writer is not None:
                found = rows.read()  # those that ended just before an earlier process did
                writer.write(found[plan.key] for plan in plans if plan.key in rows)
            outcome = _sweep(
                task, plans, rows, writer, command, stop, functools.partial(draw, points)
            )
            if writer is not None:
                writer.write(outcome.rows.values())
            if outcome.stopped:
                return Result(points, {}, stop.exit_code or 128 + signal.SIGTERM)
        if folder is not None and rows is None:
            are = "is" if len(points) == 1 else "are"
            print(f"{counted(points, 'run')} {are} there already.")
    failures = {} if writer is None else writer.failures
    if folder is not None and not failures:
        for place in ("checkpoints", "compiled"):
            shutil.rmtree(folder.path / place, ignore_errors=True)
    return Result(points, failures)


def _open(folder: ResultsFolder | None) -> Any:
    """The rows of the sweep, held by this process; a folder of an earlier version is refused."""
    if folder is None:
        return Rows(Path(), writes=False).open()
    store_programs(folder.path)
    try:
        if folder.rows:
            refuse_without_rows(folder.path)
        rows = Rows(folder.path)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    say_what_is_damaged(rows)
    return rows.open()


def _has(rows: Sequence[Row], point: Point) -> bool:
    key = {name: str(value) for name, value in point.key.items()}
    return any(key.items() <= row.items() for row in rows)


def _sweep(
    task: ExperimentTask,
    plans: Sequence[Plan],
    rows: Rows,
    writer: RowWriter | None,
    command: Any,
    stop: Preemption,
    draw: Callable[[], None],
) -> Outcome:
    with contextlib.ExitStack() as stack:
        callbacks: list[Any] = []
        if writer is not None:
            left = [plan for plan in plans if plan.key not in rows]
            display = stack.enter_context(Display(left, describe=task.experiment.describe))
            callbacks = [writer, display]
            drawer = Drawer(draw, display.on_message, writer.folder.path / FIGURE)
            callbacks.append(stack.enter_context(drawer))
            if command.tensorboard:
                boards = TensorBoard(rows.folder / "tensorboard", tell=display.on_message)
                callbacks.append(stack.enter_context(boards))
            if command.wandb:
                callbacks.append(stack.enter_context(WandB(rows.folder)))
        return engine.make(
            task, plans, rows, callback=Callbacks(*callbacks),
            stop=lambda: stop.requested, execution=command.execution,
        )  # fmt: skip


__all__ = ["ExperimentTask", "Result", "RowWriter", "make_runs"]
