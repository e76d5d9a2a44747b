"""What a running experiment shows: live bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class Display:
    """Shows which runs are going on, how far they are, and how long there is to go.

    The time to go is that of the work done so far, by weight: a run's weight is a guess of its
    cost, in any unit.

    Args:
      total: the weight of all runs that are still to be made.
      done: how many runs were there before.
      runs: how many runs there are in all.
    """

    def __init__(self, total: float, done: int, runs: int) -> None:
        self.console = Console(soft_wrap=True)
        self._live = self.console.is_terminal
        self._total, self._weight = total, 0.0
        self._done, self._runs = done, runs
        self._start = time.monotonic()
        self._partial: dict[int, float] = {}
        self._lock = threading.Lock()
        self._progress = Progress(
            TextColumn("{task.description}", justify="left", markup=False),
            BarColumn(bar_width=28),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=self.console,
            disable=not self._live,
            transient=True,
        )
        self._all: TaskID = self._progress.add_task("all runs", total=max(total, 1e-9), note="")

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the bars away and gives the cursor back."""
        self._progress.stop()

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        # No markup: an error's message may hold square brackets.
        self.console.print(text, highlight=False, markup=False)

    @contextmanager
    def run(self, name: str, weight: float, steps: int) -> Iterator[Any]:
        """Shows one run; yields ``on_step(steps made, metrics)``."""
        task = self._progress.add_task(f"  {name}", total=steps, note="compiling")

        def on_step(made: int, metrics: dict[str, float]) -> None:
            note = f"loss {metrics['loss']:.3g}"
            if "input_share" in metrics:  # of a run whose images are streamed
                note += f", {100 * metrics['input_share']:.0f}% waiting for input"
            self._progress.update(task, completed=made, note=note)
            with self._lock:
                self._partial[task] = weight * made / (steps + 1)  # the test is still to come
            self._refresh()

        try:
            yield on_step
        finally:
            with self._lock:
                self._partial.pop(task, None)
            self._progress.remove_task(task)

    def ended(self, text: str, weight: float) -> None:
        """Counts one run as done with, and prints what came of it."""
        with self._lock:
            self._weight += weight
            self._done += 1
        self._refresh()
        where = f"[{self._done}/{self._runs}]"
        left = "" if self._live else f"  ({self._time_left()})"
        self.note(f"{where:>8} {text}{left}")

    def _refresh(self) -> None:
        with self._lock:
            weight = self._weight + sum(self._partial.values())
        self._progress.update(
            self._all, completed=weight, note=f"{self._done}/{self._runs} runs, {self._time_left()}"
        )

    def _time_left(self) -> str:
        with self._lock:
            weight = self._weight + sum(self._partial.values())
        if weight <= 0:
            return "time left unknown"
        seconds = (time.monotonic() - self._start) * max(self._total - weight, 0) / weight
        return f"{int(seconds // 60)}:{int(seconds % 60):02d} left"


def flush() -> None:
    """Makes sure that what was printed has been seen before the process ends."""
    sys.stdout.flush()
    sys.stderr.flush()
