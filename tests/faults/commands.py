"""The commands in processes of their own, to be killed and stopped, and their uninterrupted twins.

A process that has imported everything, and made no array, forks them: one starts in a fraction of
a second. The runs of a sweep are softmax regressions on the digits, whose steps are made to last.
"""

from __future__ import annotations

import atexit
import dataclasses
import functools
import importlib
import itertools
import json
import math
import multiprocessing.forkserver
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import forkserver
from pathlib import Path
from unittest import mock

from tests.training.small import repeatable

ROOT = Path(__file__).parents[2]
# Runs of 66 steps, 22 an epoch, of 4 ms each.
TINY = ("--model", "wrn-10-1", "--stem-channels", "4", "--epochs", "3", "--save-seconds", "0")
FOUR = ("--grid", "peak_lr=2^-3:2^-2", "seed=0:1")
STEP_SECONDS = 0.004


# --- In the test -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Process:
    """A command that has been started; its folder has a log of events and what it says."""

    forked: multiprocessing.process.BaseProcess
    folder: Path

    def send(self, number):
        os.kill(self.forked.pid, number)

    def wait(self, seconds=120):
        """Its exit code, -9 when it was killed."""
        self.forked.join(seconds)
        code = self.forked.exitcode
        assert code is not None, f"still at work after {seconds} s: {self.said()}"
        return code

    def kill(self):
        self.forked.kill()  # which may have come to its end before
        assert self.wait() in (-signal.SIGKILL, 0), self.said()

    def said(self):
        return (self.folder / f"{self.forked.pid}.txt").read_text()

    def events(self, kind=None):
        path = self.folder / f"{self.forked.pid}.events"
        # The last line may be on its way.
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [event for event in found if kind in (None, event["kind"])]

    def until(self, kind, count=1, seconds=120):
        """Waits for so many events of a kind."""
        end = time.monotonic() + seconds
        while True:
            self.forked.join(0.01)
            code = self.forked.exitcode
            if len(self.events(kind)) >= count:
                return
            assert code is None, f"ended without {kind}: {self.said()}"
            assert time.monotonic() < end, f"no {kind} in {seconds} s: {self.said()}"


def start(folder, *arguments, out=None, prepare=None):
    """Starts ``nf-resnets ARGUMENTS --out OUT`` (a sweep of four runs where there are none).

    ``prepare`` is a function of this module by name, and its arguments, that the process calls
    first. ``out`` is by default ``sweep`` in the folder.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    if not arguments or arguments[0].startswith("-"):
        arguments = ("sweep", *FOUR, *TINY, *arguments)
    arguments = [*arguments, "--out", str(out or Path(folder) / "sweep")]
    prepare = [prepare] if isinstance(prepare, str) else prepare
    forked = _context().Process(
        target=work, args=(arguments, str(folder), prepare, f"{_home()}/compiled"), daemon=True
    )
    forked.start()
    return Process(forked, Path(folder))


def run(folder, *arguments, code=0, seconds=240, **options):
    """Starts a command and waits for its end."""
    process = start(folder, *arguments, **options)
    assert process.wait(seconds) == code, process.said()
    return process


@functools.cache
def twin(*arguments):
    """The folder of a command that nobody interrupted; each is run once in a session."""
    folder = Path(tempfile.mkdtemp(dir=_home()))
    run(folder, *arguments)
    return folder


def rows(folder):
    """What a sweep's folder says of its runs, without what another try would change."""
    from nf_resnets.sweep import Rows

    return repeatable(Rows(Path(folder) / "sweep").read())


def assert_twins(folder, *arguments):
    """The same runs with the same numbers, bit for bit, and nothing left of the checkpoints."""
    expected = rows(twin(*arguments))
    assert rows(folder) == expected and len(expected) == 4
    assert {row["state"] for row in expected.values()} == {"finished"}
    assert not (Path(folder) / "sweep" / "checkpoints").exists()
    # They have learnt: none ends where it began, or as another one does.
    losses = {row["test_loss"] for row in expected.values()}
    assert len(losses) == 4 and max(losses) < 2


@functools.cache
def _home():
    home = tempfile.mkdtemp(prefix="nf_resnets_faults_")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


@functools.cache
def _context():
    """Where processes are forked by one that has imported what commands need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["nf_resnets.cli.networks", "nf_resnets.cli.sweep", "nf_resnets.plotting.sweep",
         "sklearn.datasets", "tests.training.linear", "tests.faults.commands"]
    )  # fmt: skip
    given = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    with mock.patch.dict(os.environ, given):
        forkserver.ensure_running()
    return context


# --- In the command's process --------------------------------------------------------------------


class Log:
    """A callback that appends each event, as one line and at once, to a file."""

    def __init__(self, folder):
        path = Path(folder) / f"{os.getpid()}.events"
        self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, kind, **fields):
        os.write(self.file, f"{json.dumps({'kind': kind, **fields})}\n".encode())

    def __getattr__(self, name):
        kind = name.removeprefix("on_")
        return lambda *values: self.write(kind)

    def on_run_begin(self, key, label, settings, step, num_steps):
        self.write("run_begin", key=key, step=step)

    def on_step(self, key, step, curve):
        self.write("step", key=key, step=step)


def listen(log):
    """Has a log hear of all events, and of saves that are on disk."""
    from nf_resnets.sweep import engine
    from nf_resnets.trained import run
    from nf_resnets.training import wave
    from nf_resnets.training.callbacks import Callbacks
    from nf_resnets.training.checkpoint import Checkpoints

    compiled, save = engine.Programs._compile, Checkpoints.save

    def compiling(*args, **options):
        log.write("compile_begin")
        return compiled(*args, **options)

    def saving(*args, **options):
        save(*args, **options)
        log.write("saved")

    def heard(train):
        def hearing(*args, hooks, **options):
            hooks = dataclasses.replace(hooks, callback=Callbacks(hooks.callback, log))
            # Signals are noticed, and trainings saved, between two calls.
            options = {"save_seconds": 0.0, **options}
            return train(*args, hooks=hooks, call_seconds=0.02, **options)

        return hearing

    wave.MOST_SAVING = math.inf
    for module in (engine, run):
        module.train = heard(module.train)
    engine.Programs._compile, Checkpoints.save = compiling, saving


def softmax_regression():
    """In the place of the networks of a sweep, which take long to compile."""
    from nf_resnets import training
    from nf_resnets.sweep.image_task import ImageTask
    from tests.training import linear

    def start(self, plan):
        return linear.state(plan.settings["seed"], plan.settings["peak_lr"])

    def build(self, plan, mesh, *, runs_per_device=1):
        return training.image_program(
            linear.apply, self.dataset("digits"), linear.optimizer, mesh,
            training.ImageTraining(64, plan.num_steps), start(self, plan),
            runs_per_device=runs_per_device,
        )  # fmt: skip

    ImageTask.start, ImageTask.build = start, build


def change_steps(before):
    """Has ``before(counts)`` called before the steps of every program that is built."""
    from nf_resnets.sweep.image_task import ImageTask

    build = ImageTask.build

    def changed(*args, **options):
        program = build(*args, **options)
        steps = lambda states, counts: before(counts) or program.steps(states, counts)  # noqa: E731
        return dataclasses.replace(program, steps=steps)

    ImageTask.build = changed


def last():
    """Steps that last for a minute."""
    change_steps(lambda counts: time.sleep(60))


def compile_for_long():
    """Has every program take a minute."""
    from nf_resnets.sweep.image_task import ImageTask

    ImageTask.build = lambda *args, **options: time.sleep(60)


def at_row(number, act, path):
    """Moves or removes a folder before so many rows are written."""
    from nf_resnets.sweep import Rows

    add, calls = Rows.add, itertools.count(1)

    def acting(self, rows):
        if next(calls) == number:
            os.rename(path, f"{path}-away") if act == "move" else shutil.rmtree(path, True)
        return add(self, rows)

    Rows.add = acting


def kill_at(place, when="before", number=1):
    """Has the process killed before, after or in the middle of a call of a method."""
    module, _, path = place.partition(":")
    owner_name, _, name = path.rpartition(".")
    owner = importlib.import_module(module)
    owner = getattr(owner, owner_name) if owner_name else owner
    method, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(method)
    def killing(*args, **options):
        is_it = next(calls) == number
        if is_it and when == "within":  # of bytes to be written, the first half is
            os.pwrite(args[0]._file, args[1][: len(args[1]) // 2], os.fstat(args[0]._file).st_size)
        if is_it and when != "after":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **options)
        if is_it:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)


def work(arguments, folder, prepare, cache):
    """What a command's process does."""
    code = 1
    try:
        # Whoever started the tests may have it ignored, as a shell does for the background.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        said = os.open(f"{folder}/{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
            os.dup2(file, number)
        code = command(arguments, folder, prepare, cache)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def command(arguments, folder, prepare, cache):
    """The command itself; its exit code."""
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    from nf_resnets import __main__, plotting

    plotting.sweep_figures = lambda *args, **options: []
    if arguments[0] == "sweep":
        softmax_regression()
    change_steps(lambda counts: time.sleep(STEP_SECONDS * counts.max()))
    listen(Log(folder))
    if prepare:
        name, *given = prepare
        globals()[name](*given)
    sys.argv = ["nf-resnets", *arguments]
    try:
        return __main__.main()
    except SystemExit as leaving:
        return leaving.code
