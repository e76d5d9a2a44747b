"""What a running sweep shows: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import rich.live
from rich.console import Console, RenderableType
from rich.text import Text

from nf_resnets.sweep.screen import OVER, Running, Snapshot, picture
from nf_resnets.sweep.time_left import TimeLeft
from nf_resnets.sweep.words import duration_text, percent, printable, swept, value_text

MANY = 500
"""Sweeps of more runs print a line a second at most, and not one for each run."""

MOST_FAILURES = 10
"""Of so many failures each has a line of its own; further ones are only counted."""

FRAMES = 3
"""Pictures a second."""

PATIENCE = 5.0
"""Seconds for which the end waits for a terminal that does not take what is printed."""


@dataclasses.dataclass
class _Seeds:
    """What came of one setting, over its seeds."""

    accuracies: list[float] = dataclasses.field(default_factory=list)
    diverged: int = 0

    def mean(self) -> float:
        return math.fsum(self.accuracies) / len(self.accuracies)

    def rank(self) -> tuple[int, float]:
        return -self.diverged, self.mean()


class Live:
    """Shows how a sweep goes on; a callback and a context manager.

    In a terminal: a table of the runs that are going on, how many ended how, the best so far and
    the time left. Elsewhere: a line for each run that ended; in sweeps of more than ``MANY`` runs
    at most a line a second, which also says how many ended since the last.

    Events only change numbers. One thread of its own draws and prints, so that neither a slow nor
    a stopped terminal holds up the sweep, and a reader that went away (a broken pipe) ends the
    output and nothing else. The cursor is never hidden: however the process ends, it is there.

    Args:
      axes: of each swept setting its values.
      total: runs of the grid.
      done: how many of them were in each state at the start, as the ledger counts them.
      console: where to; standard output if it is not given.
      expected: of each program the seconds of one of its runs, where they are known.
      rows: the runs that were over at the start, as the ledger has them, for the best so far.
    """

    def __init__(
        self,
        axes: Mapping[str, tuple[Any, ...]],
        total: int,
        done: Mapping[str, int],
        *,
        console: Console | None = None,
        expected: Mapping[str, float] | None = None,
        rows: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self.console = console or Console()
        self._in_terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        if console is None and not self.console.file.isatty():
            self._in_terminal = False  # FORCE_COLOR makes no terminal of a log
        self._axes, self._total = dict(axes), total
        self._names = swept(axes)
        self._counts = {state: int(done.get(state, 0)) for state in OVER}
        self._elsewhere = 0
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._compiling: dict[str, tuple[str, float]] = {}  # in words, since when
        # (scheme, batch size) -> all swept settings but the seed -> what came of it
        self._results: dict[tuple[str, int], dict[tuple[Any, ...], _Seeds]] = {}
        self._best: dict[tuple[str, int], str] = {}
        self._lines: deque[str] = deque()
        self._failures = 0
        self._unsaid: list[str] = []  # states of the runs that ended since the last line
        self._last_line = ""
        self._last_said = -math.inf
        self._start = time.monotonic()
        self._time_left = TimeLeft(axes, total, self._over(), self._start, expected)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        for row in rows:
            with self._event():
                self._add(row, row["state"], row.get("test_accuracy"))

    # What the sweep tells.

    def on_compile_begin(self, program: str, label: str) -> None:
        """A program is being compiled."""
        with self._event():
            self._compiling[program] = (label, time.monotonic())

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """The program is compiled, or could not be."""
        with self._event():
            words, _ = self._compiling.pop(program, (program[:8], 0.0))
            if slots and not self._in_terminal and self._total <= MANY:
                self._lines.append(f"compiled {words or 'the program'} ({duration_text(seconds)})")

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run enters a slot."""
        with self._event():
            self._running[key] = Running(label, settings, step, num_steps)
            self._time_left.began(key, settings, step, num_steps, time.monotonic())

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has come to a step."""
        with self._event():
            run = self._running.get(key)
            if run is not None:
                run.step = step
                if len(curve["loss"]):
                    run.loss = float(curve["loss"][-1])
                self._time_left.went_on(key, step)

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over: its row as the ledger has it."""
        with self._event():
            run = self._running.get(key)
            if run is not None and row.get("test_accuracy") is not None:
                run.accuracy = float(row["test_accuracy"])

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is ``finished``, ``diverged``, ``oom``, ``failed``, or ``waiting`` again.

        Any other state is that of a run which another worker has taken over.
        """
        with self._event():
            self._time_left.ended(key, state in OVER, time.monotonic())
            run = self._running.pop(key, None)
            words = run.label if run else str(result.get("label") or f"run {key[:8]}")
            if state in OVER:
                self._counts[state] += 1
                if run is not None:
                    self._add(run.settings, state, result.get("test_accuracy"))
            self._tell_end(words, state, result)

    def on_message(self, text: str) -> None:
        """Something else worth a line."""
        with self._event():
            self._lines.append("\n".join(map(printable, text.splitlines())))

    def on_counts(self, counts: Mapping[str, int]) -> None:
        """The grid's runs in each state as the ledger counts them now, also of other workers."""
        with self._event():
            self._counts = {state: int(counts.get(state, 0)) for state in OVER}
            self._elsewhere = int(counts.get("elsewhere", 0))

    @contextlib.contextmanager
    def _event(self) -> Iterator[None]:
        """Holds the lock; a fault of the display is no fault of the sweep."""
        with self._lock:
            try:
                yield
            except Exception as error:
                if self._failures < MOST_FAILURES:
                    self._failures += 1
                    self._lines.append(f"the display missed something: {printable(repr(error))}")

    # What is kept.

    def _over(self) -> int:
        return sum(self._counts.values())

    def _to_go(self) -> int:
        return max(0, self._total - self._over() - len(self._running) - self._elsewhere)

    def _add(self, settings: Mapping[str, Any], state: str, accuracy: float | None) -> None:
        """Counts a run towards the best so far."""
        place = (settings["scheme"], settings["batch_size"])
        setting = tuple(settings[name] for name in self._names if name != "seed")
        seeds = self._results.setdefault(place, {}).setdefault(setting, _Seeds())
        if state == "diverged":
            seeds.diverged += 1
        elif state == "finished" and accuracy is not None:
            seeds.accuracies.append(float(accuracy))
        self._best.pop(place, None)

    def _best_so_far(self) -> dict[tuple[str, int], str]:
        """Of each scheme and batch size the best accuracy, a mean over seeds, and its rate."""
        names = [name for name in self._names if name != "seed"]
        for place, settings in self._results.items():
            if place in self._best:
                continue
            there = {setting: seeds for setting, seeds in settings.items() if seeds.accuracies}
            if not there:
                self._best[place] = "diverged" if any(s.diverged for s in settings.values()) else ""
                continue
            best = max(there, key=lambda setting: there[setting].rank())
            rate = dict(zip(names, best, strict=True)).get("peak_lr")
            at = "" if rate is None else f" {value_text('peak_lr', rate)}"
            self._best[place] = f"{there[best].mean():.1%}{at}"
        return self._best

    # What is printed.

    def _tell_end(self, words: str, state: str, result: Mapping[str, Any]) -> None:
        message = printable(str(result.get("message") or "no reason given"))
        if state == "finished":
            text = f"{words}: {percent(result.get('test_accuracy'))}"
            text += f" ({duration_text(float(result.get('seconds') or 0.0))})"
        elif state == "diverged":
            text = f"{words}: diverged at step {result.get('steps', '?')}"
        elif state in OVER:
            text = f"{words}: {OVER[state]}: {message}"
        elif state == "waiting":
            text = f"{words}: waits again: {message}"
        else:
            text = f"{words}: taken over by another worker"
        line = f"[{self._over()}/{self._total}] {text}"
        is_special = state not in ("finished", "diverged")
        self._failures += is_special
        if is_special and self._failures <= MOST_FAILURES:
            self._lines.append(line)
            if self._failures == MOST_FAILURES and (self._in_terminal or self._total > MANY):
                self._lines.append("further runs that fail or wait again are only counted")
        elif self._in_terminal:
            pass  # the table has it
        elif self._total <= MANY:
            self._lines.append(line)
        else:
            self._unsaid.append(state)
            self._last_line = text

    def _say_many(self) -> None:
        """The line a second of a sweep of many runs."""
        if not self._unsaid:
            return
        line = f"[{self._over()}/{self._total}] {self._last_line}"
        before = Counter(self._unsaid[:-1])
        if before:
            line += f"; {before.total()} more since the last line"
            others = [f"{n} {OVER.get(state, state)}" for state, n in before.items()]
            line += f" ({', '.join(others)})" if set(before) != {"finished"} else ""
        left = self._seconds_left()
        line += f"; {duration_text(left)} left" if left is not None else ""
        self._unsaid.clear()
        self._lines.append(line)

    def _seconds_left(self) -> float | None:
        return self._time_left.seconds(self._to_go(), time.monotonic(), self._elsewhere)

    # The thread that draws and prints.

    def __enter__(self) -> Live:
        self._closing.clear()
        self._thread = threading.Thread(target=self._show, name="display", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Prints what is still to be said; in a terminal leaves the last table there."""
        self._closing.set()
        if self._thread is not None:
            # A terminal that was stopped (Ctrl-S) must not keep the process from ending.
            self._thread.join(timeout=PATIENCE)
            self._thread = None

    def _show(self) -> None:
        live: rich.live.Live | None = None
        try:
            if self._in_terminal:
                live = self._start_live()
            while not self._closing.wait(1 / FRAMES):
                self._print(live, last=False)
            self._print(live, last=True)
        except (Exception, SystemExit):  # rich answers a broken pipe with SystemExit
            self._give_up()
        finally:
            if live is not None:
                try:
                    live.stop()
                except (Exception, SystemExit):
                    self._give_up()

    def _start_live(self) -> rich.live.Live:
        to_stdout = self.console.file is sys.stdout
        live = rich.live.Live(
            console=self.console,
            auto_refresh=False,
            get_renderable=self.frame,
            # What others print goes above the table; what does not go to the terminal stays as is.
            redirect_stdout=to_stdout,
            redirect_stderr=to_stdout and sys.stderr is not None and sys.stderr.isatty(),
        )
        live.start()
        # A process that is killed cannot bring the cursor back.
        self.console.show_cursor(True)
        return live

    def _print(self, live: rich.live.Live | None, *, last: bool) -> None:
        with self._lock:
            now = time.monotonic()
            if last or now - self._last_said >= 1:
                self._say_many()
                self._last_said = now
            lines = list(self._lines)
            self._lines.clear()
        if live is not None:
            if lines:
                self.console.print(Text("\n".join(lines)))
            live.refresh()
        elif lines:
            # Not through rich, which would break lines at 80 columns.
            self.console.file.write("".join(f"{line}\n" for line in lines))
            self.console.file.flush()

    def _give_up(self) -> None:
        """Prints no more, as nobody can read it; the sweep goes on."""
        self.console.quiet = True
        if self.console.file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            # What others still print must not end the sweep either, nor what is flushed at the end.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self.console.file.fileno())
                os.close(nowhere)

    # The picture.

    def frame(self) -> RenderableType:
        """The table as it stands."""
        with self._lock:
            now = time.monotonic()
            snapshot = Snapshot(
                axes=self._axes,
                names=tuple(self._names),
                total=self._total,
                counts=dict(self._counts),
                elsewhere=self._elsewhere,
                running=[dataclasses.replace(run) for run in self._running.values()],
                compiling=[(words, now - since) for words, since in self._compiling.values()],
                best=dict(self._best_so_far()),
                elapsed=now - self._start,
                left=self._seconds_left(),
            )
        return picture(snapshot, self.console)


__all__ = ["FRAMES", "MANY", "MOST_FAILURES", "PATIENCE", "Live"]
