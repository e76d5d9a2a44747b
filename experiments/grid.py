"""A grid of runs, one row each: which are missing, which share a program, who makes them."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from experiments.folder import ResultsFolder, Row
from experiments.progress import Display, flush
from experiments.training_run import OnStep, describe


@dataclasses.dataclass(frozen=True)
class Point:
    """One run that an experiment asks for.

    Attributes:
      key: the columns that name its row, and their values.
      label: what the display calls it.
      program: runs of equal values here share one compiled program.
      cost: a guess of what it costs, in any unit, by which the time to go is told.
      wave: runs of a lower wave are made first.
    """

    key: Mapping[str, Any]
    label: str
    program: Hashable
    cost: float
    wave: int = 0


def cost(depth: int, steps: int | None, *, norm: bool) -> float:
    """A guess of what a run costs, in layer-steps."""
    # Compiling costs about as much as 3,000 layer-steps; BatchNorm half as much again per layer.
    return 3_000 + depth * (steps or 390) * (1.5 if norm else 1.0)


def jobs_of(points: Sequence[Point], folder: ResultsFolder) -> list[list[Point]]:
    """The runs still to be made; a job is those that share a program, made one after another.

    Jobs of one wave are in the order of their cost, the costly ones first, so that the workers
    finish together.
    """
    jobs: dict[Hashable, list[Point]] = {}
    for point in points:
        if not folder.has(**point.key):
            jobs.setdefault((point.wave, point.program), []).append(point)
    return sorted(jobs.values(), key=lambda job: (job[0].wave, -sum(point.cost for point in job)))


def make_rows(
    points: Sequence[Point],
    folder: ResultsFolder,
    *,
    workers: int,
    make_program: Callable[[Point], Any],
    run: Callable[[Any, Point, OnStep], Row],
    tell: Callable[[Row], str] = describe,
) -> list[str]:
    """Makes all runs that are missing, and adds their rows to the folder.

    Args:
      points: all runs that there are to be.
      folder: where the rows go; a run whose row is there is not made again.
      workers: how many runs are made at a time.
      make_program: builds the program that the runs of a job share, from the first of them; its
        ``steps`` are those of a run.
      run: makes one run and returns its row.
      tell: what came of a run, from its row.

    Returns:
      What went wrong, a traceback for each failed run; the others are made all the same.
    """
    jobs = jobs_of(points, folder)
    missing = [point for job in jobs for point in job]
    total = sum(point.cost for point in missing)
    failures: list[str] = []
    writing = threading.Lock()

    def work(job: list[Point]) -> None:
        program: Any = None
        for point in job:
            try:
                program = program or make_program(point)
                with display.run(point.label, point.cost, program.steps) as on_step:
                    row = run(program, point, on_step)
                with writing:
                    folder.add(row)
                display.ended(f"{point.label}: {tell(row)}", point.cost)
            except Exception as error:  # one run must not take the others with it
                with writing:
                    failures.append(f"{point.label}:\n{traceback.format_exc()}")
                what = f"{type(error).__name__}: {error}"
                display.ended(f"{point.label}: failed with {what}", point.cost)

    display = Display(total, done=len(points) - len(missing), runs=len(points))
    if not missing:
        display.note(f"All {len(points)} runs are there already.")
        return []

    def leave_word() -> str:
        display.stop()
        return (
            f"Stopped. The rows of finished runs, {len(folder.rows)} by now, are kept in "
            f"{folder.path}; the same command makes what is missing."
        )

    stop_at_once(leave_word)
    with display, concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(work, jobs):
            pass
    return failures


def stop_at_once(
    word: Callable[[], str] = lambda: "Stopped before anything was made.",
) -> None:
    """Makes Ctrl-C and SIGTERM end the process at once: finished rows are on disk already.

    Args:
      word: tidies up the terminal, and gives the sentence to leave with.
    """

    def leave(number: int, _: Any) -> None:
        try:
            print(word(), file=sys.stderr)
            flush()
        finally:  # also where nobody reads the sentence any more
            os._exit(128 + number)

    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGTERM, leave)


__all__ = ["Point", "cost", "jobs_of", "make_rows", "stop_at_once"]
