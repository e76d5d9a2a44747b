"""Trees to save, damage to do to them, and a process whose saves are killed at a chosen moment.

Usage: python -m tests.faults.saving    a JSON list of requests on stdin, of statuses on stdout
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import manifest
from nf_resnets.training import checkpoint, checkpoint_files
from nf_resnets.training.checkpoint import Checkpoints

IDENTITY = {"model": "wide_resnet", "settings": {"peak_lr": 0.1, "batch_size": 128}}


def tree(step):
    """Leaves of several dtypes that no two steps share, with bits that a cast would lose."""
    rng = np.random.default_rng(step)
    kernel = rng.standard_normal((3, 3, 4, 8)).astype(np.float32)
    kernel[0, 0, 0, :3] = np.nan, -0.0, np.inf
    return {
        "params": {"kernel": kernel, "bias": rng.standard_normal(7).astype(jnp.bfloat16)},
        "step": np.int32(step),
        "seed": np.uint32(2**32 - 1 - step),
        "mask": rng.integers(0, 2, 5).astype(bool),
        "empty": np.zeros((0, 3), np.float32),
    }


def checkpoints(folder, **kwargs):
    return Checkpoints(folder, IDENTITY, **kwargs)


def saved(folder, *steps):
    """A folder in which these steps were saved by a process that has let go of it."""
    ours = checkpoints(folder)
    for step in steps:
        ours.save(step, tree(step))
    ours.close()
    return folder


def restored_step(folder):
    """The step that is restored, once its tree has been found to be that of the step."""
    with contextlib.closing(checkpoints(folder)) as ours:
        restored = ours.restore(tree(0))
    if restored is None:
        return None
    step, found = restored
    assert_same(found, tree(step))
    return step


def same(found, expected):
    """Whether two trees are equal in structure, dtypes, shapes and every bit."""
    found, expected = jax.tree.flatten(found), jax.tree.flatten(expected)
    return found[1] == expected[1] and all(
        isinstance(a, np.ndarray)
        and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, np.asarray(b).tobytes())
        for a, b in zip(found[0], expected[0], strict=True)
    )


def assert_same(found, expected):
    if not same(found, expected):
        raise AssertionError("the trees differ")


def contents(folder):
    """Every file below a folder, with its bytes; what the lock says is left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and path.name != checkpoint.LOCK
    }


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


# --- Killing -----------------------------------------------------------------------------------


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def killing(function, *, after=False, calls=1):
    """The function, that kills its process at one of its calls."""
    count = 0

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        nonlocal count
        count += 1
        if count == calls and not after:
            kill()
        result = function(*args, **kwargs)
        if count == calls and after:
            kill()
        return result

    return wrapped


def on_event(folder, act):
    """Calls ``act(event, path)`` before Python opens, makes, renames or removes a file there."""

    def hook(event, args):
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and args:
            path = os.fsdecode(args[0]) if isinstance(args[0], (str, bytes, os.PathLike)) else ""
            # shutil.rmtree names what it removes relative to a folder that it has opened.
            if path.startswith(str(folder)) or event in ("os.remove", "os.rmdir"):
                act(event, path)

    sys.addaudithook(hook)


def kill_at_event(folder, number):
    count = 0

    def act(event, path):
        nonlocal count
        count += 1
        if count == number:
            kill()

    on_event(folder, act)


def kill_at(folder, event_wanted, name, nth=1):
    count = 0

    def act(event, path):
        nonlocal count
        if event == event_wanted and path.endswith(name):
            count += 1
            if count == nth:
                kill()

    on_event(folder, act)


def kill_when_there(path):
    def wait_and_kill():
        while not os.path.exists(path):
            pass
        kill()

    threading.Thread(target=wait_and_kill, daemon=True).start()


def arm(folder, seam, step):
    """Makes the next save die at the seam; a number is that of a file operation."""
    part = folder / f"{checkpoint.UNFINISHED}step_{step}"
    if isinstance(seam, int):
        kill_at_event(folder, seam)
    elif seam == "before Orbax":
        checkpoint_files._write_arrays = killing(checkpoint_files._write_arrays)
    elif seam == "at Orbax's first file":
        kill_when_there(part / "arrays" / "leaves")
    elif seam == "between Orbax's files":
        kill_at(folder, "open", "_METADATA")
    elif seam == "after Orbax":
        checkpoint_files._write_arrays = killing(checkpoint_files._write_arrays, after=True)
    elif seam == "before the manifest":
        kill_at(folder, "open", "manifest.json")
    elif seam in ("half a manifest", "half a manifest in place"):
        whole = manifest.seal
        manifest.seal = lambda values, **options: whole(values, **options)[:200]
        checkpoint_files.sync = killing(checkpoint_files.sync)
        if seam == "half a manifest in place":
            # What a save would do that has no temporary name.
            checkpoint.UNFINISHED = ""
    elif seam == "before the rename":
        kill_at(folder, "os.rename", part.name)
    elif seam == "after the rename":
        checkpoint_files.sync = killing(checkpoint_files.sync, calls=2)
    elif seam == "between the two renames of a replacement":
        kill_at(folder, "os.rename", part.name)
    elif seam == "before the old one is removed":
        kill_at(folder, "os.rename", "step_9")
    elif seam == "while the old one is being removed":
        kill_at(folder, "os.remove", "0")
    elif seam != "never":
        raise ValueError(seam)


def in_child(request):
    signal.alarm(60)
    folder, step = Path(request["folder"]), request["step"]
    ours = checkpoints(folder)
    ours.restore(tree(0))
    arm(folder, request["seam"], step)
    ours.save(step, tree(step))


def forked(request):
    """The status of a child that does the request: -9 when it was killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            in_child(request)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cut_saves(requests):
    """Runs requests, each a save in a process that dies at its seam; gives the statuses.

    A request has folder, step, and seam: a name that `arm` knows, or a file operation's number.
    """
    requests = [{**request, "folder": str(request["folder"])} for request in requests]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.saving"],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main():
    # Imported, but no array made: a process without threads can be forked.
    checkpoint_files._orbax()
    print(json.dumps([forked(request) for request in json.load(sys.stdin)]))


if __name__ == "__main__":
    main()
