"""Titles that say what a figure shows: the rule."""

import re

from experiments.findings import how_deep, who_trains, who_trains_where


def row(title, accuracy, status="finished"):
    return {"title": title, "status": status, "test_accuracy": str(accuracy)}


def test_a_network_trains_halfway_to_the_best_if_no_run_diverged():
    rows = [
        row("best", 0.9), row("half", 0.51), row("less", 0.49), row("gone", 0.9),
        row("gone", "nan", "diverged"), row("two, seeds", 0.5), row("two, seeds", 0.6),
    ]  # fmt: skip
    assert who_trains(rows, 0.1, where=" here") == (
        "Best, “two, seeds” and half train here (90.0, 55.0 and 51.0%); less and gone do not"
    )
    assert who_trains(rows[:1], 0.1) == "Best trains (90.0%)"


def test_where_nothing_is_shown_it_is_said():
    # Below 20 points above chance.
    said = who_trains([row("a", 0.29), row("b", "nan", "diverged")], 0.1, where=" here")
    assert said == "No network trains here: the best has 29.0%, chance is 10.0%"
    assert who_trains([row("a", 0.31)], 0.1) == "A trains (31.0%)"
    assert (
        who_trains_where({"x": [row("a", 0.1)], "y": [row("a", 0.2)]}, 0.1) == "No network trains"
    )


def test_many_networks_are_counted():
    rows = [row(f"n{i}", 0.9 + i / 100) for i in range(5)]
    assert who_trains(rows, 0.1) == "All 5 train (90.0 to 94.0%)"
    assert who_trains([*rows, row("bad", 0.1)], 0.1) == "5 of 6 train (90.0 to 94.0%); bad does not"


def test_panels_are_told_apart():
    panels = {
        "batch 32": [row("a", 0.9), row("b", 0.8), row("c", 0.1)],
        "batch 256": [row("a", 0.9), row("b", 0.2), row("c", 0.1)],
    }
    assert who_trains_where(panels, 0.1) == "a trains throughout; b only at batch 32; c nowhere"
    only = {"ResNet-50": [row("a", 0.9)]}
    assert who_trains_where(only, 0.1, at="as") == "A trains as ResNet-50 (90.0%)"


def test_where_networks_fail_is_said_by_kind_and_depth():
    def at(title, **of):
        return [
            {**row(title, each), "depth": depth[1:], "status": "diverged" if each is None else "ok"}
            for depth, each in of.items()
        ]

    rows = [
        *at("good", _10=0.9, _100=0.9, _1000=0.8), *at("guess", _10=0.8, _100=0.14, _1000=0.06),
        *at("gone", _10=0.9, _100=None, _1000=None), *at("poor", _10=0.9, _1000=0.3),
        *at("mixed", _10=0.9, _100=0.1, _1000=None), *at("short", _10=0.1, _100=0.9),
    ]  # fmt: skip
    assert how_deep(rows, 0.1) == (
        "Good trains at 1,000 layers (80.0%); guess is at chance from 100 on; gone diverges from "
        "100 on; poor does not train at 1,000; mixed is at chance at 100, and diverges at 1,000; "
        "short is at chance at 10."
    )
    # Of two seeds one diverged, at a depth of several where nothing trains.
    rows = [*at("a", _10=None), *at("a", _10=0.9), *at("b", _10=0.2)]
    assert how_deep(rows, 0.1) == (
        "No network trains at 10 layers: the best has 20.0%, chance is 10.0%; a diverges at 10; b "
        "does not train at 10."
    )


def texts(figure):
    """What an SVG says: Matplotlib names each text in a comment before its letters."""
    return re.findall(r"<!-- (.*?) -->", figure.read_text(), re.DOTALL)
