"""``make mutants``: puts each fault into a copy of the code, and prints whether a test noticed.

The tests named for a mutant are run as ``make test`` runs them. One whose tests pass has survived;
the command then ends with exit code 1.
"""

import argparse
import concurrent.futures
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.faults import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
TESTS_FAILED, NO_TEST = 1, 5


def run_tests(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess:
    """Runs the quick tests of some files in a copy, up to the first that fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)


def verdict(copy: Path, mutant: Mutant) -> str:
    """Puts a mutant into a copy, runs its tests, and takes it out again."""
    path = copy / mutant.path
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return f"stale: {mutant.old!r} occurs {source.count(mutant.old)} times"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        result = run_tests(copy, mutant.tests)
    finally:
        path.write_text(source)
    if result.returncode == TESTS_FAILED:
        return "killed"
    if result.returncode == 0:
        return "SURVIVED"
    last = (result.stdout + result.stderr).strip().splitlines()[-1:]
    return f"broken: pytest ended with exit code {result.returncode}: {' '.join(last)}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", default="", help="mutants of files whose path contains this")
    parser.add_argument("--workers", type=int, default=2, help="how many at a time")
    arguments = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.path]
    with tempfile.TemporaryDirectory() as folder:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(arguments.workers):
            copy = Path(folder) / str(number)
            names = ("nf_resnets", "experiments", "tests", "docs/machinery")
            for name in names:
                shutil.copytree(
                    ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
                )
            for name in ("conftest.py", "pyproject.toml", "setup.cfg"):
                shutil.copy(ROOT / name, copy / name)
            copies.put(copy)

        # A test that fails without any fault would seem to kill every mutant.
        copy = copies.get()
        result = run_tests(
            copy, tuple(sorted({test for mutant in chosen for test in mutant.tests}))
        )
        copies.put(copy)
        if result.returncode:
            print(result.stdout[-4000:], file=sys.stderr)
            print("The tests fail without a mutant; they must pass.", file=sys.stderr)
            return 1

        def tried(mutant: Mutant) -> tuple[Mutant, str, float]:
            copy, begin = copies.get(), time.monotonic()
            try:
                return mutant, verdict(copy, mutant), time.monotonic() - begin
            finally:
                copies.put(copy)

        killed = 0
        with concurrent.futures.ThreadPoolExecutor(arguments.workers) as pool:
            for mutant, found, seconds in pool.map(tried, chosen):
                killed += found == "killed"
                print(
                    f"{found:9} {seconds:5.0f} s  {mutant.path}: {mutant.old} -> {mutant.new}",
                    flush=True,
                )
    print(f"{killed} of {len(chosen)} mutants killed, {len(chosen) - killed} not.")
    return int(killed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
