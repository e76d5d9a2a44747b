"""What is compared takes turns, and ratios are medians of pairs."""

from __future__ import annotations

import time

import pytest

from benchmarks.timing import interleaved, ratio


def test_everyone_takes_a_turn_in_every_round_and_the_order_turns():
    calls = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = interleaved(functions, 4, warm_up=1)
    assert "".join(calls) == "baabbaabba"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 4, "b": 4}


def test_seconds_are_those_of_the_function(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    assert interleaved({"a": lambda: next(clock)}, 2, warm_up=0) == {"a": [2, 2]}
    # Two calls before the timed one move the clock, not the seconds.
    assert interleaved({"a": lambda: next(clock)}, 2, warm_up=0, untimed=2) == {"a": [2, 2]}
    assert next(clock) == 2 * 3 + 2 * 5


def test_a_ratio_is_the_median_of_those_of_neighbours():
    found = ratio([1.0, 2.0, 30.0], [2.0, 2.0, 20.0])
    assert found.value == 1.0
    assert (found.low, found.high) == (0.75, 1.25)  # of 0.5, 1, 1.5
    assert str(found) == "1.00 (0.75 to 1.25)"
    # A machine that is three times as slow in one round, and for one of a pair in another: the
    # medians, 3 and 1.5, have a ratio of 2.
    assert ratio([3.0, 3.0, 1.0], [3.0, 1.5, 1.0]).value == 1.0
    with pytest.raises(ValueError, match="zip"):
        ratio([1.0], [1.0, 2.0])
