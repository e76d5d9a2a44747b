"""One GPU for 11 minutes: what is to be known of it first, in this order, each with a time limit.

A part is a process of its own, which writes its rows as it finds them; where its time is over it is
told to stop, and what it has written stays. Time that a part does not need goes to the next one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

GRACE = 20.0
"""Seconds in which a part that is told to stop saves its runs."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A part: a command of this checkout, and its minutes of the 11."""

    name: str
    minutes: float
    words: tuple[str, ...]  # behind "python -m"


def tasks(out: Path, *, quick: bool, data_dir: str | None) -> list[Task]:
    """The parts in their order; ``quick`` takes sizes for which a CPU is enough."""

    def measured(name: str, minutes: float) -> Task:
        words = ("benchmarks", "--only", name, "--out", str(out / name))
        return Task(name, minutes, (*words, "--quick") if quick else words)

    def made(name: str, minutes: float, *words: str, smoke: tuple[str, ...] = ()) -> Task:
        words = ("--scale", "smoke", *smoke) if quick else words
        place = ("--data-dir", data_dir) if data_dir else ()
        return Task(
            name, minutes, (f"experiments.{name}", *words, *place, "--out", str(out / name))
        )

    return [
        measured("against_torch", 2.5),
        measured("together", 1),
        made(
            "fixup_fig3_depth", 3, "--scale", "paper", "--grid", "model=wrn-1000-1",
            smoke=("--grid", "model=wrn-10-1", "scheme=fixup"),
        ),
        made(
            "fixup_table1_resnet110", 3.5, "--scale", "cifar", "--grid", "epochs=200", "mixup=0",
            "scheme=batchnorm,fixup,skipinit",
            smoke=("--grid", "scheme=fixup"),
        ),
        made(
            "skipinit_lr_batch", 1, "--scale", "reduced", "--grid", "scheme=skipinit,batchnorm",
            "batch_size=1024",
        ),
    ]  # fmt: skip


def run(todo: Sequence[Task], minutes: float) -> int:
    """Makes the parts, one after another; returns the exit code, 1 if one of them failed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    total = sum(task.minutes for task in todo)
    end = time.monotonic()
    said: list[str] = []
    failed = False
    for task in todo:
        end += 60 * minutes * task.minutes / total
        start = time.monotonic()
        print(f"\n=== {task.name}: at most {end - start:.0f} s", flush=True)
        code = limited([sys.executable, "-m", *task.words], end - start)
        failed |= bool(code)
        words = {None: "cut when its time was over", 0: "done"}.get(code, f"exit code {code}")
        said.append(f"{task.name}: {words}, {time.monotonic() - start:.0f} s")
    print("\n" + "\n".join(said))
    return int(failed)


def limited(words: Sequence[str], seconds: float) -> int | None:
    """Runs a command; its exit code, or None where its time was over and it was ended."""
    process = subprocess.Popen(words, start_new_session=True)
    try:
        return process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return None
    finally:  # also where this process is stopped
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
