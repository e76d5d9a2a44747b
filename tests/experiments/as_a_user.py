"""Runs an experiment in a process of its own, as a user would."""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path


def make(name, *arguments):
    """Runs ``python -m experiments.NAME`` and returns what it printed; it has to succeed.

    It has one device, as on a laptop.
    """
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"])
    found = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "XLA_FLAGS": flags.strip()},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def lines_of(file):
    with open(file, newline="") as stream:
        return list(csv.DictReader(stream))
