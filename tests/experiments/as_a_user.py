"""Runs an experiment in a process of its own, as a user would."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make(name, *arguments):
    """Runs ``python -m experiments.NAME`` and returns what it printed; it has to succeed."""
    environment = {**os.environ, "XLA_FLAGS": ""}  # one device, as on a laptop
    found = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def lines_of(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))
