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


@contextlib.contextmanager
def kept(function: str, *arguments: Any, **environment: str) -> Iterator[Callable[[], Any]]:
    """A fresh process that makes a function, ``module:function(*arguments)``, for calls from here.

    It begins at once, and gives the processor no work between two calls. JSON carries the
    arguments, and what the calls return; a call raises RuntimeError if the process fails.
    """
    words = [sys.executable, "-m", "benchmarks.fresh", function, json.dumps(arguments)]
    pipe, env = subprocess.PIPE, {**os.environ, **environment}
    with subprocess.Popen(words, cwd=ROOT, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        asked, answers = process.stdin, process.stdout
        assert asked is not None and answers is not None

        def call() -> Any:
            with contextlib.suppress(BrokenPipeError):
                print(file=asked, flush=True)
            for line in answers:
                if line.startswith(MARK):
                    return json.loads(line.removeprefix(MARK))
            raise RuntimeError(f"{function}{arguments} ended with {process.wait()}.")

        yield call


def call(function: str, *arguments: Any, **environment: str) -> Any:
    """What ``module:function`` returns in a fresh process, as :func:`kept` carries it."""
    with kept(function, *arguments, **environment) as run:
        return run()


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    made = getattr(importlib.import_module(module), name)(*json.loads(sys.argv[2]))
    for _ in sys.stdin:
        print(MARK + json.dumps(made() if callable(made) else made), flush=True)
