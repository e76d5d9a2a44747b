"""What running sweeps and experiments show, and that showing it never harms them."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from rich.console import Console
from rich.live_render import LiveRender

from nf_resnets.sweep import display as module
from nf_resnets.sweep import enter, open_ledger
from nf_resnets.sweep.claims import Claims
from nf_resnets.sweep.display import Display, Running, TimeLeft
from nf_resnets.sweep.ledger import this_worker
from nf_resnets.sweep.settings import SINGLE, RunSettings, label, points, swept
from tests.sweep import small

PROTOCOL = {
    "peak_lr": (0.125, 0.25, 0.5),
    "seed": (0, 1),
    "scheme": ("fixup", "skipinit"),
    "batch_size": (32, 128),
}
MANY_CELLS = {
    "peak_lr": (0.125, 0.1),
    "scheme": ("fixup", "skipinit", "regularized_skipinit", "batchnorm"),
    "batch_size": (8, 16, 32, 64, 128, 256, 512),
}
TEN = {
    "scheme": ("fixup", "skipinit"),
    "batch_size": (32, 128),
    "weight_decay": (0.0, 1e-4),
    "momentum": (0.0, 0.9),
    "alpha": (None, 0.5),
    "dropout": (None, 0.1),
    "schedule": ("halving", "constant"),
    "steps": (100, 200),
    "flip": (True, False),
    "seed": (0, 1),
}


def curve(loss: float = 0.4123) -> dict[str, np.ndarray]:
    return {
        name: np.float32([9.0, loss]) for name in ("loss", "accuracy", "grad_norm", "update_norm")
    }


def result(accuracy: float | None = 0.917, **more) -> dict:
    return {"steps": 56, "test_accuracy": accuracy, "seconds": 1.23, "message": None, **more}


def a_run(key: str, label: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        key=key, label=label, program="p", num_steps=56, step_cost=1.0, settings={}
    )


class Shown:
    """A display of a grid, and a worker that reports to it."""

    def __init__(self, axes, total, *, console=None, over=(), **options):
        names = swept(axes)
        self.names = names or SINGLE
        runs = [a_run(str(place), f"run {place}") for place in range(total)]
        base = vars(RunSettings())
        rows = [{**base, "key": str(place), "state": state} for place, state in enumerate(over)]
        self.file = io.StringIO()
        console = console or Console(file=self.file, width=80)
        options = {"swept": names, **options}
        self.display = Display(runs, **{"rows": rows, "console": console, **options})
        self.free = map(str, range(len(over), 10**6))

    def begin(self, settings: RunSettings, step: int = 0, num_steps: int = 56) -> str:
        key, values = next(self.free), vars(settings)
        self.display.on_run_begin(key, label(values, self.names), values, step, num_steps)
        self.display.on_step(key, step + num_steps // 2, curve())
        return key

    def make(self, settings: RunSettings, state: str = "finished", outcome=None) -> None:
        """A run from its beginning to its end."""
        key = self.begin(settings)
        self.display.on_epoch(key, 28, {"test_accuracy": 0.5})
        self.display.on_run_end(key, state, outcome or result())

    def drawn(self) -> str:
        """A frame as text, cut to the terminal as the live display does."""
        console = self.display.console
        console.print(LiveRender(self.display.frame(), vertical_overflow="ellipsis"))
        return console.export_text()


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=height, record=True,
        _environ={"TERM": "xterm"},
    )  # fmt: skip


# Plain lines.


def test_plain_lines_tell_how_each_run_ended():
    shown = Shown(PROTOCOL, 24, over=["finished"] * 10 + ["diverged"] * 5)
    one = RunSettings(scheme="fixup", batch_size=64, peak_lr=0.125, seed=0)
    other = dataclasses.replace(one, peak_lr=0.1, seed=1)
    with shown.display as display:
        display.on_compile_begin("p", "fixup, batch 64")
        display.on_compile_end("p", 12.3, 1)
        shown.make(one)
        shown.make(one, "diverged", {"steps": 17, "seconds": 0.1, "message": "loss nan"})
        shown.make(other, "oom", {"message": "RESOURCE_EXHAUSTED: 12 GiB"})
        shown.make(other, "waiting", {"message": "ValueError: first"})
        shown.make(other, "failed", {"message": "ValueError: a [b] :smile: \x1b[31m c"})
        shown.make(other, "lost", {})
        # Runs that never began: the program could not be compiled.
        display.on_compile_begin("q", "fixup, batch 128")
        display.on_compile_end("q", 2.0, 0)
        display.on_run_end("23", "oom", {"message": "too large"})
        display.on_message("a note [bold]")
    assert shown.file.getvalue().splitlines() == [
        "compiled fixup, batch 64 (12 s)",
        "[16/24] fixup, batch 64, rate 2^-3, seed 0: 91.7% (1.2 s)",
        "[17/24] fixup, batch 64, rate 2^-3, seed 0: diverged at step 17",
        "[18/24] fixup, batch 64, rate 0.1, seed 1: out of memory: RESOURCE_EXHAUSTED: 12 GiB",
        "[18/24] fixup, batch 64, rate 0.1, seed 1: waits again: ValueError: first",
        "[19/24] fixup, batch 64, rate 0.1, seed 1: failed: ValueError: a [b] :smile:  [31m c",
        "[19/24] fixup, batch 64, rate 0.1, seed 1: taken over by another worker",
        "[20/24] run 23: out of memory: too large",
        "a note [bold]",
    ]


def test_lines_tell_the_time_left_and_what_experiments_say(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    shown = Shown({"alpha": (None, 1.0)}, 4, swept=None, describe=lambda r: f"BLEU {r['bleu']}")
    key = shown.begin(RunSettings())
    now = 160.0
    shown.display.on_run_end(key, "finished", {"bleu": 31})
    shown.display.close()
    shown.display._print(None, last=True)
    assert shown.file.getvalue() == "[1/4] alpha none: BLEU 31; 3 min 0 s left\n"


def test_many_runs_print_a_line_a_second(monkeypatch):
    total = module.MANY + 1
    shown = Shown({"seed": tuple(range(total))}, total)
    monkeypatch.setattr(module, "FRAMES", 50)
    start = time.monotonic()
    with shown.display:
        for seed in range(total):
            state = ("finished", "diverged", "failed")[seed % 3]
            shown.make(RunSettings(seed=seed), state, result(message=f"number {seed}"))
            time.sleep(0.002)
    seconds = time.monotonic() - start
    lines = shown.file.getvalue().splitlines()
    failures = [line for line in lines if ": failed: " in line]
    assert failures[: module.MOST_FAILURES] == [
        f"[{seed + 1}/{total}] seed {seed}: failed: number {seed}" for seed in range(2, 30, 3)
    ]
    rest = [line for line in lines if line not in failures[: module.MOST_FAILURES] and "/" in line]
    # One at the start of each second, and one at the end.
    assert 2 <= len(rest) <= seconds + 2
    assert rest[-1].startswith(f"[{total}/{total}]")
    more = sum(int(n) for line in rest for n in re.findall(r"; (\d+) more", line))
    assert more + len(rest) + module.MOST_FAILURES == total


# The table.


@pytest.mark.parametrize("axes", [{}, PROTOCOL, MANY_CELLS, TEN])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (20, 5), (300, 60)])
@pytest.mark.parametrize("slots", [0, 1, 40])
def test_the_table_fits_the_terminal(axes, width, height, slots):
    grid = points(axes, {"seed": 0} if "seed" not in axes else {})[:: 1 + len(axes)]
    shown = Shown(axes, len(grid), console=terminal(width, height))
    for settings in grid[: len(grid) // 2]:
        shown.make(settings)
    for settings in grid[len(grid) // 2 :][:slots]:
        shown.begin(settings, 12345 - 61728, 123456)
    for place, settings in enumerate(grid[:5]):
        shown.display.on_compile_begin(str(place), label(vars(settings)))
    shown.display.on_counts({"finished": len(grid) // 2, "running": slots + 3})
    lines = shown.drawn().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    if slots and (width, height) == (80, 24):
        assert any("12345/123456" in line and "0.412" in line for line in lines)
        assert slots < 40 or axes is not TEN or any(re.match(r"and \d+ more", s) for s in lines)


def test_the_table_shows_runs_counts_and_the_best():
    shown = Shown(PROTOCOL, 24, over=["diverged"] * 3, console=terminal(), rows=[])
    base = RunSettings(batch_size=32)
    for rate, seed, state, accuracy in [
        (0.125, 0, "finished", 0.80),
        (0.125, 1, "finished", 0.90),
        (0.25, 0, "finished", 0.89),
        (0.25, 1, "finished", 0.83),
        (0.5, 0, "finished", 0.99),  # behind: its other seed diverged
        (0.5, 1, "diverged", None),
    ]:
        shown.make(dataclasses.replace(base, peak_lr=rate, seed=seed), state, result(accuracy))
    shown.make(dataclasses.replace(base, batch_size=128), "diverged", {"steps": 3})
    key = shown.begin(RunSettings(scheme="skipinit", batch_size=128, peak_lr=0.25, seed=1))
    shown.display.on_epoch(key, 28, {"test_accuracy": 0.617})
    shown.display.on_compile_begin("p", "skipinit, batch 32")
    text = shown.drawn()
    assert "7/24" in text
    assert "5 finished, 2 diverged, 1 running, 16 to go" in text
    assert re.search(r"skipinit, batch 128, rate 2\^-2, seed 1 .* 28/56 +0\.412 +61\.7%", text)
    assert re.search(r"best so far +batch 32 +batch 128\n *fixup +86\.0% 2\^-2 +diverged", text)
    assert "Compiling skipinit, batch 32, " in text
    # What could not be compiled is compiled no more, and a lost run is somebody's to make.
    shown.display.on_compile_end("p", 2.0, 0)
    shown.display.on_run_end(key, "lost", {})
    text = shown.drawn()
    assert "Compiling" not in text and "17 to go" in text


def test_streamed_runs_show_the_fraction_of_waiting_for_input():
    shown = Shown({}, 2, console=terminal(), swept=None)
    key = shown.begin(RunSettings())
    assert "input" not in shown.drawn()
    shown.display.on_step(key, 30, {**curve(), "input_fraction": np.float32([0.5, 0.125])})
    assert re.search(r"test +input\n.* 30/56 +0\.412 +- +12\.5%", shown.drawn())


def test_runs_of_before_count():
    row = {**dataclasses.asdict(RunSettings(batch_size=32, peak_lr=0.25)), "test_accuracy": None}
    rows = [
        {**row, "key": "0", "state": "finished", "test_accuracy": 0.75},
        {**row, "key": "1", "state": "diverged", "batch_size": 128},
        {**row, "key": "2", "state": "waiting", "batch_size": 8},
        {**row, "key": "of another grid", "state": "finished"},
    ]
    shown = Shown(PROTOCOL, 24, console=terminal(), rows=rows)
    text = shown.drawn()
    assert re.search(r"fixup +75\.0% 2\^-2 +diverged", text) and "batch 8" not in text
    assert "2/24" in text and "1 finished, 1 diverged, 22 to go" in text


def test_claimed_runs_that_wait_for_their_program_are_not_at_other_workers(tmp_path):
    sweep = small.make({"seed": (0, 1, 2, 3, 4)})
    with open_ledger(tmp_path / "ledger.db") as book:
        enter(sweep.runs, book)
        shown = Shown(sweep.axes, 5, console=terminal())
        here, there = (this_worker("cpu", {}) for _ in range(2))
        claims = Claims(
            ledger=book, worker=here, task=sweep.task, keys=sweep.keys,
            programs=types.SimpleNamespace(built=sweep.programs), folder=tmp_path,
            callback=shown.display, stop=lambda: False,
        )  # fmt: skip
        assert len(claims.claim(None, 3)) == 3
        claims.beat()
        text = shown.drawn()
        assert "other workers" not in text and "5 to go" in text
        assert len(book.claim(there, limit=1)) == 1
        claims.beat()
        assert "1 at other workers, 4 to go" in shown.drawn()
        shown.display.on_counts({"finished": 2, "oom": 1, "elsewhere": 1, "waiting": 1})
        assert "2 finished, 1 out of memory, 1 at other workers, 1 to go" in shown.drawn()


def test_brackets_and_escapes_in_settings_are_text():
    name = "[bold]net[/bold] :smile: [/] \x1b[2J"
    axes = {"model": (name, "other"), "scheme": ("[red]s", "t"), "batch_size": (1, 2)}
    shown = Shown(axes, 8, console=terminal(132))
    settings = RunSettings(model=name, scheme="[red]s", batch_size=1, scalar_factor=0.1)
    shown.make(settings)
    shown.begin(settings)
    shown.display.on_compile_begin("p", name)
    text = shown.drawn()
    assert text.count("[bold]net[/bold] :smile: [/]  [2J") == 2
    assert re.search(r"^\[red\]s +91\.7%", text, re.MULTILINE)


def test_in_a_terminal_failures_stay_above_the_table():
    shown = Shown(PROTOCOL, 100, console=terminal())
    with shown.display:
        for seed in range(2 * module.MOST_FAILURES):
            shown.make(RunSettings(seed=seed), "failed", {"message": f"[x] {seed}"})
            shown.make(RunSettings(seed=seed + 50))
    text = shown.display.console.export_text()
    assert text.count("failed: [x]") == module.MOST_FAILURES
    assert "only counted" in text
    assert "91.7% (1.2 s)" not in text
    assert "20 finished, 20 failed" in text.replace("\n", "")


# It must not harm the sweep.


def test_no_event_raises():
    shown = Shown(PROTOCOL, 24)
    with shown.display as display:
        display.on_step("unknown", 3, {})
        display.on_epoch("unknown", 3, {})
        display.on_compile_end("unknown", 1.0, 1)
        key = shown.begin(RunSettings(), 0, 0)
        display.on_step(key, 3, {})
        display.on_step(key, 3, {"loss": np.float32([])})
        display.on_epoch(key, 3, {"test_accuracy": "much"})
        display.on_run_end(key, "finished", {"test_accuracy": float("nan"), "seconds": None})
        display.on_message(None)
    text = shown.file.getvalue()
    assert text.count("the display missed something") == 3
    assert "seed 0: - (0 s)" in text


def test_threads_may_report_at_once():
    total = 400
    shown = Shown({"seed": tuple(range(total))}, total)
    shown.display._left_text = lambda: ""

    def work(first: int) -> None:
        for seed in range(first, total, 8):
            shown.make(RunSettings(seed=seed))

    with shown.display:
        threads = [threading.Thread(target=work, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = shown.file.getvalue().splitlines()
    places = [int(re.match(r"\[(\d+)/400\]", line)[1]) for line in lines]
    assert places == list(range(1, total + 1))
    assert len({line.partition(":")[0].partition(" ")[2] for line in lines}) == total


def test_two_thousand_runs_cost_next_to_nothing():
    axes = {"peak_lr": tuple(2.0**-k for k in range(10)), "seed": tuple(range(200))}
    grid = points(axes, {})
    shown = Shown(axes, len(grid), console=terminal())
    with shown.display:
        start = time.thread_time()
        for settings in grid:
            shown.make(settings)
        seconds = time.thread_time() - start
    # Of runs of 50 ms 1%.
    assert seconds / len(grid) < 0.5e-3
    start = time.thread_time()
    for _ in range(10):
        shown.drawn()
    # Of the drawing thread's third of a second one tenth.
    assert (time.thread_time() - start) / 10 < 0.1 / module.FRAMES


def test_a_terminal_that_stands_still_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    go_on = threading.Event()

    class Stopped(io.StringIO):
        def write(self, text):
            go_on.wait(20)
            return super().write(text)

    start = time.monotonic()
    shown = Shown(PROTOCOL, 100, console=Console(file=Stopped(), force_terminal=True))
    with shown.display as display:
        for seed in range(100):
            shown.make(RunSettings(seed=seed), "failed", {"message": "x"})
            display.on_message("a note")
    assert time.monotonic() - start < 5
    go_on.set()


SCRIPT = """
import sys, time, types
# Without JAX, which the display does not need.
for name in ("nf_resnets", "nf_resnets.sweep", "nf_resnets.training"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [name.replace(".", "/")]
from nf_resnets.sweep.display import Display
settings = {"scheme": "fixup", "batch_size": 64}
runs = [
    types.SimpleNamespace(
        key=str(n), label=f"seed {n}", program="p", num_steps=9, step_cost=1, settings=settings
    )
    for n in range(400)
]
with Display(runs, swept=[]) as display:
    for run in runs[:20]:
        key = run.key
        display.on_run_begin(key, run.label, settings, 0, 9)
        display.on_step(key, 3, {"loss": [0.5]})
        time.sleep(0.02)
        print("others print as well", flush=True)
        display.on_run_end(key, "finished", {"test_accuracy": 0.5, "seconds": 0.02})
print("others print as well", flush=True)
with open(sys.argv[1], "w") as file:
    file.write("went to its end")
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    return {**kept, "TERM": "xterm-256color"}


def test_a_broken_pipe_does_not_stop_the_sweep(tmp_path):
    during = '        print("others print as well", flush=True)\n'
    assert during in SCRIPT
    script = SCRIPT.replace(during, "")  # what the script prints itself would end it
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "end")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline().startswith(b"[1/400] seed 0: 50.0%")
    process.stdout.close()
    errors = process.stderr.read()
    assert (process.wait(60), errors) == (0, b"")
    assert (tmp_path / "end").read_text() == "went to its end"


@pytest.mark.parametrize("ending", [None, signal.SIGTERM])
def test_the_terminal_is_clean_however_it_ends(tmp_path, ending):
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "end")],
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment(),
        start_new_session=True,
    )
    os.close(there)
    seen, to_send = b"", ending
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while select.select([here], [], [], 60)[0]:
            seen += os.read(here, 1 << 16)
            if to_send is not None and re.search(rb" [1-9]\d*/400", seen):
                process.send_signal(to_send)
                to_send = None
    os.close(here)
    # Nothing handles the signal, as when a second one comes while runs are being saved.
    assert process.wait(60) == (0 if ending is None else -ending)
    cursor = re.findall(rb"\x1b\[\?25([lh])", seen)
    assert cursor and cursor[-1] == b"h"
    assert b"?1049h" not in seen  # never the other screen
    text = re.sub(rb"\x1b\[[?0-9;]*[A-Za-z]", b"", seen).decode()
    assert "others print as well" in text
    assert "Traceback" not in text
    assert (tmp_path / "end").exists() == (ending is None)
    if ending is None:
        assert "20 finished, 380 to go" in text


# Time left.


EQUAL = ("p", 1.0)


class Clock:
    """Runs of a worker at given times."""

    def __init__(self, runs):
        self.left = TimeLeft(runs, 0.0)
        self.running = []

    def begin(self, run, now, first=0, num_steps=100):
        self.running.append(Running("", {}, *run, now, first, first, num_steps))
        self.left.begin(self.running[-1])
        return self.running[-1]

    def end(self, running, now):
        self.running.remove(running)
        self.left.end(running, now, is_over=True)

    def make(self, run, start, stop, **options):
        self.end(self.begin(run, start, **options), stop)

    def seconds(self, to_go, now, elsewhere=0):
        return self.left.seconds(self.running, to_go, now, elsewhere)


def test_time_left_of_equal_runs_is_their_number_over_the_pace():
    clock = Clock([EQUAL] * 10)
    assert clock.seconds(10, 1.0) is None
    for start in (0.0, 3.0):  # two at a time, 3 s each
        for running in [clock.begin(EQUAL, start), clock.begin(EQUAL, start)]:
            clock.end(running, start + 3.0)
    assert clock.seconds(6, 6.0) == pytest.approx(9.0)
    # Half way through two more of them.
    for _ in range(2):
        clock.begin(EQUAL, 6.0).step = 50
    assert clock.seconds(4, 7.5) == pytest.approx(7.5)
    # Another worker with as many slots: what nobody has begun takes half as long.
    assert clock.seconds(4, 7.5, elsewhere=2) == pytest.approx(7.5 / 2)


def test_time_left_weighs_programs_by_their_work_until_they_are_measured():
    runs = [(str(work), float(work)) for work in (1, 2, 4, 8) for _ in range(2)]
    clock = Clock(runs)
    clock.make(runs[0], 0.0, 1.0)
    clock.make(runs[1], 1.0, 2.0)
    # Two runs each of 2, 4 and 8 times the work.
    assert clock.seconds(6, 2.0) == pytest.approx(2 * (2 + 4 + 8))
    clock.make(runs[2], 2.0, 8.0)  # three times slower than expected: 2 a unit of work in the mean
    assert clock.seconds(5, 8.0) == pytest.approx(6 + 2 * 2 * (4 + 8))


def test_time_left_takes_what_a_run_costs_besides_its_steps_once_a_run():
    """Not in proportion to the work, by which a small network would make deep ones look slow."""
    clock = Clock([("small", 4.0), ("deep", 400.0)])
    small = clock.begin(("small", 4.0), 0.0, num_steps=50)
    small.report(1, 5.0)  # five seconds to begin, then a tenth of a second a step
    for step in (11, 50):
        small.report(step, 5.0 + (step - 1) / 10)
    clock.end(small, 12.0)
    assert clock.seconds(1, 12.0) == pytest.approx(7.0 + 50 * 10.0)
    # The program itself once it is measured.
    deep = clock.begin(("deep", 400.0), 12.0, num_steps=50)
    deep.report(1, 20.0)
    deep.report(10, 37.0)
    assert clock.seconds(0, 37.0) == pytest.approx(25.0 / 10 * 40)


def test_time_left_counts_programs_that_are_not_compiled_yet():
    clock = Clock([("p", 1.0)] * 3 + [("q", 1.0)] * 2)
    clock.left.begin_compiling("p", 0.0)
    clock.left.end_compiling("p", 20.0)
    clock.make(("p", 1.0), 20.0, 22.0)
    # Four more runs of 2 s, and q to compile; one thread does it all.
    assert clock.seconds(4, 22.0) == pytest.approx(4 * 2 + 20)
    clock.left.begin_compiling("q", 22.0)
    assert clock.seconds(4, 27.0) == pytest.approx(4 * 2 + 15)
    assert clock.seconds(4, 52.0) == pytest.approx(4 * 2 + 6)  # late
    clock.left.end_compiling("q", 32.0)
    assert clock.seconds(4, 32.0) == pytest.approx(4 * 2)


def test_time_left_knows_what_was_made_before_and_that_diverged_runs_are_short():
    clock = Clock([EQUAL] * 2)
    clock.make(EQUAL, 0.0, 15.0, first=150, num_steps=300)  # resumed in its middle
    assert clock.seconds(1, 15.0) == pytest.approx(30.0)
    clock = Clock([EQUAL] * 4)
    clock.make(EQUAL, 0.0, 10.0)
    diverged = clock.begin(EQUAL, 10.0)
    diverged.step = 10
    clock.end(diverged, 12.0)
    assert clock.seconds(2, 12.0) == pytest.approx(12.0)
