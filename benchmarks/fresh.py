"""Calls a function in a process of its own: nothing imported, compiled or allocated before it."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MARK = "result: "


def call(function: str, *arguments: Any, **environment: str) -> Any:
    """What ``module:function`` returns in a fresh process; JSON carries it, and the arguments.

    Raises:
      RuntimeError: if the process fails, with what it said last.
    """
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.fresh", function, json.dumps(arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not lines:
        raise RuntimeError(
            f"{function}{arguments} ended with {done.returncode}: {done.stderr[-2000:]}"
        )
    return json.loads(lines[-1].removeprefix(MARK))


@contextlib.contextmanager
def kept(function: str, *arguments: Any) -> Iterator[Callable[[], Any]]:
    """A fresh process that makes a function, ``module:function(*arguments)``, for calls from here.

    It begins at once, and waits between two calls without work for the processor.
    """
    words = [sys.executable, "-m", "benchmarks.fresh", function, json.dumps(arguments), "kept"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None and answers is not None

        def call() -> Any:
            asked.write("\n")
            asked.flush()
            for line in answers:
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
            raise RuntimeError(f"{function}{arguments} ended with {process.wait()}.")

        yield call


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    result = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
    results = (result() for _ in sys.stdin) if sys.argv[3:] else [result]
    for each in results:
        print(MARK + json.dumps(each), flush=True)
