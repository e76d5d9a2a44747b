"""What trainings show, in a terminal and in a pipe, and that showing it never harms them."""

from __future__ import annotations

import io
import os
import re

import numpy as np
from rich.console import Console

from nf_resnets.training.display import Display
from tests.sweep.small import plans

CURVE = {"loss": np.float32([9.0, 0.4123]), "accuracy": np.float32([0.1, 0.5])}
DONE = {"test_accuracy": 0.917, "seconds": 1.23, "steps_done": 14}


def piped(*args, **options):
    return Display(*args, console=Console(file=io.StringIO()), **options)


def terminal(width=100):
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm"}
    )  # fmt: skip


def text_of(console):
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", console.file.getvalue())


def make(display, plan, state="finished", **result):
    """A run from its beginning to its end."""
    display.on_run_begin(plan.key, plan.label, plan.settings, 0, plan.num_steps)
    display.on_step(plan.key, 2, CURVE)
    row = {"epoch": 1, "train_loss": 1.5, "train_accuracy": 0.25, "test_accuracy": 0.5}
    display.on_epoch(plan.key, 6, row)
    display.on_run_end(plan.key, state, {**DONE, **result})


def test_a_pipe_has_a_line_for_each_run():
    runs = plans(4)
    with piped(runs) as display:
        display.on_compile_begin("p", "fixup")
        display.on_compile_end("p", 12.3, 1)
        make(display, runs[0])
        make(display, runs[1], "diverged", message="loss nan at step 8")
        display.on_compile_begin("q", "skipinit")
        display.on_compile_end("q", 2.0, 0)
        display.on_run_end(runs[2].key, "oom", {"message": "12 GiB: a [b] :smile: \x1b[31m c\nd"})
        display.on_message("a note [bold]")
    assert display._console.file.getvalue().splitlines() == [
        "compiling for fixup",
        "compiled in 12 s",
        "1/4 seed 0, peak_lr 0.01: 91.7% (1.2 s)",
        "2/4 seed 1, peak_lr 0.02: diverged: loss nan at step 8",
        "compiling for skipinit",
        "3/4 seed 2, peak_lr 0.03: oom: 12 GiB: a [b] :smile: \\x1b[31m c\\nd",
        "a note [bold]",
    ]


def test_a_terminal_has_a_bar_for_each_run_and_one_for_all():
    runs, console = plans(3), terminal()
    with Display(runs, console=console) as display:
        for run in runs[:2]:
            display.on_run_begin(run.key, run.label, run.settings, 7 * (run is runs[1]), 14)
        display.on_step(runs[0].key, 2, {**CURVE, "input_fraction": [0.25]})
        display.on_epoch(runs[0].key, 2, {"test_accuracy": 0.5})
        display.on_message("others print as well")
        display._bars.refresh()
        # Of 42 steps 9 are made: the ones of an earlier process count.
        everything, one, other = display._bars.tasks
        assert (everything.completed, one.completed, other.completed) == (9, 2, 7)
        display.on_run_end(runs[0].key, "diverged", {"steps_done": 2, "message": "loss nan"})
        assert everything.completed == 21 and [task.id for task in display._bars.tasks] == [0, 2]
    text = text_of(console)
    for words in ("25% of the time waiting for images", "others print as well", "loss nan"):
        assert words in text, words
    # The cursor is there at the end, and a process that is killed leaves it there.
    assert re.findall(r"\x1b\[\?25([lh])", console.file.getvalue())[-1] == "h"


def test_a_broken_pipe_ends_the_output_and_nothing_else():
    read, write = os.pipe()
    with open(write, "w") as gone:
        os.close(read)
        with Display(plans(3), console=Console(file=gone)) as display:
            for run in plans(3):
                make(display, run)
            display.on_message("nobody reads this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), write)  # what is buffered can be written
