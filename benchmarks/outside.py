"""What of a training run's time is not the compiled training step: per cent of the wall time.

Target: input, logging, evaluation and checkpoints in all under 3%. They are:

- input: order, gathering, augmentation and normalisation, which are compiled into the step. Epochs
  of the program's steps take turns with epochs of bare ones: forward, backward and update on one
  batch that lies on the device;
- evaluation: the test split, by a clock inside the run. Testing 10,000 images costs about a
  fifteenth of training on 50,000, so it depends on how often a run is tested (``evaluate_every``
  of a sweep, whose last step is always followed by a test);
- logging: numbers fetched, rows written, the run claimed and ended in the ledger; by the clock of a
  run without checkpoints, all that is neither step nor test;
- checkpoints: after epochs, as far as they take 2% of the time, written while the next epoch is
  made; what a run with them is longer outside steps and tests, and the processor's time of the
  thread that writes them, as if nothing of it were hidden.

Then a sweep of many runs of one epoch, 50 ms each, in which the ledger counts. It must not grow
slow: the runs of the last tenth take as long as those of the first.

Cost on two cores: nine minutes; half a minute with ``--quick``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from benchmarks.rows import Row
from benchmarks.timing import Ratio, interleaved, ratio
from nf_resnets import data, training
from nf_resnets.sweep import Callbacks, enter, image_task, make_sweep, open_ledger, run_sweep
from nf_resnets.sweep.programs import Execution
from nf_resnets.sweep.task import Resolved
from nf_resnets.training.checkpoint import Checkpoints

TITLE = "Outside the training step (per cent of a run's wall time)"
LIMIT = 3.0
"""Per cent that input, logging, evaluation and checkpoints may take of a run's wall time."""
LIMIT_OF_TINY_RUNS = 5.0
"""Per cent that a sweep of runs of 50 ms may spend outside its compiled functions."""


def unavailable() -> str | None:
    return None


def measure(*, quick: bool) -> Iterator[Row]:
    on_cpu = jax.default_backend() == "cpu"
    digits = {"model": "wrn-16-1", "peak_lr": 0.05, "epochs": 6.0 if quick else 10.0}
    yield from of_a_run("wrn-16-1, digits", digits, sparse=5, rounds=2 if quick else 5)
    if quick and on_cpu:
        return
    # On a CPU a hundredth of CIFAR-10: five training images for each test image, as there. Saves
    # and rows of an epoch count a hundredfold then.
    images = 512 if on_cpu else 50_000
    cifar = {
        "model": "wrn-16-4", "dataset": "cifar10", "batch_size": 128, "padding": 4, "flip": True,
        "peak_lr": 0.05, "epochs": 4.0,
    }  # fmt: skip
    title = f"wrn-16-4, {images} + {images // 5} images of 32x32"
    load = functools.cache(lambda name: random_images(images, images // 5))
    yield from of_a_run(title, cifar, sparse=4, rounds=2, load=load)
    yield from of_tiny_runs(200 if quick else 500)


def random_images(train: int, test: int) -> data.Dataset:
    """A data set of CIFAR-10's kind, of noise."""
    rng = np.random.default_rng(0)

    def split(count: int) -> data.Split:
        return data.Split(
            rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8),
            rng.integers(0, 10, count, dtype=np.int32),
        )

    names = tuple(str(label) for label in range(10))
    return data.from_splits("cifar10", split(train), split(test), names)


class Clocked:
    """A function that adds up the seconds spent in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.seconds = 0.0

    def __call__(self, *arguments: Any) -> Any:
        start = time.perf_counter()
        # Waiting for the result belongs to it; on a CPU it is waited for in any case.
        found = jax.block_until_ready(self.function(*arguments))
        self.seconds += time.perf_counter() - start
        return found


@contextlib.contextmanager
def clocked_saves() -> Iterator[list[float]]:
    """The seconds that the processor worked for each checkpoint written inside."""
    seconds: list[float] = []
    save = Checkpoints.save

    def clocked(self: Checkpoints, step: int, tree: Any) -> None:
        start = time.thread_time()
        save(self, step, tree)
        seconds.append(time.thread_time() - start)

    with mock.patch.object(Checkpoints, "save", clocked):
        yield seconds


class Compiled:
    """A sweep's task whose program is compiled already."""

    def __init__(self, task: Any, program: training.Program) -> None:
        self._task, self._program = task, program

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def build(self, *_: Any, **__: Any) -> training.Program:
        return self._program


class Runs:
    """Makes a sweep's runs one after another, as a worker does, and adds up where the time goes.

    Args:
      program: has been compiled.
      settings: of the runs, but for their seeds.
      folder: for ledger and checkpoints.
      runs: how many calls there will be.
      checkpoint_epochs: epochs between two checkpoints; 0 for none.
      load: loads the data set.

    Attributes:
      walls: seconds of each run.
      in_steps: of these, in training steps.
      in_tests: of these, in tests.
      saving: seconds of the processor for checkpoints.
    """

    def __init__(
        self,
        program: training.Program,
        settings: dict[str, Any],
        folder: Path,
        *,
        runs: int,
        checkpoint_epochs: int = 1,
        load: Callable[[str], data.Dataset] = data.load,
    ) -> None:
        self._steps, self._test = Clocked(program.steps), Clocked(program.test)
        clocked = dataclasses.replace(program, steps=self._steps, test=self._test)
        sweep = make_sweep({"seed": range(runs)}, settings, load=load)
        self._task, self._left = Compiled(sweep.task, clocked), list(sweep.runs)
        folder.mkdir(parents=True)
        self.ledger, self._folder = open_ledger(folder / "ledger.db"), folder
        enter(sweep.runs, self.ledger)
        # Two per cent for checkpoints, as by the command.
        self._how = Execution(workers=1, checkpoint_epochs=checkpoint_epochs)
        self.walls: list[float] = []
        self.in_steps: list[float] = []
        self.in_tests: list[float] = []
        self.saving: list[float] = []

    def __call__(self) -> None:
        """Makes the next run."""
        self._run = self._left.pop()
        self._steps.seconds = self._test.seconds = 0.0
        with clocked_saves() as saves:
            start = time.perf_counter()
            run_sweep(
                self._task, [self._run], self.ledger, self._folder / "checkpoints", Callbacks(),
                execution=self._how, devices=jax.devices()[:1],
            )  # fmt: skip
            self.walls.append(time.perf_counter() - start)
        self.in_steps.append(self._steps.seconds)
        self.in_tests.append(self._test.seconds)
        self.saving.append(sum(saves))

    def outside(self) -> list[float]:
        """Of each run the seconds neither in training steps nor in tests."""
        times = zip(self.walls, self.in_steps, self.in_tests, strict=True)
        return [wall - steps - tests for wall, steps, tests in times]

    def close(self) -> None:
        """Checks that all runs made all their steps and epochs.

        Raises:
          RuntimeError: if one did not, which would have been fast.
        """
        epochs = len(self.ledger.epochs())
        expected = len(self.walls) * -(-self._run.num_steps // self._run.steps_per_epoch)
        done = [row for row in self.ledger.rows() if row["steps_done"] == self._run.num_steps]
        self.ledger.close()
        if len(done) != len(self.walls) or epochs != expected:
            raise RuntimeError(
                f"{len(done)} runs of {len(self.walls)} made all their steps, with {epochs} epochs "
                f"of {expected}."
            )


def of_a_run(
    title: str,
    settings: dict[str, Any],
    *,
    sparse: int,
    rounds: int,
    load: Callable[[str], data.Dataset] = data.load,
) -> Iterator[Row]:
    """Rows for a run of a sweep: tested after every epoch, and after every so many.

    Args:
      title: of the case.
      settings: of the run.
      sparse: epochs between two tests, where they are not one.
      rounds: in which the run and its parts take turns.
      load: loads the data set.
    """
    sweep = make_sweep({"seed": (0,)}, settings, load=load)
    (run,) = sweep.runs
    program = sweep.task.build(run, training.make_mesh(devices=jax.devices()[:1]))
    turns = interleaved(epochs_of(program, sweep, run), 3 * rounds)
    with tempfile.TemporaryDirectory() as name:
        make = functools.partial(Runs, program, runs=rounds, load=load)
        seldom = {**settings, "evaluate_every": sparse}
        cases = {
            "each": make(settings, Path(name) / "each"),
            "seldom": make(seldom, Path(name) / "seldom"),
            "unsaved": make(seldom, Path(name) / "unsaved", checkpoint_epochs=0),
        }
        interleaved(cases, rounds, warm_up=0)
        for case in cases.values():
            case.close()
    each, seldom_, unsaved = cases.values()
    inputs = statistics.median(differences(turns["input"], turns["bare"]))
    # Less than nothing is noise, and pays for nothing else.
    inputs = max(0.0, inputs / statistics.median(turns["input"]))
    logging = statistics.median(unsaved.outside())
    epochs = -(-run.num_steps // run.steps_per_epoch)
    about = f"{title}, {epochs} epochs of {run.steps_per_epoch} steps"
    every = f"tested after every {sparse}th epoch and at the end"
    for case, how in ((seldom_, every), (each, "tested after every epoch")):
        parts = zip(case.in_steps, case.in_tests, case.outside(), case.saving, strict=True)
        whole = [inputs * a + tests + rest + saving for a, tests, rest, saving in parts]
        yield Row(
            "outside", about, f"in all, {how}", percent(whole, case.walls), LIMIT,
            numbers={"run_s": statistics.median(case.walls)},
        )  # fmt: skip
    saved = zip(seldom_.outside(), seldom_.saving, strict=True)
    for what, part, whole in (
        ("input", differences(turns["input"], turns["bare"]), turns["input"]),
        (f"evaluation, {every}", seldom_.in_tests, seldom_.walls),
        ("evaluation, tested after every epoch", each.in_tests, each.walls),
        ("logging", unsaved.outside(), unsaved.walls),
        ("checkpoints", [rest - logging + saving for rest, saving in saved], seldom_.walls),
    ):
        yield Row(
            "outside", about, what, percent(part, whole),
            numbers={"ms": 1e3 * statistics.median(part), "of_ms": 1e3 * statistics.median(whole)},
        )  # fmt: skip


def epochs_of(
    program: training.Program, sweep: Any, run: Resolved
) -> dict[str, Callable[[], None]]:
    """An epoch of the program's steps, and one of as many bare ones.

    Bare steps are those of the program, in a loop like the program's, on one batch that lies on the
    device: no order, no gathering, no augmentation, no curve.
    """
    # At a rate that hardly moves the run. Many steps on one batch would learn it by heart, with
    # gradients below the normal floats, which processors are slow at.
    start = dataclasses.replace(sweep.task.start(run), hyper={**sweep.task.start(run).hyper})
    start.hyper["learning_rate"] = 1e-6  # type: ignore[index]
    count = min(run.num_steps, run.steps_per_epoch)
    states = program.begin(program.empty(), 0, start)
    state = training.unstack(program.begin(program.empty(), 0, start), 0)
    (kind,) = sweep.kinds
    dataset = sweep.task.dataset(kind.settings.dataset)
    batch = fixed_batch(dataset, kind.settings.batch_size)
    step = functools.partial(
        training.replica_step,
        apply_fn=training.train_apply(program.model),
        optimizer=functools.partial(image_task.optimizer, kind),
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def steps(state: training.TrainState, batch: Any) -> training.TrainState:
        return jax.lax.fori_loop(0, count, lambda _, state: step(state, batch)[0], state)

    def bare() -> None:
        nonlocal state
        state = jax.block_until_ready(steps(state, batch))

    def with_input() -> None:
        nonlocal states
        # From the first step on each time, so that the call is not cut by the end of an epoch.
        found = program.steps(dataclasses.replace(states, step=states.step * 0), np.full(1, count))
        states = jax.block_until_ready(found.states)
        if int(np.asarray(found.counts)[0]) != count or bool(np.asarray(found.diverged)[0]):
            raise RuntimeError("the run diverged; a run that ends early is no measure.")

    return {"bare": bare, "input": with_input}


def fixed_batch(dataset: data.Dataset, batch_size: int) -> dict[str, jax.Array]:
    """The first images, normalised, with labels and keys."""
    images = data.normalize(
        dataset.train.images[:batch_size], np.asarray(dataset.mean), np.asarray(dataset.std)
    )
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), batch_size)
    labels = jax.numpy.asarray(dataset.train.labels[:batch_size])
    return {"image": images, "label": labels, "keys": keys}


def of_tiny_runs(points: int) -> Iterator[Row]:
    """Rows for a sweep of many runs of one epoch, on a network of 4 channels.

    Raises:
      RuntimeError: if not all of them made all their steps.
    """
    base = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 1.0}
    sweep = make_sweep({"seed": range(points // 2), "peak_lr": (0.05, 0.1)}, base)
    with tempfile.TemporaryDirectory() as name, open_ledger(Path(name) / "ledger.db") as ledger:
        enter(sweep.runs, ledger)
        folder = Path(name) / "checkpoints"
        outcome = run_sweep(sweep.task, sweep.runs, ledger, folder, Callbacks())
        rows = ledger.rows()
    unfinished = sum(row["steps_done"] != sweep.runs[0].num_steps for row in rows)
    if unfinished:
        raise RuntimeError(f"{unfinished} of {points} tiny runs did not make all their steps.")
    seconds = outcome.clock.seconds()
    per_cent = 100 * outcome.clock.fraction_outside()
    about = f"sweep of {points} runs of one epoch, wrn-10-1 of 4 channels, digits"
    yield Row(
        "outside", about, "outside compiled functions (tests count as inside)",
        Ratio(per_cent, per_cent, per_cent), LIMIT_OF_TINY_RUNS,
        numbers={
            "outside_ms_a_run": 1e3 * seconds["outside"] / points,
            "computing_ms_a_run": 1e3 * seconds["computing"] / points,
        },
    )  # fmt: skip
    ended = sorted(row["finished_at"] for row in rows)
    gaps = [later - earlier for earlier, later in zip(ended, ended[1:], strict=False)]
    tenth = max(4, len(gaps) // 10)
    # Of the first tenth the beginning is left out, in which the program was compiled. Means, since
    # the runs of two threads can end in pairs.
    first = statistics.fmean(gaps[tenth // 2 : tenth // 2 + tenth])
    growth = statistics.fmean(gaps[-tenth:]) / first
    yield Row(
        "outside", about, "time a run, last tenth / first (no per cent)",
        Ratio(growth, growth, growth),
    )  # fmt: skip


def differences(longer: list[float], shorter: list[float]) -> list[float]:
    """What one thing took more than another, round by round."""
    return [a - b for a, b in zip(longer, shorter, strict=True)]


def percent(part: list[float], whole: list[float]) -> Ratio:
    """How many per cent of a time went into a part of it."""
    found = ratio(part, whole)
    return Ratio(100 * found.value, 100 * found.low, 100 * found.high)


__all__ = [
    "LIMIT", "LIMIT_OF_TINY_RUNS", "TITLE", "Runs", "measure", "of_a_run", "of_tiny_runs",
    "unavailable",
]  # fmt: skip
