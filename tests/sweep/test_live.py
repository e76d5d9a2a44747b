"""What a running sweep shows, and that showing it never harms the sweep."""

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

import numpy as np
import pytest
from nf_resnets.sweep.crew import Crew
from nf_resnets.sweep.program import Programs
from rich.console import Console

from nf_resnets.sweep import driver, grid, live, open_ledger
from nf_resnets.sweep.live import Live
from nf_resnets.sweep.settings import RunSettings, key
from nf_resnets.sweep.time_left import TimeLeft
from nf_resnets.sweep.words import SINGLE, label, swept
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
NO_RATE = {"batch_size": (32, 64), "seed": (0, 1, 2)}


def curve(loss: float = 0.4123) -> dict[str, np.ndarray]:
    return {
        name: np.float32([9.0, loss]) for name in ("loss", "accuracy", "grad_norm", "update_norm")
    }


def result(accuracy: float | None = 0.917, **more) -> dict:
    return {"steps": 56, "test_accuracy": accuracy, "seconds": 1.23, "message": None, **more}


def terminal(width: int = 80, height: int = 24) -> Console:
    return Console(
        file=io.StringIO(),
        force_terminal=True,
        width=width,
        height=height,
        record=True,
        _environ={"TERM": "xterm"},
    )


def drawn(display: Live) -> str:
    """A frame as text."""
    display.console.print(display.frame())
    return display.console.export_text()


def plain(axes, total, done=None) -> tuple[Live, io.StringIO]:
    file = io.StringIO()
    return Live(axes, total, done or {}, console=Console(file=file, width=80)), file


def begin(display, settings: RunSettings, step: int = 0, num_steps: int = 56) -> None:
    """A run enters a slot, named as a worker names it."""
    words = label(vars(settings), swept(display._axes) or SINGLE)
    display.on_run_begin(key(settings), words, vars(settings), step, num_steps)


def make(display, settings: RunSettings, state: str = "finished", outcome=None) -> None:
    """A run from its beginning to its end."""
    begin(display, settings)
    display.on_step(key(settings), 28, curve())
    display.on_epoch(key(settings), 28, {"test_accuracy": 0.5})
    display.on_run_end(key(settings), state, outcome or result())


# Plain lines.


def test_plain_lines_tell_how_each_run_ended():
    display, file = plain(PROTOCOL, 24, {"finished": 10, "diverged": 5, "waiting": 9})
    one = RunSettings(scheme="fixup", batch_size=64, peak_lr=0.125, seed=0)
    other = dataclasses.replace(one, peak_lr=0.1, seed=1)
    with display:
        display.on_compile_begin("p", "fixup, batch 64")
        display.on_compile_end("p", 12.3, 1)
        make(display, one)
        make(display, one, "diverged", {"steps": 17, "seconds": 0.1, "message": "loss nan"})
        make(display, other, "oom", {"message": "RESOURCE_EXHAUSTED: 12 GiB"})
        make(display, other, "waiting", {"message": "ValueError: first"})
        make(display, other, "failed", {"message": "ValueError: a [b] :smile: \x1b[31m c"})
        make(display, other, "lost", {})
        display.on_message("a note [bold]")
    assert file.getvalue().splitlines() == [
        "compiled fixup, batch 64 (12 s)",
        "[16/24] fixup, batch 64, rate 2^-3, seed 0: 91.7% (1.2 s)",
        "[17/24] fixup, batch 64, rate 2^-3, seed 0: diverged at step 17",
        "[18/24] fixup, batch 64, rate 0.1, seed 1: out of memory: RESOURCE_EXHAUSTED: 12 GiB",
        "[18/24] fixup, batch 64, rate 0.1, seed 1: waits again: ValueError: first",
        "[19/24] fixup, batch 64, rate 0.1, seed 1: failed: ValueError: a [b] :smile:  [31m c",
        "[19/24] fixup, batch 64, rate 0.1, seed 1: taken over by another worker",
        "a note [bold]",
    ]


def test_a_run_that_never_began_is_named_by_its_label_or_key():
    display, file = plain(PROTOCOL, 24)
    settings = RunSettings(batch_size=32)
    with display:
        display.on_run_end(
            key(settings), "oom", {"message": "too large", "label": "fixup, batch 32"}
        )
        display.on_run_end("a" * 64, "failed", {"message": "no such thing"})
    assert file.getvalue().splitlines() == [
        "[1/24] fixup, batch 32: out of memory: too large",
        "[2/24] run aaaaaaaa: failed: no such thing",
    ]


def test_what_could_not_be_compiled_is_compiled_no_more():
    display = Live(PROTOCOL, 24, {}, console=terminal())
    display.on_compile_begin("p", "fixup, batch 32")
    assert "compiling fixup, batch 32, " in drawn(display)
    display.on_compile_end("p", 2.0, 0)
    assert "compiling" not in drawn(display)


def test_lines_name_only_what_is_swept():
    display, file = plain({"peak_lr": (0.5, 1.0), "alpha": (None, 1.0), "seed": (3,)}, 4)
    with display:
        make(display, RunSettings(peak_lr=1.0, seed=3))
    assert file.getvalue() == "[1/4] alpha none, rate 2^0: 91.7% (1.2 s)\n"


def test_large_sweeps_print_a_line_a_second(monkeypatch):
    total = live.MANY + 1
    display, file = plain({"seed": tuple(range(total))}, total)
    monkeypatch.setattr(live, "FRAMES", 50)
    start = time.monotonic()
    with display:
        for seed in range(total):
            state = ("finished", "diverged", "failed")[seed % 3]
            make(display, RunSettings(seed=seed), state, result(message=f"number {seed}"))
            time.sleep(0.002)
    seconds = time.monotonic() - start
    lines = file.getvalue().splitlines()
    failures = [line for line in lines if ": failed: " in line]
    assert failures[: live.MOST_FAILURES] == [
        f"[{seed + 1}/{total}] seed {seed}: failed: number {seed}" for seed in range(2, 30, 3)
    ]
    rest = [line for line in lines if line not in failures[: live.MOST_FAILURES] and "/" in line]
    # One at the start of each second, and one at the end.
    assert 2 <= len(rest) <= seconds + 2
    assert rest[-1].startswith(f"[{total}/{total}]")
    more = sum(int(n) for line in rest for n in re.findall(r"; (\d+) more", line))
    assert more + len(rest) + live.MOST_FAILURES == total


# The table.


@pytest.mark.parametrize("axes", [{}, NO_RATE, PROTOCOL, MANY_CELLS, TEN])
@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (40, 12), (132, 43), (80, 10), (20, 5), (300, 60)]
)
@pytest.mark.parametrize("seats", [0, 1, 40])
def test_the_table_fits_the_terminal(axes, width, height, seats):
    points = grid.points(axes, {"seed": 0} if "seed" not in axes else {})[:: 1 + len(axes)]
    display = Live(axes, len(points), {}, console=terminal(width, height))
    for settings in points[: len(points) // 2]:
        make(display, settings)
    for settings in points[len(points) // 2 :][:seats]:
        begin(display, settings, 0, 123456)
        display.on_step(key(settings), 12345, curve(1e-5))
    for place, settings in enumerate(points[:5]):
        display.on_compile_begin(str(place), label(vars(settings)))
    display.on_counts({"finished": len(points) // 2, "running": seats + 3})
    lines = drawn(display).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) < height
    if seats and (width, height) == (80, 24):
        assert any("12345/123456" in line and "1e-05" in line for line in lines)


def test_the_table_shows_runs_counts_and_the_best():
    display = Live(PROTOCOL, 24, {"diverged": 3, "waiting": 21}, console=terminal())
    usual = RunSettings(batch_size=32)
    for rate, seed, state, accuracy in [
        (0.125, 0, "finished", 0.80),
        (0.125, 1, "finished", 0.90),
        (0.25, 0, "finished", 0.89),
        (0.25, 1, "finished", 0.83),
        (0.5, 0, "finished", 0.99),  # stands behind: its other seed diverged
        (0.5, 1, "diverged", None),
    ]:
        make(display, dataclasses.replace(usual, peak_lr=rate, seed=seed), state, result(accuracy))
    make(display, dataclasses.replace(usual, batch_size=128), "diverged", {"steps": 3})
    running = RunSettings(scheme="skipinit", batch_size=128, peak_lr=0.25, seed=1)
    begin(display, running)
    display.on_step(key(running), 28, curve())
    display.on_epoch(key(running), 28, {"test_accuracy": 0.617})
    display.on_compile_begin("p", "skipinit, batch 32")
    text = drawn(display)
    assert "10/24" in text
    assert "5 finished, 5 diverged, 1 running, 13 to go" in text
    assert re.search(r"skipinit +128 +2\^-2 +1 .* 28/56 +0\.412 +61\.7%", text)
    assert re.search(r"best so far +batch 32 +batch 128\n *fixup +86\.0% 2\^-2 +diverged", text)
    assert "compiling skipinit, batch 32, " in text
    # One that was taken away is to be made by somebody.
    display.on_run_end(key(running), "lost", {})
    assert "14 to go" in drawn(display)


def test_what_other_workers_do_is_counted_when_it_is_told():
    display = Live(PROTOCOL, 24, {"running": 4}, console=terminal())
    assert "24 to go" in drawn(display)
    settings = RunSettings()
    begin(display, settings)
    display.on_counts({"finished": 7, "oom": 1, "running": 1, "elsewhere": 3, "waiting": 12})
    text = drawn(display)
    assert "8/24" in text
    assert "7 finished, 1 out of memory, 1 running, 3 at other workers, 12 to go" in text


def test_the_best_of_before_is_known_from_the_rows():
    row = {**dataclasses.asdict(RunSettings(batch_size=32, peak_lr=0.25)), "key": "k"}
    rows = [
        {**row, "state": "finished", "test_accuracy": 0.75},
        {**row, "state": "diverged", "test_accuracy": None, "batch_size": 128},
        {**row, "state": "waiting", "test_accuracy": None, "batch_size": 8},
    ]
    display = Live(PROTOCOL, 24, {"finished": 1}, console=terminal(), rows=rows)
    assert re.search(r"fixup +75\.0% 2\^-2 +diverged", drawn(display))


def test_claimed_runs_that_wait_for_their_program_are_not_at_other_workers(tmp_path):
    sweep = small.make({"seed": (0, 1, 2, 3, 4)})
    with open_ledger(tmp_path / "ledger.db") as book:
        driver.enter(sweep, book)
        display = Live({"seed": (0, 1, 2, 3, 4)}, 5, {}, console=terminal())
        here, there = (driver.this_worker("cpu", {}) for _ in range(2))
        crew = Crew(
            ledger=book, worker=here, keys=sweep.keys, programs=Programs(None, None),
            folder=tmp_path, callback=display, stop=lambda: False,
        )  # fmt: skip
        assert len(crew.claim(None, 3)) == 3
        crew.beat()
        text = drawn(display)
        assert "other workers" not in text and "5 to go" in text
        assert len(book.claim(there, limit=1)) == 1
        crew.beat()
        assert "1 at other workers, 4 to go" in drawn(display)


def test_brackets_and_escapes_in_settings_are_text():
    name = "[bold]net[/bold] :smile: [/] \x1b[2J"
    axes = {"model": (name, "other"), "scheme": ("[red]s", "t"), "batch_size": (1, 2)}
    display = Live(axes, 8, {}, console=terminal(132))
    settings = RunSettings(model=name, scheme="[red]s", batch_size=1, scalar_factor=0.1)
    make(display, settings)
    begin(display, settings)
    display.on_compile_begin("p", label(vars(settings), ["model"]))
    text = drawn(display)
    assert text.count("[bold]net[/bold] :smile: [/]  [2J") == 2
    assert re.search(r"^\[red\]s +91\.7%", text, re.MULTILINE)


def test_in_a_terminal_failures_stay_above_the_table():
    display = Live(PROTOCOL, 24, {}, console=terminal())
    with display:
        for seed in range(2 * live.MOST_FAILURES):
            make(display, RunSettings(seed=seed), "failed", {"message": f"[x] {seed}"})
            make(display, RunSettings(seed=seed + 50))
    text = display.console.export_text()
    assert text.count("failed: [x]") == live.MOST_FAILURES
    assert "only counted" in text
    assert "91.7% (1.2 s)" not in text
    assert "20 finished, 20 failed" in text.replace("\n", "")


# It must not harm the sweep.


def test_no_event_raises():
    display, file = plain(PROTOCOL, 24)
    with display:
        display.on_step("unknown", 3, {})
        display.on_epoch("unknown", 3, {})
        display.on_compile_end("unknown", 1.0, 1)
        settings = RunSettings()
        begin(display, settings, 0, 0)
        display.on_step(key(settings), 3, {})
        display.on_step(key(settings), 3, {"loss": np.float32([])})
        display.on_epoch(key(settings), 3, {"test_accuracy": "much"})
        display.on_run_end(
            key(settings), "finished", {"test_accuracy": float("nan"), "seconds": None}
        )
        display.on_message(None)
    text = file.getvalue()
    assert text.count("the display missed something") == 3
    assert "seed 0: - (0 s)" in text


def test_threads_may_tell_at_once():
    display, file = plain({"seed": tuple(range(400))}, 400)

    def lane(first: int) -> None:
        for seed in range(first, 400, 8):
            make(display, RunSettings(seed=seed))

    with display:
        threads = [threading.Thread(target=lane, args=(first,)) for first in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = file.getvalue().splitlines()
    places = [int(re.match(r"\[(\d+)/400\]", line)[1]) for line in lines]
    assert places == list(range(1, 401))
    assert len({line.partition(":")[0].partition(" ")[2] for line in lines}) == 400


def test_two_thousand_runs_cost_next_to_nothing():
    axes = {"peak_lr": tuple(2.0**-k for k in range(10)), "seed": tuple(range(200))}
    points = grid.points(axes, {})
    display = Live(axes, len(points), {}, console=terminal())
    keys = [key(settings) for settings in points]
    display.__enter__()
    start = time.thread_time()
    for each, settings in zip(keys, points, strict=True):
        display.on_run_begin(each, label(vars(settings), axes), vars(settings), 0, 56)
        display.on_step(each, 28, curve())
        display.on_epoch(each, 28, {"test_accuracy": 0.5})
        display.on_run_end(each, "finished", result())
    seconds = time.thread_time() - start
    display.close()
    # Of runs of 50 ms 1%; measured: 0.016 ms.
    assert seconds / len(points) < 0.5e-3
    start = time.thread_time()
    for _ in range(10):
        drawn(display)
    # Of the drawing thread's third of a second one tenth; measured: 0.6 ms, and 0.5 for the text.
    assert (time.thread_time() - start) / 10 < 0.1 / live.FRAMES


def test_a_terminal_that_stands_still_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(live, "PATIENCE", 0.2)
    go_on = threading.Event()

    class Stopped(io.StringIO):
        def write(self, text):
            go_on.wait(20)
            return super().write(text)

    file = Stopped()
    start = time.monotonic()
    with Live(PROTOCOL, 24, {}, console=Console(file=file, force_terminal=True)) as display:
        for seed in range(100):
            make(display, RunSettings(seed=seed), "failed", {"message": "x"})
            display.on_message("a note")
    assert time.monotonic() - start < 5
    go_on.set()


SCRIPT = """
import sys, time
from rich.console import Console
from nf_resnets.sweep.live import Live
from nf_resnets.sweep.settings import RunSettings, key
with Live({"seed": (0, 1)}, 400, {}) as live:
    for seed in range(60):
        settings = RunSettings(seed=seed)
        live.on_run_begin(key(settings), f"seed {seed}", vars(settings), 0, 9)
        live.on_step(key(settings), 3, {"loss": [0.5]})
        time.sleep(0.02)
        print("others print as well", flush=True)
        live.on_run_end(key(settings), "finished", {"test_accuracy": 0.5, "seconds": 0.02})
print("others print as well", flush=True)
with open(sys.argv[1], "w") as file:
    file.write("went to its end")
"""


def environment() -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "FORCE_COLOR")}
    return {**kept, "TERM": "xterm-256color", "PYTHONPATH": os.getcwd()}


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
        assert "60 finished, 340 to go" in text


# Time left.


def test_time_left_of_equal_runs_is_their_number_over_the_pace():
    left = TimeLeft({"seed": tuple(range(10))}, 10, 0, 0.0)
    assert left.seconds(10, 1.0) is None
    for place in range(4):  # two at a time, 3 s each
        now = 3.0 * (place // 2)
        left.began(str(place), vars(RunSettings(seed=place)), 0, 100, now)
    for place in range(4):
        left.ended(str(place), True, 3.0 * (place // 2 + 1))
    assert left.seconds(6, 6.0) == pytest.approx(9.0)
    # Half way through two more of them.
    for place in (4, 5):
        left.began(str(place), vars(RunSettings(seed=place)), 0, 100, 6.0)
        left.went_on(str(place), 50)
    assert left.seconds(4, 7.5) == pytest.approx(7.5)
    # Another worker with as many seats: what nobody has begun takes half as long.
    assert left.seconds(4, 7.5, elsewhere=2) == pytest.approx(7.5 / 2)


def test_time_left_weighs_programs_by_their_budget():
    axes = {"steps": (100, 400), "batch_size": (8, 16), "seed": (0, 1)}
    left = TimeLeft(axes, 8, 0, 0.0)
    for seed in (0, 1):
        settings = RunSettings(epochs=0.0, steps=100, batch_size=8, seed=seed)
        left.began(str(seed), vars(settings), 0, 100, float(seed))
        left.ended(str(seed), True, float(seed + 1))
    # Two runs each of 2, 4 and 8 times the work.
    assert left.seconds(6, 2.0) == pytest.approx(2 * (2 + 4 + 8))


def test_time_left_takes_what_is_known_from_the_nearest_program():
    axes = {"scheme": ("fixup", "skipinit"), "batch_size": (8, 512), "seed": (0,)}
    left = TimeLeft(axes, 4, 0, 0.0)
    for batch, start, stop in [(8, 0.0, 10.0), (512, 10.0, 11.0)]:
        left.began(str(batch), vars(RunSettings(batch_size=batch, epochs=2.0)), 0, 100, start)
        left.ended(str(batch), True, stop)
    left.began("s", vars(RunSettings(scheme="skipinit", batch_size=8, epochs=2.0)), 0, 100, 11.0)
    left.ended("s", True, 41.0)
    # From fixup at 512 (1 s) and skipinit at 8 (30 s), of which neither is nearer.
    assert left.seconds(1, 41.0) == pytest.approx(15.5)


def test_time_left_knows_what_was_made_before():
    left = TimeLeft({"steps": (100, 300), "seed": (0, 1)}, 4, 2, 0.0)  # those of 100 steps
    settings = RunSettings(steps=300, epochs=0.0)
    left.began("a", vars(settings), 150, 300, 0.0)  # goes on from the middle
    left.ended("a", True, 15.0)
    assert left.seconds(1, 15.0) == pytest.approx(30.0)


def test_time_left_counts_runs_that_diverge_as_short():
    left = TimeLeft({"seed": (0, 1, 2, 3)}, 4, 0, 0.0)
    for seed, start, stop in [(0, 0.0, 10.0), (1, 10.0, 12.0)]:
        left.began(str(seed), vars(RunSettings(seed=seed)), 0, 100, start)
        left.went_on(str(seed), 10)
        left.ended(str(seed), True, stop)
    assert left.seconds(2, 12.0) == pytest.approx(12.0)


def test_before_anything_is_known_the_expected_is_taken():
    left = TimeLeft({"seed": tuple(range(8))}, 8, 0, 0.0, {"p": 10.0, "q": 20.0})
    assert left.seconds(8, 1.0) == pytest.approx(120.0)
    left.began("a", vars(RunSettings()), 0, 100, 0.0)
    left.began("b", vars(RunSettings(seed=1)), 0, 100, 0.0)
    assert left.seconds(6, 1.0) == pytest.approx(60.0)
