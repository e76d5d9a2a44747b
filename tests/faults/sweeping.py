"""Workers in processes of their own, to be killed and stopped, and their uninterrupted twins.

A process that has imported everything, and made no array, forks the workers: one starts in a
fraction of a second, and finds its programs in a compilation cache that all share.

Usage: python -m tests.faults.sweeping    lines of JSON on stdin and stdout, see `serve`
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Runs that take a fraction of a second: 22 steps an epoch.
TINY = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 3.0}

# As many steps of runs without a network.
THREE_EPOCHS = {"num_steps": 66, "per_epoch": 22}

# Runs of one program, which all learn; twins of few grids are shared by all tests.
TWO = ["seed=0:2"]
FOUR = ["peak_lr=2^-3:2^-2", "seed=0:2"]

# What a repetition of a run changes, and nothing else does.
UNLIKE = ("seconds", "finished_at", "attempts", "attempt", "seconds_per_step", "resumed_at")


# --- In the test -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Process:
    """A worker that has been started.

    Attributes:
      pid: of its process.
      folder: where its ledger, its checkpoints and its log of events are.
    """

    pid: int
    folder: Path

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self, seconds=120):
        """Its exit code, -9 when it was killed."""
        code = ask(wait=self.pid, seconds=seconds)
        if code is None:
            self.send(signal.SIGKILL)
            raise TimeoutError(f"still at work after {seconds} s: {self.said()}")
        return code

    def kill(self):
        self.send(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def said(self):
        return (self.folder / f"{self.pid}.txt").read_text()

    def events(self, kind=None):
        return [event for event in events(self.folder, kind) if event["pid"] == self.pid]

    def until(self, kind, count=1, seconds=60, **fields):
        """Waits for the event, and gives it."""
        end = time.monotonic() + seconds
        while True:
            found = [e for e in self.events(kind) if fields.items() <= e.items()]
            if len(found) >= count:
                return found[count - 1]
            assert time.monotonic() < end, f"no {kind} in {seconds} s: {self.said()}"
            assert ask(wait=self.pid, seconds=0.005) is None, f"ended before: {self.said()}"


def start(
    folder,
    axes,
    base=(),
    *,
    prepare=None,
    terminate_at=None,
    terminate_by=signal.SIGTERM,
    devices=1,
    ledger=None,
    counting=None,
    **options,
):
    """Starts a worker on the ledger of a folder.

    Args:
      folder: is made where it is not there.
      axes: as on a command line.
      base: settings besides those of `TINY`.
      prepare: `"module:function"`, or `["module:function", argument...]`, called before it drives.
      terminate_at: sends itself a signal when a run has made so many steps.
      terminate_by: which signal.
      devices: how many devices it has.
      ledger: the ledger's URL; by default a file in the folder.
      counting: arguments of a :class:`tests.sweep.counting.Counting` whose runs take the place of
        networks, which have to be compiled.
      options: of `run_sweep`, and of how it makes runs.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "folder": str(folder),
        "axes": axes,
        "base": {**TINY, **dict(base)},
        "prepare": [prepare] if isinstance(prepare, str) else prepare,
        "terminate_at": terminate_at,
        "terminate_by": int(terminate_by),
        "devices": devices,
        "ledger": str(ledger or folder / "ledger.db"),
        "counting": counting,
        "options": {
            "lease_seconds": 600.0,
            "call_seconds": 0.05,
            "checkpoint_fraction": 1.0,
            **options,
        },
    }
    return Process(ask(start=request), folder)


def run(folder, axes, base=(), *, code=0, seconds=240, **options):
    """Starts a worker and waits for its end."""
    process = start(folder, axes, base, **options)
    found = process.wait(seconds)
    assert found == code, process.said()
    return process


def twin(axes, base=(), **options):
    """The folder of a sweep that nobody interrupted; each is made once in a session."""
    return _twin(json.dumps([axes, dict(base), options], sort_keys=True))


@functools.cache
def _twin(text):
    axes, base, options = json.loads(text)
    folder = new_folder()
    run(folder, axes, base, **options)
    assert_nothing_twice(folder)
    assert not trained_together(folder)
    return folder


def new_folder():
    """A folder that lasts as long as the session of tests."""
    return Path(tempfile.mkdtemp(dir=_home()))


@functools.cache
def _home():
    home = tempfile.mkdtemp(prefix="nf_resnets_faults_")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def ask(**question):
    server = _server()
    server.stdin.write(json.dumps(question) + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    assert answer, "the process that forks workers has ended"
    return json.loads(answer)


@functools.cache
def _server():
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.sweeping", f"{_home()}/compiled"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )

    def close():
        server.stdin.close()
        server.wait()

    atexit.register(close)
    return server


# --- What happened -----------------------------------------------------------------------------


def events(folder, kind=None):
    """What the workers of a folder have written into its log, in order."""
    path = Path(folder) / "events"
    # The last line may be on its way.
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [event for event in found if kind in (None, event["kind"])]


@contextlib.contextmanager
def opened(where):
    from nf_resnets.sweep.ledger import open_ledger

    where = Path(where) / "ledger.db" if "://" not in str(where) else where
    with open_ledger(where, create=False) as book:
        yield book


def outcome(where):
    """All that a ledger says of results: the same for twins, however often one was cut."""
    with opened(where) as book:
        rows, epochs = book.rows(), book.epochs()
    return {row["key"]: repeatable(row) for row in rows}, {
        (row["key"], row["epoch"]): repeatable(row) for row in epochs
    }


def repeatable(row):
    """A row without what a repetition of the run changes."""
    plain = {name: value for name, value in row.items() if name not in UNLIKE}
    return {**plain, "measures": repeatable(row["measures"])} if "measures" in row else plain


def parameters(folder):
    """Of each finished run the SHA-256 of its last parameters."""
    return {event["key"]: event["sha256"] for event in events(folder, "parameters")}


def assert_twins(folder, twin, *, ledger=None):
    """The same runs with the same ends and epochs, bit for bit, each once."""
    rows, epochs = outcome(ledger or folder)
    twin_rows, twin_epochs = outcome(twin)
    assert rows.keys() == twin_rows.keys()
    for key, row in twin_rows.items():
        assert rows[key] == row
    assert epochs.keys() == twin_epochs.keys()
    for key, row in twin_epochs.items():
        assert epochs[key] == row
    assert parameters(folder) == parameters(twin)
    assert left_behind(folder) == []


def rows_by(folder, field="seed"):
    """The ledger's rows by a setting that no two runs share."""
    rows, _ = outcome(folder)
    found = {row[field]: row for row in rows.values()}
    assert len(found) == len(rows)
    return found


def attempts(folder, key):
    with opened(folder) as book:
        return book.attempts(key)


def curve(folder, key, name="loss"):
    """What the log says of each step of a run: a list for each step, of one number unless twice."""
    found = collections.defaultdict(list)
    for event in events(folder, "step"):
        if event["key"] == key:
            first = event["step"] - len(event[name])
            for step, value in enumerate(event[name], first):
                found[step].append(value)
    return [found[step] for step in range(max(found, default=-1) + 1)]


def left_behind(folder):
    """Checkpoints that nobody needs any more."""
    place = Path(folder) / "checkpoints"
    return sorted(path.name for path in place.iterdir()) if place.is_dir() else []


def assert_moved(folder):
    """The runs have learnt: none ends where it began, or as another one does."""
    with opened(folder) as book:
        rows, epochs = book.rows(), book.epochs()
    losses = collections.defaultdict(list)
    for row in epochs:
        losses[row["key"]].append(row["train_loss"])
    for row in rows:
        if row["state"] == "finished":
            assert losses[row["key"]][-1] < losses[row["key"]][0]
            assert row["test_loss"] < 2.2 and row["test_accuracy"] > 0.15
    digests = parameters(folder)
    assert len(set(digests.values())) == len(digests)


def assert_nothing_twice(folder):
    """No epoch was trained again after it had been saved, and each run went on where it was saved.

    Returns:
      How many epochs were trained twice, because they were cut before they were saved.
    """
    saved = collections.Counter()
    tested = collections.Counter()
    ended = set()
    for event in events(folder):
        key, kind = event.get("key"), event["kind"]
        if kind == "saved":
            saved[key] = max(saved[key], event["step"])
        elif kind == "run_begin":
            assert key not in ended, f"{key} began again when it had ended"
            # A save may be whole, and its worker killed before it could say so.
            assert event["step"] >= saved[key], (
                f"{key} began at step {event['step']}, and was saved at {saved[key]}"
            )
        elif kind == "epoch":
            assert event["step"] > saved[key], f"{key} came to step {event['step']} again"
            tested[key, event["epoch"]] += 1
        elif kind == "run_end" and event["state"] != "waiting":
            ended.add(key)
    return sum(count - 1 for count in tested.values())


def trained_together(folder):
    """Pairs of processes that trained one run at the same time, as far as the log shows it."""
    holder, found = {}, set()
    for event in events(folder):
        key = event.get("key")
        if event["kind"] in ("run_begin", "run_end"):
            holder[key] = event["pid"] if event["kind"] == "run_begin" else None
        elif event["kind"] in ("step", "epoch") and holder.get(key) != event["pid"]:
            found.add((key, event["pid"], holder.get(key)))
    return found


# --- In the worker -----------------------------------------------------------------------------


class Log:
    """A callback that appends each event, as one line and at once, to a file that workers share."""

    def __init__(self, folder, terminate_at=None, terminate_by=signal.SIGTERM):
        self.terminate_at, self.terminate_by = terminate_at, terminate_by
        self.file = os.open(folder / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.pid = os.getpid()

    def write(self, kind, **fields):
        line = json.dumps({"kind": kind, "pid": self.pid, "time": time.time(), **fields})
        os.write(self.file, f"{line}\n".encode())

    def on_compile_begin(self, program, label):
        self.write("compile_begin", program=program)

    def on_compile_end(self, program, seconds, slots):
        self.write("compile_end", program=program, slots=slots)

    def on_run_begin(self, key, label, settings, step, num_steps):
        self.write("run_begin", key=key, step=step, num_steps=num_steps)

    def on_step(self, key, step, curve):
        numbers = {name: [float(value) for value in values] for name, values in curve.items()}
        self.write("step", key=key, step=step, **numbers)
        if self.terminate_at is not None and step >= self.terminate_at:
            self.terminate_at = None
            os.kill(self.pid, self.terminate_by)
            time.sleep(0.2)  # until the main thread has handled it

    def on_epoch(self, key, step, row):
        self.write("epoch", key=key, step=step, epoch=row["epoch"])

    def on_run_end(self, key, state, result):
        self.write("run_end", key=key, state=state, message=result.get("message"))

    def on_counts(self, counts):
        pass

    def on_message(self, text):
        self.write("message", text=text)


def listen(log):
    """Has saves and last parameters written down as well, which are no events."""
    import jax

    from nf_resnets.sweep import claims, worker

    save, end = claims.Checkpoints.save, worker.Slots._end
    names = {}
    checkpoints = claims.Claims.checkpoints

    def checkpoints_of(self, claim):
        found = checkpoints(self, claim)
        names[found.folder] = claim.key
        return found

    def save_and_say(self, step, tree):
        found = save(self, step, tree)
        log.write("saved", key=names[self.folder], step=step)
        return found

    def end_and_say(self, slot, state, message):
        if state == "finished":
            params = self.program.take(self.states, slot).params
            digest = hashlib.sha256()
            for path, leaf in jax.tree_util.tree_leaves_with_path(params):
                digest.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
                digest.update(leaf.tobytes())
            key = self.runs[slot].claim.key
            log.write("parameters", key=key, sha256=digest.hexdigest())
        end(self, slot, state, message)

    claims.Claims.checkpoints = checkpoints_of
    claims.Checkpoints.save = save_and_say
    worker.Slots._end = end_and_say


def work(request, cache):
    """What a worker's process does; the exit code."""
    devices = f"--xla_force_host_platform_device_count={request['devices']}"
    os.environ["XLA_FLAGS"] = devices
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    from nf_resnets.sweep import command, ledger, programs, worker
    from nf_resnets.training.preemption import Preemption

    folder = Path(request["folder"])
    log = Log(folder, request["terminate_at"], request["terminate_by"])
    listen(log)
    prepared = {}
    if request["prepare"]:
        name, *arguments = request["prepare"]
        module, _, function = name.partition(":")
        prepared = getattr(importlib.import_module(module), function)(*arguments) or {}
    with Preemption() as stop, ledger.open_ledger(request["ledger"]) as book:
        task, runs = entered(request, book, prepared)
        done = {row["key"] for row in book.rows() if row["state"] in ("finished", "diverged")}
        command._clear_leftovers(folder / "checkpoints", done)
        done = worker.run_sweep(
            task,
            runs,
            book,
            folder / "checkpoints",
            log,
            stop=lambda: stop.requested,
            execution=programs.Execution(**request["options"]),
        )
        log.write("left", counts=done.counts, programs=len(done.programs))
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    assert handlers == [signal.SIG_DFL, signal.default_int_handler]
    return stop.exit_code


def entered(request, book, prepared):
    """The task and the runs of a request, which are in the ledger now."""
    from nf_resnets.sweep import command, image_task, settings, worker

    axes = settings.parse(request["axes"])
    if request["counting"] is None:
        sweep = image_task.make_sweep(axes, request["base"], **prepared)
        command._enter(sweep, book)
        return sweep.task, sweep.runs
    from tests.sweep.counting import Counting

    task = Counting(**{**THREE_EPOCHS, **request["counting"]})
    points = itertools.product(*axes.values())
    runs = [task.resolve(dict(zip(axes, values, strict=True))) for values in points]
    worker.enter(runs, book)
    return task, runs


def change_programs(wrap):
    """Puts `wrap(program, run)` in the place of each program that is built from now on."""
    from nf_resnets.sweep.image_task import ImageTask
    from tests.sweep.counting import Counting

    def change(task):
        build = task.build
        task.build = lambda self, run, *args, **kwargs: wrap(build(self, run, *args, **kwargs), run)

    change(ImageTask)
    change(Counting)


def change_steps(wrap):
    """Puts `wrap(replica_step)` in the place of what every step is made of."""
    from nf_resnets.training import steps

    steps.replica_step = wrap(steps.replica_step)


def kill_at(place, when="before", number=1):
    """Has the process killed at a call of a method.

    Args:
      place: `"module:Class.method"`.
      when: `"before"` or `"after"`.
      number: of the call.
    """
    module, _, path = place.partition(":")
    owner_name, _, name = path.rpartition(".")
    owner = importlib.import_module(module)
    owner = getattr(owner, owner_name) if owner_name else owner
    method, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(method)
    def killing(*args, **kwargs):
        last = next(calls) == number
        if last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*args, **kwargs)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, killing)


def restore_nothing():
    """Control: runs begin anew whatever was saved."""
    from nf_resnets.training.checkpoint import Checkpoints

    Checkpoints.restore = lambda self, like: None


# --- In the process that forks -----------------------------------------------------------------


def forked(request, cache):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        said = os.open(
            Path(request["folder"]) / f"{os.getpid()}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        )
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        code = work(request, cache)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def waited(pid, seconds, codes):
    """The exit code of a child, None if it is still at work after so many seconds."""
    end = time.monotonic() + seconds
    while pid not in codes:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            codes[pid] = os.waitstatus_to_exitcode(status)
        elif time.monotonic() >= end:
            return None
        else:
            time.sleep(0.002)
    return codes[pid]


def serve(cache):
    """Answers `{"start": request}` by a pid, and `{"wait": pid, "seconds": s}` by an exit code."""
    from nf_resnets import data
    from nf_resnets.sweep import command  # noqa: F401

    data.load("digits")
    importlib.import_module("orbax.checkpoint")

    codes, started = {}, []
    for line in sys.stdin:
        question = json.loads(line)
        if "start" in question:
            answer = forked(question["start"], cache)
            started.append(answer)
        else:
            answer = waited(question["wait"], question["seconds"], codes)
        print(json.dumps(answer), flush=True)
    for pid in started:
        if pid not in codes:
            os.kill(pid, signal.SIGKILL)
            waited(pid, 10, codes)


if __name__ == "__main__":
    serve(sys.argv[1])
