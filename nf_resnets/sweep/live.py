"""What a running sweep shows: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import rich.live
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nf_resnets.sweep import settings as run_settings
from nf_resnets.sweep.settings import FIELDS, RunSettings
from nf_resnets.sweep.time_left import TimeLeft

OVER = {"finished": "finished", "diverged": "diverged", "failed": "failed", "oom": "out of memory"}
"""The states of runs that are over, in words."""

MANY = 500
"""Sweeps of more runs print a line a second at most, and not one for each run."""

MOST_FAILURES = 10
"""Of so many failures each has a line of its own; further ones are only counted."""

FRAMES = 3
"""Pictures a second."""

_SHORT = {"batch_size": "batch", "peak_lr": "rate"}
# A sweep of one point is told by these.
_USUAL = ("scheme", "batch_size", "peak_lr", "seed")
_BAR = 10
_LONGEST_MESSAGE = 300


def value_text(name: str, value: Any) -> str:
    """A setting's value as it is shown: rates that are powers of two as such.

    Example:
      >>> [value_text("peak_lr", rate) for rate in (0.125, 1.0, 4.0, 0.1)]
      ['2^-3', '2^0', '2^2', '0.1']
      >>> value_text("alpha", None), value_text("flip", True), value_text("momentum", 0.9)
      ('none', 'true', '0.9')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if name == "peak_lr" and value > 0:
        mantissa, exponent = math.frexp(value)
        if mantissa == 0.5:
            return f"2^{exponent - 1}"
    return f"{value:g}" if isinstance(value, float) else _printable(str(value))


def label(settings: RunSettings, names: Iterable[str]) -> str:
    """A run in words.

    Example:
      >>> label(RunSettings(peak_lr=0.125), ["seed", "peak_lr", "batch_size", "scheme"])
      'fixup, batch 64, rate 2^-3, seed 0'
    """
    parts = []
    for name in _in_order(names):
        text = value_text(name, getattr(settings, name))
        parts.append(text if FIELDS[name][0] is str else f"{_SHORT.get(name, name)} {text}")
    return ", ".join(parts)


def duration_text(seconds: float) -> str:
    """Seconds as they are read: with one decimal while they are few.

    Example:
      >>> [duration_text(seconds) for seconds in (0.04, 9.96, 75, 4000, 180000)]
      ['0.0 s', '10 s', '1 min 15 s', '1 h 7 min', '2 d 2 h']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole // 60} min {whole % 60} s" if whole >= 60 else f"{whole} s"


def _in_order(names: Iterable[str]) -> list[str]:
    """Texts first, then the batch size, the rate and the seed last."""
    last = {"peak_lr": 3, "seed": 4}
    return sorted(
        names,
        key=lambda name: last.get(
            name, 0 if FIELDS[name][0] is str else 1 if name == "batch_size" else 2
        ),
    )


def _printable(text: str) -> str:
    """One line without control characters, which a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in text)[:_LONGEST_MESSAGE]


def _percent(accuracy: float | None) -> str:
    there = accuracy is not None and math.isfinite(accuracy)
    return f"{accuracy:.1%}" if there else "-"


@dataclasses.dataclass
class _Running:
    settings: RunSettings
    step: int
    num_steps: int
    loss: float | None = None
    accuracy: float | None = None


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
    """Shows how a sweep goes on; a :class:`~nf_resnets.sweep.watch.Watch` and a context manager.

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
        self._axes, self._total = dict(axes), total
        self._names = _in_order(name for name, values in axes.items() if len(values) > 1)
        self._label_names = self._names or list(_USUAL)
        self._counts = {state: int(done.get(state, 0)) for state in OVER}
        self._elsewhere = 0
        self._lock = threading.Lock()
        self._running: dict[str, _Running] = {}
        self._compiling: dict[str, tuple[str, str, float]] = {}  # key, in words, since when
        self._settings: dict[str, RunSettings] = {}  # of runs for which a program is compiled
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
                self._add_row(row)

    # What the sweep tells.

    def compiling(self, settings: RunSettings, program: str) -> None:
        """A program is being compiled, for the sake of a first run."""
        with self._event():
            names = [name for name in self._label_names if name not in run_settings.NUMBERS]
            key = run_settings.key(settings)
            self._settings[key] = settings
            self._compiling[program] = (key, label(settings, names), time.monotonic())

    def compiled(self, program: str, seconds: float, slots: int) -> None:
        """The program is there."""
        with self._event():
            key, words, _ = self._compiling.pop(program, ("", program[:8], 0.0))
            self._settings.pop(key, None)
            if not self._in_terminal and self._total <= MANY:
                self._lines.append(f"compiled {words or 'the program'} ({duration_text(seconds)})")

    def began(self, key: str, settings: RunSettings, step: int, num_steps: int) -> None:
        """A run takes its seat, at a step that is not 0 if it goes on."""
        with self._event():
            self._running[key] = _Running(settings, step, num_steps)
            self._time_left.began(key, settings, step, num_steps, time.monotonic())

    def went_on(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has come to a step."""
        with self._event():
            run = self._running.get(key)
            if run is not None:
                run.step = step
                if len(curve["loss"]):
                    run.loss = float(curve["loss"][-1])
                self._time_left.went_on(key, step)

    def tested(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over: its row as the ledger has it."""
        with self._event():
            run = self._running.get(key)
            if run is not None and row.get("test_accuracy") is not None:
                run.accuracy = float(row["test_accuracy"])

    def ended(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is ``finished``, ``diverged``, ``oom``, ``failed``, or ``waiting`` again.

        Any other state is that of a run which another driver has taken over.
        """
        with self._event():
            self._time_left.ended(key, state in OVER, time.monotonic())
            run = self._running.pop(key, None)
            compiled_for = [p for p, (first, _, _) in self._compiling.items() if first == key]
            for program in compiled_for:
                del self._compiling[program]
            settings = run.settings if run else self._settings.pop(key, None)
            words = label(settings, self._label_names) if settings else f"run {key[:8]}"
            if state in OVER:
                self._counts[state] += 1
                if settings is not None:
                    self._add(settings, state, result.get("test_accuracy"))
            self._tell_end(words, state, result)

    def note(self, text: str) -> None:
        """Something else worth a line."""
        with self._event():
            self._lines.append("\n".join(map(_printable, text.splitlines())))

    def counted(self, counts: Mapping[str, int]) -> None:
        """The grid's runs in each state as the ledger counts them now, other drivers' included."""
        with self._event():
            self._counts = {state: int(counts.get(state, 0)) for state in OVER}
            self._elsewhere = max(0, int(counts.get("running", 0)) - len(self._running))

    @contextlib.contextmanager
    def _event(self) -> Iterator[None]:
        """Holds the lock; a fault of the display is no fault of the sweep."""
        with self._lock:
            try:
                yield
            except Exception as error:
                if self._failures < MOST_FAILURES:
                    self._failures += 1
                    self._lines.append(f"the display missed something: {_printable(repr(error))}")

    # What is kept.

    def _over(self) -> int:
        return sum(self._counts.values())

    def _to_go(self) -> int:
        return max(0, self._total - self._over() - len(self._running) - self._elsewhere)

    def _add_row(self, row: Mapping[str, Any]) -> None:
        known = {name: row[name] for name in FIELDS if name in row}
        self._add(RunSettings(**known), row["state"], row.get("test_accuracy"))

    def _add(self, settings: RunSettings, state: str, accuracy: float | None) -> None:
        """Counts a run towards the best so far."""
        place = (settings.scheme, settings.batch_size)
        setting = tuple(getattr(settings, name) for name in self._names if name != "seed")
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
        message = _printable(str(result.get("message") or "no reason given"))
        if state == "finished":
            text = f"{words}: {_percent(result.get('test_accuracy'))}"
            text += f" ({duration_text(float(result.get('seconds') or 0.0))})"
        elif state == "diverged":
            text = f"{words}: diverged at step {result.get('steps', '?')}"
        elif state in OVER:
            text = f"{words}: {OVER[state]}: {message}"
        elif state == "waiting":
            text = f"{words}: waits again: {message}"
        else:
            text = f"{words}: taken over by another driver"
        line = f"[{self._over()}/{self._total}] {text}"
        if state not in ("finished", "diverged"):
            self._failures += 1
            if self._failures > MOST_FAILURES and (self._in_terminal or self._total > MANY):
                return
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
        before = len(self._unsaid) - 1
        if before:
            diverged = self._unsaid[:-1].count("diverged")
            line += f"; {before} more since the last line"
            line += f", {diverged} of them diverged" if diverged else ""
        left = self._left()
        line += f"; {left} left" if left != "?" else ""
        self._unsaid.clear()
        self._lines.append(line)

    def _left(self) -> str:
        seconds = self._time_left.seconds(self._to_go(), time.monotonic(), self._elsewhere)
        return "?" if seconds is None else duration_text(seconds)

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
            self._thread.join(timeout=5)
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
        if self.console.file in (sys.stdout, sys.__stdout__):
            # What others still print must not end the sweep either, nor what is flushed at the end.
            with contextlib.suppress(OSError, ValueError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, sys.__stdout__.fileno() if sys.__stdout__ else 1)
                os.close(nowhere)

    # The picture.

    def frame(self) -> RenderableType:
        """The table as it stands."""
        width, height = self.console.size
        with self._lock:
            running = [dataclasses.replace(run) for run in self._running.values()]
            now = time.monotonic()
            compiling = [
                f"compiling {words or 'the program'}, {duration_text(now - since)}"
                for _, words, since in self._compiling.values()
            ]
            best = dict(self._best_so_far())
            counts = self._counts_text(len(running))
            over = self._over()
            elapsed = duration_text(now - self._start)
            left = f"{self._left()} left" if over < self._total else ""
        room = height - 3 - len(Text(counts).wrap(self.console, max(width, 1)))
        if compiling and room > 3:
            compiling = [
                *compiling[:2],
                *([f"and {len(compiling) - 2} more"] * (len(compiling) > 2)),
            ]
            room -= len(compiling)
        else:
            compiling = []
        # Below each of the two stand its heading and an empty line.
        best_table, best_lines = self._best_table(
            best, width, max(room // 2, room - len(running) - 2)
        )
        room -= best_lines
        parts: list[RenderableType] = [self._bar(over, elapsed, left, width), Text(counts)]
        if running and room > 2:
            parts += [Text(), self._running_table(running, width, room - 2)]
        parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in compiling]
        if best_table is not None:
            parts += [Text(), best_table]
        return Group(*parts)

    def _counts_text(self, running: int) -> str:
        parts = [f"{n} {OVER[state]}" for state, n in self._counts.items() if n]
        parts += [f"{running} running"] * bool(running)
        parts += [f"{self._elsewhere} at other drivers"] * bool(self._elsewhere)
        return ", ".join([*parts, f"{self._to_go()} to go"])

    def _bar(self, over: int, elapsed: str, left: str, width: int) -> RenderableType:
        row = Table.grid(padding=(0, 2, 0, 0), expand=True)
        texts = [f"{over}/{self._total}", f"{elapsed} so far", left]
        room = width - sum(map(len, texts)) - 2 * len(texts) - 2
        cells: list[RenderableType] = [Text(text, no_wrap=True) for text in texts]
        if room >= _BAR:
            cells.insert(0, ProgressBar(max(self._total, 1), over, width=min(room, 40)))
        for _ in cells:
            row.add_column(no_wrap=True)
        row.add_row(*cells)
        row.expand = False
        return row

    def _running_table(self, running: list[_Running], width: int, room: int) -> RenderableType:
        names = self._names
        table = _plain_table()
        shown = running if len(running) <= room else running[: max(room - 1, 0)]
        steps = [f"{run.step}/{run.num_steps}" for run in shown]
        ends = [
            ("" if run.loss is None else f"{run.loss:.3g}", _percent(run.accuracy)) for run in shown
        ]
        columns = [
            [value_text(name, getattr(run.settings, name)) for run in shown] for name in names
        ]
        heads = [_SHORT.get(name, name) for name in names]
        fixed = max(map(len, [*steps, "step"])) + 2 + 8 + 2 + 6
        wanted = sum(
            max(map(len, [head, *column])) + 2 for head, column in zip(heads, columns, strict=True)
        )
        room_for_bar = width - fixed - (_BAR + 2)
        with_bar = wanted <= room_for_bar or room_for_bar >= 30
        left = room_for_bar if with_bar else width - fixed
        if wanted > left or not names:
            # Too narrow for a column each: all in one, cut where the space ends.
            heads = ["run"]
            columns = [[label(run.settings, self._label_names) for run in shown]]
            longest = max(map(len, columns[0]), default=0)
            table.add_column(
                "run", no_wrap=True, overflow="ellipsis", width=max(min(longest, left - 2), 1)
            )
        else:
            for head, name in zip(heads, names, strict=True):
                numeric = FIELDS[name][0] in (int, float)
                table.add_column(Text(head), no_wrap=True, justify="right" if numeric else "left")
        if with_bar:
            table.add_column("", width=_BAR)
        table.add_column("step", no_wrap=True, justify="right")
        table.add_column("loss", no_wrap=True, justify="right", min_width=8)
        table.add_column("test", no_wrap=True, justify="right", min_width=6)
        for place, run in enumerate(shown):
            bar = [ProgressBar(max(run.num_steps, 1), run.step, width=_BAR)] if with_bar else []
            table.add_row(
                *(Text(column[place]) for column in columns),
                *bar,
                Text(steps[place]),
                *map(Text, ends[place]),
            )
        if len(shown) < len(running):
            more = Text(f"and {len(running) - len(shown)} more", style="dim")
            return Group(table, more)
        return table

    def _best_table(
        self, best: Mapping[tuple[str, int], str], width: int, room: int
    ) -> tuple[RenderableType | None, int]:
        """The best so far: schemes against batch sizes whichever way it fits, else as a list."""
        schemes = _there((scheme for scheme, _ in best), self._axes.get("scheme", ()))
        batches = _there((batch for _, batch in best), self._axes.get("batch_size", ()))
        if not best or room < 3:
            return None, 0
        by_scheme = [
            ["best so far", *(f"batch {batch}" for batch in batches)],
            *([s, *(best.get((s, b), "") for b in batches)] for s in schemes),
        ]
        by_batch = [
            ["best so far", *schemes],
            *([f"batch {b}", *(best.get((s, b), "") for s in schemes)] for b in batches),
        ]
        folded = _folded(
            [(s, b, best[s, b]) for s in schemes for b in batches if (s, b) in best], width
        )
        cells = next(
            (
                cells
                for cells in (by_scheme, by_batch)
                if _width(cells) <= width and len(cells) + 1 <= room
            ),
            folded,
        )
        if len(cells) + 1 > room:
            left_out = sum(any(row) for row in cells[room - 2 :])
            cells = cells[: room - 2]
            cells.append([f"and {left_out} more lines"] + [""] * (len(cells[0]) - 1))
        table = _plain_table()
        for place, head in enumerate(cells[0]):
            table.add_column(
                Text(head),
                no_wrap=True,
                overflow="ellipsis",
                justify="left" if place == 0 or head == "best so far" else "right",
            )
        for row in cells[1:]:
            table.add_row(*map(Text, row))
        return table, len(cells) + 1


def _there(values: Iterable[Any], axis: tuple[Any, ...]) -> list[Any]:
    """Each value once, in the axis's order, others behind in order."""
    found = set(values)
    return [each for each in axis if each in found] + sorted(found - set(axis))


def _width(cells: list[list[str]]) -> int:
    columns = zip(*cells, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _folded(best: list[tuple[str, int, str]], width: int) -> list[list[str]]:
    """A list in as many columns as there is space for, each read from top to bottom."""
    head = ["best so far", "batch", ""]
    rows = [[scheme, str(batch), text] for scheme, batch, text in best]
    columns = max(1, (width + 2) // (_width([head, *rows]) + 2))
    height = -(-len(rows) // columns)
    columns = -(-len(rows) // height)
    cells = [head * columns]
    for place in range(height):
        line = rows[place::height]
        cells.append([cell for row in line for cell in row] + ["", "", ""] * (columns - len(line)))
    return cells


def _plain_table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


__all__ = [
    "FRAMES",
    "MANY",
    "MOST_FAILURES",
    "OVER",
    "Live",
    "duration_text",
    "label",
    "value_text",
]
