"""What running sweeps and experiments show: a live table in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import rich.live
from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from nf_resnets.sweep.settings import percent, printable, value_text
from nf_resnets.training.compiling import Compiling, duration_text

if TYPE_CHECKING:
    from nf_resnets.sweep.task import Resolved

MANY = 500
"""Of more runs not each one gets a line: at most one line a second is printed."""

MOST_FAILURES = 10
"""So many runs that fail or wait again get a line of their own; further ones are counted."""

FRAMES = 3
"""Pictures a second."""

PATIENCE = 5.0
"""Seconds for which the end waits for a terminal that does not take what is printed."""

ENOUGH = 0.05
"""The part of a run of a program that must have been made before its speed is used."""

OVER = {"finished": "finished", "diverged": "diverged", "failed": "failed", "oom": "out of memory"}
"""The states of runs that are over, in words."""


@dataclasses.dataclass
class Running:
    """A run in a slot."""

    label: str
    settings: Mapping[str, Any]
    program: str  # runs of equal programs take equally long
    work: float  # of the whole run, in examples
    began: float  # when it entered the slot
    first: int  # the step it entered with
    step: int
    num_steps: int
    loss: float | None = None  # of the last step
    accuracy: float | None = None  # of the last test
    reports: tuple[tuple[float, int], ...] = ()  # the first and the last one: when, at which step
    input_fraction: float | None = None  # of the time spent waiting for streamed images

    def fraction(self, step: int) -> float:
        """Which part of the run so many steps are."""
        return step / max(self.num_steps, 1)

    def report(self, step: int, now: float) -> None:
        """A step is reached."""
        self.step, self.reports = step, (*self.reports[:1], (now, step))

    def steady(self) -> tuple[float, float]:
        """Seconds between the first report and the last one, and which part of the run they are."""
        if len(self.reports) < 2:
            return 0.0, 0.0
        (start, first), (end, last) = self.reports
        return end - start, self.fraction(last - first)


class TimeLeft:
    """Estimates the time left: the seconds of work left over the seconds of work done per second.

    A run costs what runs of its program took. A run of another program costs the means, over those
    measured so far, of what a unit of work takes between two reports, and of what a run takes
    besides: a small network takes longer to initialise and test than to train. A program that is
    not compiled yet costs the mean of those that were. It is given the program and the work of each
    run that is not over, and the time.
    """

    def __init__(self, runs: Iterable[tuple[str, float]], now: float) -> None:
        self._start = now
        self._waiting: Counter[str] = Counter()
        self._work: dict[str, float] = {}
        for program, work in runs:
            self._waiting[program] += 1
            self._work[program] = work
        self._seconds: dict[str, float] = defaultdict(float)
        self._made: dict[str, float] = defaultdict(float)
        self._steady: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        self._compiling: dict[str, float] = {}
        self._compiled: dict[str, float] = {}

    def begin_compiling(self, program: str, now: float) -> None:
        """A program is being compiled."""
        self._compiling[program] = now

    def end_compiling(self, program: str, now: float) -> None:
        """A program is compiled, or could not be."""
        self._compiled[program] = now - self._compiling.pop(program, now)

    def begin(self, running: Running) -> None:
        """A run enters a slot."""
        self._work.setdefault(running.program, running.work)
        self._waiting[running.program] -= 1

    def end(self, running: Running, now: float, *, is_over: bool) -> None:
        """A run leaves its slot, and is over or waits again."""
        program = running.program
        self._seconds[program] += now - running.began
        # A run that diverged early is over like one that was trained to its end.
        last = running.num_steps if is_over else running.step
        self._made[program] += running.fraction(last - running.first)
        self._steady[program] = _sum(self._steady[program], running.steady())
        self._waiting[program] += not is_over

    def seconds(
        self, running: Iterable[Running], to_go: int, now: float, elsewhere: int = 0
    ) -> float | None:
        """Estimates the seconds left, None before anything is known.

        Nobody has begun ``to_go`` runs; other workers make ``elsewhere``, as fast as this one.
        """
        running, spent, made = list(running), self._seconds.copy(), self._made.copy()
        steady = self._steady.copy()
        for each in running:
            spent[each.program] += now - each.began
            made[each.program] += each.fraction(each.step - each.first)
            steady[each.program] = _sum(steady[each.program], each.steady())
        known = {name: spent[name] / made[name] for name in spent if made[name] >= ENOUGH}
        compiling = {program: now - since for program, since in self._compiling.items()}
        compiled, elapsed = sum(self._compiled.values()), now - self._start
        busy = sum(spent.values()) + compiled + sum(compiling.values())
        if not known or busy <= 0 or elapsed <= 0:
            return None
        # Of the steps alone, where there were enough reports to tell.
        steps = {
            name: steady[name][0] / steady[name][1] if steady[name][1] >= ENOUGH else whole
            for name, whole in known.items()
        }
        besides = statistics.fmean(max(known[name] - steps[name], 0.0) for name in known)
        unit = statistics.fmean(steps[name] / self._work[name] for name in known)
        cost = {name: known.get(name, besides + work * unit) for name, work in self._work.items()}
        waiting = {name: max(count, 0) for name, count in self._waiting.items()}
        # Which of them other workers have made is not known: every program has its part.
        part = to_go / max(sum(waiting.values()), 1)
        left = part * sum(count * cost[name] for name, count in waiting.items())
        if self._compiled:
            one = compiled / len(self._compiled)
            # One that takes longer than the others will take a fifth more.
            left += sum(max(one - seconds, seconds / 5) for seconds in compiling.values())
            begun = self._compiled.keys() | compiling.keys()
            left += part * one * sum(bool(n) for name, n in waiting.items() if name not in begun)
        left += sum(cost[each.program] * (1 - each.fraction(each.step)) for each in running)
        pace = busy / elapsed * (1 + elsewhere / max(len(running), 1))
        return max(left, 0.0) / pace


class Best:
    """The best accuracy so far of each scheme and batch size, over the settings that are swept.

    It is a mean over seeds; the rate stands beside it.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = [name for name in names if name != "seed"]
        # (scheme, batch size) -> all swept settings but the seed -> accuracies, None if diverged.
        self._found: dict[tuple[str, int], dict[tuple[Any, ...], list[float | None]]] = {}
        self._texts: dict[tuple[str, int], str] = {}

    def add(self, settings: Mapping[str, Any], state: str, accuracy: float | None) -> None:
        """Counts a run that is over."""
        place = settings["scheme"], settings["batch_size"]
        setting = tuple(settings[name] for name in self._names)
        seeds = self._found.setdefault(place, {}).setdefault(setting, [])
        if state == "diverged":
            seeds.append(None)
        elif state == "finished" and accuracy is not None:
            seeds.append(float(accuracy))
        self._texts[place] = self._text(self._found[place])

    def _text(self, settings: Mapping[tuple[Any, ...], list[float | None]]) -> str:
        ranks = {}
        for setting, seeds in settings.items():
            if there := [accuracy for accuracy in seeds if accuracy is not None]:
                ranks[setting] = len(there) - len(seeds), math.fsum(there) / len(there)
        if not ranks:
            return "diverged" if any(settings.values()) else ""
        best = max(ranks, key=lambda setting: ranks[setting])
        rate = dict(zip(self._names, best, strict=True)).get("peak_lr")
        at = "" if rate is None else f" {value_text('peak_lr', rate)}"
        return f"{ranks[best][1]:.1%}{at}"

    def table(self, console: Console) -> RenderableType | None:
        """Schemes against batch sizes where that fits, else a list; None if there is nothing."""
        if not self._texts:
            return None
        schemes = list(dict.fromkeys(scheme for scheme, _ in self._texts))
        batches = sorted({batch for _, batch in self._texts})
        table = _table("best so far", *(f"batch {batch}" for batch in batches))
        for scheme in schemes:
            cells = (Text(self._texts.get((scheme, batch), "")) for batch in batches)
            table.add_row(Text(printable(scheme)), *cells)
        if _fits(table, console):
            return table
        cells = (
            Text(f"{printable(scheme)}, batch {batch}: {text}")
            for (scheme, batch), text in sorted(self._texts.items())
        )
        return Group(Text("best so far", style="bold"), Columns(cells, column_first=True))


class Display:
    """Shows how runs get on; a callback and a context manager.

    In a terminal: a table of the runs in slots, how many ended how, the best so far and the time
    left. Elsewhere: a line for each run that ended, or at most one a second of more than ``MANY``.

    Events only change numbers. A thread of its own draws and prints, so that neither a slow nor a
    stopped terminal holds up a sweep, and a reader that is gone (a broken pipe) ends the output and
    nothing else. The cursor is never hidden: however the process ends, it is there.

    Args:
      runs: all of them.
      rows: those that were over at the start, with ``key``, ``state`` and, for the best so far,
        their settings and ``test_accuracy``.
      swept: the settings that are swept, for the best so far; None to show none.
      describe: says what came of a finished run, from its result.
      console: where to; standard output if it is not given.
    """

    def __init__(
        self,
        runs: Iterable[Resolved],
        *,
        rows: Iterable[Mapping[str, Any]] = (),
        swept: Iterable[str] | None = None,
        describe: Callable[[Mapping[str, Any]], str] | None = None,
        console: Console | None = None,
    ) -> None:
        self.console = console or Console()
        self._in_terminal = self.console.is_terminal and not self.console.is_dumb_terminal
        if console is None and not self.console.file.isatty():
            self._in_terminal = False  # FORCE_COLOR makes no terminal of a log
        self._runs = {run.key: run for run in runs}
        self._describe = describe or _accuracy
        best = Best(swept or ())
        self._best = None if swept is None else best
        self._lock = threading.Lock()
        self._running: dict[str, Running] = {}
        self._compiling: dict[str, Compiling] = {}
        self._lines: deque[str] = deque()
        self._failures = 0
        self._unsaid: Counter[str] = Counter()  # states of the runs that ended since the last line
        self._last_line, self._last_said = "", -math.inf
        rows = [row for row in rows if row["state"] in OVER and row["key"] in self._runs]
        self._counts = Counter(row["state"] for row in rows)
        self._elsewhere = 0
        self._start = time.monotonic()
        done = {row["key"] for row in rows}
        left = (_program_and_work(run) for key, run in self._runs.items() if key not in done)
        self._time_left = TimeLeft(left, self._start)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        for row in rows if swept is not None else ():
            with self._event():
                best.add(row, row["state"], row.get("test_accuracy"))

    def on_compile_begin(self, program: str, label: str) -> None:
        """Shows what is being compiled."""
        with self._event():
            self._compiling[program] = Compiling(printable(label) or "the program")
            self._time_left.begin_compiling(program, time.monotonic())

    def on_compile_end(self, program: str, seconds: float, slots: int) -> None:
        """The program is compiled, or could not be."""
        with self._event():
            compiling = self._compiling.pop(program, None)
            label = compiling.name if compiling else program[:8]
            self._time_left.end_compiling(program, time.monotonic())
            if slots and not self._in_terminal and len(self._runs) <= MANY:
                self._lines.append(f"compiled {label} ({duration_text(seconds)})")

    def on_run_begin(
        self, key: str, label: str, settings: Mapping[str, Any], step: int, num_steps: int
    ) -> None:
        """A run enters a slot."""
        with self._event():
            program, work = _program_and_work(self._runs[key])
            now = time.monotonic()
            self._running[key] = Running(
                printable(label), settings, program, work, now, step, step, num_steps
            )
            self._time_left.begin(self._running[key])

    def on_step(self, key: str, step: int, curve: Mapping[str, Any]) -> None:
        """A run has reached a step."""
        with self._event():
            if (run := self._running.get(key)) is not None:
                run.report(step, time.monotonic())
                if len(curve["loss"]):
                    run.loss = float(curve["loss"][-1])
                    if "input_fraction" in curve:
                        run.input_fraction = float(curve["input_fraction"][-1])

    def on_epoch(self, key: str, step: int, row: Mapping[str, Any]) -> None:
        """An epoch of a run is over."""
        with self._event():
            run = self._running.get(key)
            if run is not None and row.get("test_accuracy") is not None:
                run.accuracy = float(row["test_accuracy"])

    def on_run_end(self, key: str, state: str, result: Mapping[str, Any]) -> None:
        """A run is over, waits again, or is lost to another worker."""
        with self._event():
            running = self._running.pop(key, None)
            if running is not None:
                self._time_left.end(running, time.monotonic(), is_over=state in OVER)
            label = running.label if running else printable(self._runs[key].label)
            if state in OVER:
                self._counts[state] += 1
                if running is not None and self._best is not None:
                    self._best.add(running.settings, state, result.get("test_accuracy"))
            self._say_end(label, state, result)

    def on_counts(self, counts: Mapping[str, int]) -> None:
        """How many runs are in each state, those of other workers among them."""
        with self._event():
            self._counts = Counter({state: int(counts.get(state, 0)) for state in OVER})
            self._elsewhere = int(counts.get("elsewhere", 0))

    def on_message(self, text: str) -> None:
        """Anything else worth a line."""
        with self._event():
            self._lines.append("\n".join(map(printable, text.splitlines())))

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

    # Lines.

    def _say_end(self, label: str, state: str, result: Mapping[str, Any]) -> None:
        message = printable(str(result.get("message") or "no reason given"))
        text = f"{label}: " + {
            "finished": self._describe(result) if state == "finished" else "",
            "diverged": f"diverged at step {result.get('steps', '?')}",
            "failed": f"failed: {message}",
            "oom": f"out of memory: {message}",
            "waiting": f"waits again: {message}",
        }.get(state, "taken over by another worker")
        line = f"[{self._counts.total()}/{len(self._runs)}] {text}"
        is_many = len(self._runs) > MANY
        if state not in ("finished", "diverged") and self._failures < MOST_FAILURES:
            self._failures += 1
            self._lines.append(line)
            if self._failures == MOST_FAILURES and (self._in_terminal or is_many):
                self._lines.append("further runs that fail or wait again are only counted")
        elif self._in_terminal:
            if self._best is None and not is_many:  # else the table has it
                self._lines.append(line)
        elif is_many:
            self._unsaid[state] += 1
            self._last_line = text
        else:
            self._lines.append(line + self._left_text())

    def _say_many(self) -> None:
        """Adds the line a second of many runs."""
        if not self._unsaid:
            return
        line = f"[{self._counts.total()}/{len(self._runs)}] {self._last_line}"
        if (more := self._unsaid.total() - 1) > 0:
            others = [f"{n} {OVER.get(state, state)}" for state, n in self._unsaid.items()]
            line += f"; {more} more since the last line"
            line += f" ({', '.join(others)})" if set(self._unsaid) != {"finished"} else ""
        self._unsaid.clear()
        self._lines.append(line + self._left_text())

    def _left_text(self) -> str:
        left = self._seconds_left()
        return "" if left is None or left < 1 else f"; {duration_text(left)} left"

    def _to_go(self) -> int:
        begun = self._counts.total() + len(self._running) + self._elsewhere
        return max(0, len(self._runs) - begun)

    def _seconds_left(self) -> float | None:
        running = self._running.values()
        return self._time_left.seconds(running, self._to_go(), time.monotonic(), self._elsewhere)

    # The thread that draws and prints.

    def __enter__(self) -> Display:
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
        try:
            with self._live() if self._in_terminal else contextlib.nullcontext() as live:
                while not self._closing.wait(1 / FRAMES):
                    self._print(live, last=False)
                self._print(live, last=True)
        except (Exception, SystemExit):  # rich answers a broken pipe with SystemExit
            self._give_up()

    @contextlib.contextmanager
    def _live(self) -> Iterator[rich.live.Live]:
        to_stdout = self.console.file is sys.stdout
        with rich.live.Live(
            console=self.console,
            auto_refresh=False,
            get_renderable=self.frame,
            # What others print goes above the table; what does not go to the terminal stays as is.
            redirect_stdout=to_stdout,
            redirect_stderr=to_stdout and sys.stderr is not None and sys.stderr.isatty(),
        ) as live:
            # A process that is killed cannot bring the cursor back.
            self.console.show_cursor(True)
            yield live

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
        """The table as it stands; the live display cuts what the terminal has no lines for."""
        with self._lock:
            now = time.monotonic()
            over, total = self._counts.total(), len(self._runs)
            parts = [f"{self._counts[state]} {text}" for state, text in OVER.items()]
            parts = [part for part in parts if not part.startswith("0 ")]
            parts += [f"{len(self._running)} running"] * bool(self._running)
            parts += [f"{self._elsewhere} at other workers"] * bool(self._elsewhere)
            counts = Text(", ".join([*parts, f"{self._to_go()} to go"]))
            times = f"{over}/{total}  {duration_text(now - self._start)} so far"
            if over < total:
                left = self._seconds_left()
                times += f"  {'?' if left is None else duration_text(left)} left"
            compiling = [
                Text(compiling.text(now), style="dim") for compiling in self._compiling.values()
            ]
            best = self._best.table(self.console) if self._best is not None else None
            running = [dataclasses.replace(run) for run in self._running.values()]
        bar = Table.grid(padding=(0, 2, 0, 0))
        bar.add_row(ProgressBar(max(total, 1), over, width=min(self.console.width // 3, 40)), times)
        # The runs get the lines that all else leaves.
        below = [*compiling[:2], *([Text(), best] if best is not None else [])]
        rest = len(self.console.render_lines(Group(bar, counts, *below), pad=False))
        return Group(
            bar, counts, *_running_table(running, self.console, self.console.height - rest - 3),
            *below,
        )  # fmt: skip


def _running_table(running: list[Running], console: Console, room: int) -> list[RenderableType]:
    """The runs in slots, as many as there are lines for; nothing if there are none."""
    if not running or room < 1:
        return []
    shown = running if len(running) <= room else running[: room - 1]
    streamed = any(run.input_fraction is not None for run in running)
    heads = ["run", "", "step", "loss", "test", *["input"] * streamed]
    table = _table(*heads)
    table.columns[1].width = 10 if console.width >= 60 else 0
    for run in shown:
        table.add_row(
            Text(run.label),
            ProgressBar(max(run.num_steps, 1), run.step, width=10),
            f"{run.step}/{run.num_steps}",
            "" if run.loss is None else f"{run.loss:.3g}",
            percent(run.accuracy),
            *[percent(run.input_fraction)] * streamed,
        )
    if not _fits(table, console):
        table.expand, table.columns[0].ratio = True, 1  # the names give way
    more = [Text(f"and {len(running) - len(shown)} more", style="dim")]
    return [Text(), table, *(more if len(shown) < len(running) else [])]


def _sum(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return a[0] + b[0], a[1] + b[1]


def _program_and_work(run: Resolved) -> tuple[str, float]:
    return run.program, float(run.num_steps * run.step_cost)


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(Text(first), no_wrap=True, overflow="ellipsis")
    for head in others:
        table.add_column(Text(printable(head)), no_wrap=True, overflow="ellipsis", justify="right")
    return table


def _fits(table: Table, console: Console) -> bool:
    options = console.options.update(max_width=10 * console.width)
    return console.measure(table, options=options).maximum <= console.width


def _accuracy(result: Mapping[str, Any]) -> str:
    seconds = duration_text(float(result.get("seconds") or 0.0))
    return f"{percent(result.get('test_accuracy'))} ({seconds})"


__all__ = [
    "ENOUGH", "FRAMES", "MANY", "MOST_FAILURES", "OVER", "PATIENCE", "Best", "Display",
    "Running", "TimeLeft",
]  # fmt: skip
