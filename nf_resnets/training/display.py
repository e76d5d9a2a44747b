"""What training shows: bars in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from nf_resnets.command_line import printable
from nf_resnets.training.run import Plan

LONGEST = 300
"""Letters of a line, which may quote an error of the compiler."""


class Display:
    """Shows how runs get on; a callback and a context manager.

    In a terminal: a bar for each run that trains, with its loss and its last test, and one for all
    of them. Elsewhere: a line for each epoch of a single run, or for each run that ended. A reader
    that is gone (a broken pipe) ends the output, and nothing else.

    Args:
      plans: the runs that are to be made; none for a single training.
      console: where to; standard output by default.
    """

    def __init__(self, plans: Sequence[Plan] = (), *, console: Console | None = None) -> None:
        self._console = console or Console()
        is_open = console is not None or self._console.file.isatty()
        self._live = is_open and self._console.is_terminal and not self._console.is_dumb_terminal
        self._bars = Progress(
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn(),
            console=self._console, disable=not self._live, refresh_per_second=4, transient=True,
        )  # fmt: skip
        self._lock = threading.RLock()
        self._plans = {plan.key: plan for plan in plans}
        work = sum(plan.num_steps for plan in plans)
        self._all = self._bars.add_task(counted(len(plans)), total=work, visible=len(plans) > 1)
        self._bar_of: dict[str, TaskID] = {}
        self._words: dict[str, dict[str, str]] = {}  # what stands on a run's bar
        self._counts: Counter[str] = Counter()

    def __enter__(self) -> Display:
        self._bars.start()
        if self._live:
            self._console.show_cursor(True)  # a process that is killed cannot bring it back
        return self

    def __exit__(self, *_: object) -> None:
        with self._reader():
            self._bars.stop()

    @contextlib.contextmanager
    def _reader(self) -> Iterator[None]:
        with self._lock, contextlib.suppress(OSError):  # a broken pipe
            yield

    def on_message(self, text: str) -> None:
        """Prints a line."""
        line = printable(text)[:LONGEST]
        with self._reader():
            if self._live:
                self._console.print(Text(line))
            else:
                # Not through rich, which would break lines at 80 columns.
                print(line, file=self._console.file, flush=True)

    def on_compile_begin(self, program: str, label: str) -> None:
        """A program is being compiled."""
        self.on_message(f"compiling for {label}")

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """A program is compiled, or could not be."""
        if slots:
            self.on_message(f"compiled in {duration_text(seconds)}")

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run begins, or goes on."""
        with self._reader():
            if step:
                self.on_message(f"{label}: goes on from step {step:,} of {num_steps:,}")
            self._words[key] = {"label": printable(label)}
            self._bar_of[key] = self._bars.add_task("", total=num_steps)
            self._update(key, step)
            self._bars.advance(self._all, step)

    def _update(self, key: str, step: int, **words: str) -> None:
        self._words[key] |= words
        text = ", ".join(self._words[key].values())
        self._bars.update(self._bar_of[key], completed=step, description=text)

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has reached a step."""
        with self._reader():
            name = "likelihood" if "likelihood" in curve else "loss"
            words = {"loss": f"{name} {float(curve[name][-1]):.3f}"} if len(curve[name]) else {}
            if "input_fraction" in curve:
                part = float(curve["input_fraction"][-1])
                words["input"] = f"{part:.0%} of the time waiting for images"
            self._update(key, step, **words)
            self._bars.advance(self._all, len(curve["loss"]))

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over."""
        with self._reader():
            if row.get("test_accuracy") is not None:
                self._update(key, step, test=f"validation {percent(row['test_accuracy'])}")
            if len(self._plans) <= 1:
                words = [f"loss {row['train_loss']:.3f}, accuracy {percent(row['train_accuracy'])}"]
                words += [self._words[key]["test"]] if row.get("test_accuracy") is not None else []
                total = next(t.total for t in self._bars.tasks if t.id == self._bar_of[key])
                steps = f"step {step:,} of {total:,}"
                self.on_message(f"  epoch {row['epoch']}, {steps}: {', '.join(words)}")

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is over."""
        with self._reader():
            if key in self._bar_of:
                self._bars.remove_task(self._bar_of.pop(key))
                del self._words[key]
            if key not in self._plans:
                return
            left = self._plans[key].num_steps - int(result.get("steps_done") or 0)
            self._bars.advance(self._all, left)
            self._counts[state] += 1
            count = len(self._plans)
            words = ", ".join(f"{n:,} {state}" for state, n in self._counts.items())
            self._bars.update(self._all, description=f"{counted(count)}: {words}")
            if count > 1:
                what = _outcome(result) if state == "finished" else state
                what += f": {result['message']}" if result.get("message") else ""
                over = f"{self._counts.total():>{len(str(count))},}/{count:,}"
                self.on_message(f"{over} {self._plans[key].label}: {what}")


def counted(count: int, what: str = "run") -> str:
    """So many of them.

    >>> counted(1), counted(2000, "program")
    ('1 run', '2,000 programs')
    """
    return f"{count:,} {what}{'s'[: count != 1]}"


def _outcome(result: Mapping[str, Any]) -> str:
    """What came of a run that finished: its test accuracy, else its last loss."""
    text = percent(result.get("test_accuracy"))
    if text == "-" and "last_loss" in result.get("measures", {}):
        text = f"loss {result['measures']['last_loss']:.3g}"
    return f"{text} ({duration_text(float(result.get('seconds') or 0.0))})"


def percent(fraction: float | None) -> str:
    """A fraction in percent; a dash where there is none."""
    return f"{fraction:.1%}" if fraction is not None and math.isfinite(fraction) else "-"


def duration_text(seconds: float) -> str:
    """Seconds to two digits or so.

    Example:
      >>> [duration_text(seconds) for seconds in (0.0412, 1.23, 9.96, 75, 4000, 180000)]
      ['0.041 s', '1.2 s', '10 s', '1 min 15 s', '1 h 6 min', '2 d 2 h']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s" if seconds >= 1 else f"{max(seconds, 0.0):.2g} s"
    whole = round(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"
