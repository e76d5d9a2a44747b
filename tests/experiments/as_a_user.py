"""Runs an experiment in a process of its own, as a user would."""

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from docs.machinery.figures import redraw
from docs.machinery.results import Result

ROOT = Path(__file__).parents[2]


def one_device():
    """The environment of the tests, but with one device, as on a laptop."""
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    return {**os.environ, "XLA_FLAGS": flags.strip()}


def make(name, *arguments):
    """Runs ``python -m experiments.NAME`` and returns what it printed; it has to succeed."""
    found = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)],
        cwd=ROOT,
        env=one_device(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def redrawn(name, given, folder):
    """Draws the results in ``folder/out`` again from their rows: how many figures are the same."""
    module = f"experiments.{name}"
    command = shlex.join(["python", "-m", module, *given])
    result = Result(folder / "out", module, command, title="", claim="", tried="", made="")
    redraw(result, folder / "again")
    there = [path for path in (folder / "out").iterdir() if path.suffix in (".png", ".svg")]
    return sum(path.read_bytes() == (folder / "again" / path.name).read_bytes() for path in there)


def lines_of(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))
