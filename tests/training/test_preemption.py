"""SIGTERM and SIGINT as a flag. What they do to a sweep is in tests/faults/test_kills.py."""

from __future__ import annotations

import concurrent.futures
import contextlib
import signal

import pytest

from nf_resnets.training.preemption import SIGNALS, Preemption


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


def test_an_ignored_signal_stays_ignored():
    with handlers(signal.SIG_IGN), Preemption() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert not stop.requested
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_installed():
    def inside():
        with Preemption():
            return [signal.getsignal(number) for number in SIGNALS]

    before = [signal.getsignal(number) for number in SIGNALS]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        assert pool.submit(inside).result() == before
