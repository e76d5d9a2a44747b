"""The runs of an experiment as a sweep: entered in a ledger, trained, and read back as rows."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import math
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
from nf_resnets.sweep import Callbacks
from nf_resnets.sweep.display import Display
from nf_resnets.sweep.ledger import Ledger, open_ledger
from nf_resnets.sweep.task import Resolved
from nf_resnets.sweep.tensorboard import TensorBoard
from nf_resnets.sweep.worker import Outcome, enter, run_sweep
from nf_resnets.training import Program, Start, hosts
from nf_resnets.training.preemption import Preemption

from .experiment import Experiment, Point, standard_columns
from .folder import CurvesFile, ResultsFolder, Row

NEVER = 10**9
"""Epochs between two tests of a run that is tested at its end only."""

CURVE_POINTS = 2_000
"""Of a run in the ledger, at most: every step of the shorter runs."""


class ExperimentTask:
    """What a sweep trains for an experiment; a :class:`nf_resnets.sweep.task.Task`."""

    def __init__(self, experiment: Experiment, settings: Any, data: Any) -> None:
        self.experiment, self.settings, self.data = experiment, settings, data
        self.points: dict[str, Point] = {}
        self.runs: dict[str, Resolved] = {}
        values = dataclasses.asdict(settings)
        fixed = {name: of for name, of in values.items() if name not in experiment.grid}
        self._fixed = json.dumps(fixed, sort_keys=True)
        self._lock, self._splits = threading.Lock(), {}
        self.probe = None if experiment.probe is None else self._probe
        self.finish = None if experiment.finish is None else self._finish

    def add(self, points: Sequence[Point]) -> list[Resolved]:
        """Resolves points: those of a lower priority first, and of these the longest programs."""
        programs: dict[Any, list[Point]] = {}
        for point in points:
            programs.setdefault((point.priority, point.program), []).append(point)

        def order(group: Sequence[Point]) -> tuple[int, int]:
            return group[0].priority, -sum(point.num_steps for point in group)

        found = []
        for group in sorted(programs.values(), key=order):
            # The same in every process, whatever else there is to be made.
            name = json.dumps([self.experiment.name, self._fixed, repr(group[0].program)])
            for point in group:
                named = {"experiment": self.experiment.name, "settings": self._fixed}
                run = Resolved(
                    settings={**named, **point.key},
                    label=point.name,
                    program=hashlib.sha256(name.encode()).hexdigest()[:12],
                    num_steps=point.num_steps,
                    steps_per_epoch=point.steps_per_epoch,
                    evaluate_every=1 if self.experiment.test_every_epoch else NEVER,
                    curve_points=CURVE_POINTS,
                )
                self.points[run.key], self.runs[run.key] = point, run
                found.append(run)
        return found

    def resolve(self, settings: Mapping[str, Any]) -> Resolved:
        """The run of these settings."""
        return self.runs[Resolved(settings, "", "", 0, 0).key]

    def check(self, run: Resolved, devices_per_run: int) -> None:
        """Refuses a run that several processes cannot share; one alone uses fewer devices.

        All processes leave, so that none waits for another.
        """
        point = self.points[run.key]
        if jax.process_count() == 1 or not point.batch_size:
            return
        model, _, steps, _ = self.experiment.setup(self.settings, self.data, point)
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
        model, optimizer, steps, data = self.experiment.setup(self.settings, self.data, point)
        mesh = divisible_mesh(mesh, model, point, getattr(steps, "micro_batches", 1))
        given = (model, data, optimizer, mesh, steps, point.start)
        if isinstance(steps, training.StreamedTraining):
            return training.streamed_program(*given)
        if isinstance(steps, translation.TokenTraining):
            return translation.token_program(*given)
        with self._lock:  # threads that compile share what is on the devices
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
        """Scheme, seed and numbers of a run."""
        return self.points[run.key].start

    def _probe(self, program: Program, run: Resolved, state: Any, step: int) -> Mapping[str, Any]:
        point = self.points[run.key]
        return self.experiment.probe(self.settings, self.data, point, program, state, step)

    def _finish(self, program: Program, run: Resolved, state: Any) -> Mapping[str, Any]:
        point = self.points[run.key]
        return self.experiment.finish(self.settings, self.data, point, program, state)

    def row(self, key: str, run: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run, of its row in the ledger with ``epochs``."""
        point, experiment = self.points[key], self.experiment
        model = experiment.setup(self.settings, self.data, point).model
        found = standard_columns(point, model, run) | experiment.row(self.settings, point, run)
        return {name: found[name] for name in experiment.columns}


def slices_of(model: Any, point: Point) -> int:
    """Into how many parts a batch can be cut: examples, or the slices that BatchNorm sees."""
    batch_norm = schemes.get(model.scheme).anatomy.has_batch_norm
    return math.gcd(model.bn_groups, point.batch_size) if batch_norm else point.batch_size


def divisible_mesh(
    mesh: jax.sharding.Mesh, model: Any, point: Point, micro_batches: int
) -> jax.sharding.Mesh:
    """As many of a mesh's devices as divide a batch; all of them where there are processes."""
    if jax.process_count() > 1 or not point.batch_size:
        return mesh
    sweep, data = mesh.devices.shape
    data = math.gcd(slices_of(model, point) // micro_batches, data)
    return training.make_mesh(sweep, data, devices=mesh.devices[:, :data].flatten().tolist())


class RowWriter:
    """A callback that writes the row of each run as it ends, and hears nothing else.

    ``failures`` has the traceback of each run of which no row could be made, by its label.
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
        # The ledger checks all of its runs: a twentieth of the time for that, however many.
        start = time.monotonic()
        self.write(ended)
        end = time.monotonic()
        self._wait_until = end + 19 * (end - start)

    def write(self, runs: Sequence[Resolved]) -> None:
        """Writes the rows of these runs, as far as they have ended and are not there yet."""
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
                except Exception:  # one row must not take the others with it
                    self.failures[point.name] = traceback.format_exc()


@dataclasses.dataclass(frozen=True)
class Made:
    """What came of an attempt to make all runs."""

    points: Sequence[Point]  # all that there are to be
    failures: Mapping[str, str]  # tracebacks, by label
    exit_code: int = 0  # 128 + the signal that stopped it


def make_runs(
    task: ExperimentTask,
    folder: ResultsFolder | None,
    curves: Mapping[str, CurvesFile],
    command: Any,
) -> Made:
    """Makes the runs that are missing, those that other runs ask for included.

    Runs that were cut off go on from their checkpoints. The folder, in which ledger and checkpoints
    lie, is None on all processes but the first, which writes.
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
                    use_compilation_cache(folder)
                    ledger = stack.enter_context(open_ledger(_place(command, folder)))
                    writer = RowWriter(task, ledger, folder, curves)
                enter(runs, writer.ledger)
                writer.ledger.retry(keys=[run.key for run in runs])
                writer.write(runs)  # that ended when an earlier process was about to end
            outcome = _sweep(task, runs, writer, out, command, stop)
            if writer is not None:
                writer.write(runs)
            if outcome.stopped:
                return Made(points, {}, stop.exit_code or 128 + signal.SIGTERM)
            if writer is not None:
                failures = _failures(task, writer.ledger, runs) | writer.failures
        if folder is not None and writer is None:
            print(f"All {len(points)} runs are there already.")
    if folder is not None and not failures:
        for place in ("checkpoints", "compiled"):
            shutil.rmtree(out / place, ignore_errors=True)
    return Made(points, failures)


def _place(command: Any, folder: ResultsFolder) -> str | Path:
    """Where the ledger is: a path, or the address of a database."""
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
) -> Outcome:
    with contextlib.ExitStack() as stack:
        callbacks: list[Any] = []
        if writer is not None:
            rows = writer.ledger.rows([run.key for run in runs])
            display = Display(runs, rows=rows, describe=task.experiment.describe)
            callbacks = [writer, stack.enter_context(display)]
            if command.tensorboard:
                boards = TensorBoard(out / "tensorboard", tell=display.on_message)
                callbacks.append(stack.enter_context(boards))
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
    """The last traceback, or the message, of each run that failed, by its label."""
    found = {}
    for run in ledger.rows([run.key for run in runs]):
        if run["state"] in ("failed", "oom"):
            traces = [attempt["traceback"] for attempt in ledger.attempts(run["key"])]
            traces = [trace for trace in traces if trace] or [run["message"]]
            found[task.points[run["key"]].name] = traces[-1]
    return found


def use_compilation_cache(folder: ResultsFolder) -> None:
    """Keeps compiled programs in the folder, so that a start that goes on finds them.

    On a CPU it would cost more than it saves: programs that call oneDNN cannot be stored, and the
    others make slower steps.
    """
    if jax.devices()[0].platform == "cpu":
        return
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        jax.config.update("jax_compilation_cache_dir", str((folder.path / "compiled").resolve()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


__all__ = ["ExperimentTask", "Made", "RowWriter", "make_runs"]
