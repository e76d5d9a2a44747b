"""What a training shows in a terminal and in a pipe."""

import io
import time

import numpy as np
import pytest
from rich.console import Console, Group

from nf_resnets.trained import display as module
from nf_resnets.trained.display import Display
from nf_resnets.training import compiling
from nf_resnets.training.progress import Progress

SHOWN = {"loss": "training loss", "accuracy": "accuracy"}


def test_lines_have_the_means_since_the_last_one_and_the_time_left(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    with Display("a network", 2, SHOWN) as display:
        for step, loss in ((1, 4.0), (2, 2.0), (3, 1.0), (4, 0.5), (5, 0.25)):
            display.on_step(step, 5, {"loss": loss, "accuracy": step / 5})
            now += 10.0
    assert capsys.readouterr().out.splitlines() == [
        "Compiling a network",
        "  step 2 of 5: training loss 3.000, accuracy 30.0%; 30 s left",
        "  step 4 of 5: training loss 0.750, accuracy 70.0%; 10 s left",
        "  step 5 of 5: training loss 0.250, accuracy 100.0%",
    ]


def test_a_line_has_the_steps_of_an_earlier_process(capsys):
    curve = np.array([[9.0, 0.0], [9.0, 0.0], [4.0, 0.5]], np.float32)
    with Display("a network", 2, SHOWN) as display:
        display.on_begin(Progress(("loss", "accuracy"), 4, 3, curve))
        display.on_step(4, 4, {"loss": 2.0, "accuracy": 1.0})
    assert "  step 4 of 4: training loss 3.000, accuracy 75.0%" in capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 80])
def test_a_terminal_shows_a_spinner_then_a_bar_on_one_line(width, monkeypatch):
    console = Console(
        file=io.StringIO(), force_terminal=True, width=width, record=True,
        _environ={"TERM": "xterm"},
    )  # fmt: skip
    display = Display("a network", 100, SHOWN, console)
    monkeypatch.setattr(compiling.Compiling, "expected", lambda self: 20.0)
    console.print(Group(display._frame()))
    display.on_step(1, 50, {"loss": 1.0, "accuracy": 0.5})
    time.sleep(0.01)
    display.on_step(11, 50, {"loss": 1.0, "accuracy": 0.7})
    console.print(Group(display._frame()))
    display.on_step(50, 50, {"loss": 1.0, "accuracy": 0.7})
    console.print(Group(display._frame()))
    compiled, bar, *_, tested = console.export_text().splitlines()
    assert compiled[0] in compiling.SPINNER
    assert compiled[1:].startswith(" Compiling a network, 0")
    assert "50/50  testing" in tested
    assert "11/50" in bar and " left" in bar and max(len(compiled), len(bar)) <= width
    assert width < 80 or (compiled.endswith("(about 20 s)") and "accuracy 60.0%" in bar)


def test_a_compilation_is_expected_to_take_so_many_times_its_lowering():
    compiling._listen("/jax/core/compile/jaxpr_trace_duration", 9.0)
    found = compiling.Compiling("a network")
    assert found.expected() is None
    for stage, seconds in (("trace", 0.5), ("trace", 0.1), ("to_mlir_module", 0.75)):
        compiling._listen(f"/jax/core/compile/jaxpr_{stage}_duration", seconds)
    assert found.expected() == pytest.approx(compiling.TIMES * 1.25)
