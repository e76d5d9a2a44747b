"""SIGTERM and SIGINT as a flag (case 5: save, exit 143, previous handlers back)."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nf_resnets.training.preemption import SIGNALS, Preemption
from tests.faults.saving import restored_step

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def handlers(value):
    """Both signals have this handler, and their own again afterwards."""
    before = {number: signal.signal(number, value) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_a_flag_and_the_handlers_come_back_at_once(number):
    came = []
    with handlers(lambda *args: came.append(args[0])):
        previous = signal.getsignal(number)
        with Preemption() as stop:
            assert (stop.requested, stop.signal, stop.exit_code) == (False, None, 0)
            assert signal.getsignal(signal.SIGTERM) != previous
            signal.raise_signal(number)
            assert (stop.requested, stop.signal, stop.exit_code) == (True, number, 128 + number)
            # The second one does what it always did, whichever of the two it is.
            for second in SIGNALS:
                assert signal.getsignal(second) is previous
                signal.raise_signal(second)
        assert came == list(SIGNALS)
        assert (stop.requested, stop.signal) == (True, number)


def test_the_handlers_come_back_without_a_signal_and_after_an_error():
    for error in (None, ValueError):
        with handlers(signal.default_int_handler):
            with contextlib.suppress(ValueError), Preemption() as stop:
                assert signal.getsignal(signal.SIGTERM) is not signal.default_int_handler
                if error is not None:
                    raise error
            assert [signal.getsignal(number) for number in SIGNALS] == [
                signal.default_int_handler
            ] * 2
            assert not stop.requested


def test_one_inside_another_hears_first():
    with handlers(signal.SIG_DFL):
        with Preemption() as outer:
            with Preemption() as inner:
                signal.raise_signal(signal.SIGTERM)
            assert (outer.requested, inner.requested) == (False, True)
            signal.raise_signal(signal.SIGTERM)
            assert outer.requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_object_serves_twice():
    with handlers(signal.SIG_DFL):
        stop = Preemption()
        for _ in range(2):
            with stop:
                assert not stop.requested
                signal.raise_signal(signal.SIGINT)
                assert stop.requested
            assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL


def test_an_ignored_signal_stays_ignored():
    with handlers(signal.SIG_IGN), Preemption() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert not stop.requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_installed():
    found = []

    def work():
        before = [signal.getsignal(number) for number in SIGNALS]
        with Preemption() as stop:
            found.append([signal.getsignal(number) for number in SIGNALS] == before)
        found.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True, False]


LOOP = """
import contextlib, signal, sys, time
from nf_resnets.training.preemption import Preemption
from tests.faults.saving import checkpoints, tree

# Whoever started the tests may have it ignored, as a shell does for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
ours = checkpoints(sys.argv[1])
found = ours.restore(tree(0))
first = 0 if found is None else found[0]
with Preemption() if sys.argv[2] == "heeds" else contextlib.nullcontext() as stop:
    for step in range(first + 1, 10**9):
        print(step, flush=True)
        # A step that takes no notice.
        until = time.monotonic() + float(sys.argv[3])
        while time.monotonic() < until:
            pass
        if stop is not None and stop.requested:
            ours.save(step, tree(step))
            break
assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
sys.exit(stop.exit_code)
"""


@contextlib.contextmanager
def loop(folder, manner, seconds=0.02):
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, folder, manner, str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        process.first = int(process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)],
)
def test_a_loop_that_is_preempted_saves_its_step(tmp_path, number, code):
    with loop(tmp_path / "run", "heeds") as process:
        assert process.first == 1
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (code, "")
        last = int(out.split()[-1]) if out else 1
    assert restored_step(tmp_path / "run") == last


@pytest.mark.slow
def test_a_loop_that_heeds_nothing_is_ended_without_a_checkpoint(tmp_path):
    """Negative control."""
    with loop(tmp_path / "run", "heeds nothing") as process:
        process.terminate()
        process.communicate(timeout=30)
        assert process.returncode == -signal.SIGTERM
    assert restored_step(tmp_path / "run") is None


@pytest.mark.slow
def test_the_second_signal_ends_a_step_that_takes_long(tmp_path):
    with loop(tmp_path / "run", "heeds", seconds=60) as process:
        process.terminate()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
        process.terminate()
        assert process.wait(timeout=10) == -signal.SIGTERM
    assert restored_step(tmp_path / "run") is None
