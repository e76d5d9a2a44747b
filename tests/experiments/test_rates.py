"""Which rate is the best, and what a cell says of it."""

import functools

from experiments import rates
from experiments.experiment import Results
from experiments.rates import Line, Settings, best_rate, cell, rate_of, rows_at, widened
from nf_resnets import data

digits = functools.cache(lambda: data.load("digits"))
best_of = functools.partial(best_rate, rate=rate_of)


def row(rate, accuracy, seed=0, **more):
    status = "diverged" if accuracy is None else "finished"
    accuracy = "nan" if accuracy is None else accuracy
    return {
        "line": "a", "depth": "16", "log2_rate": str(rate), "seed": str(seed), "status": status,
        "title": "A", "test_accuracy": str(accuracy),
    } | more  # fmt: skip


def test_the_best_mean_over_the_seeds_wins_not_the_best_run():
    rows = [row(-1, 0.99), row(-1, 0.5, 1), row(-2, 0.8), row(-2, 0.82, 1)]
    found = best_of(rows)
    assert found.best == 0.25 and len(rows_at(found.best, rows, rate_of)) == 2
    # The sample's standard deviation of 80 and 82 is sqrt(2).
    assert cell([*rows, row(-3, 0.1)]) == "81.0 ± 1.4 (2^-2)"


def test_a_rate_at_which_a_run_diverged_stands_behind():
    rows = [row(-1, 0.99), row(-1, None, 1), row(-2, 0.8), row(-2, 0.6, 1)]
    assert best_of(rows).best == 0.25
    # It is marked that a better rate stands behind.
    assert cell([*rows, row(-3, 0.1)]) == "70.0 ± 14.1 (2^-2*)"
    rows = [*rows[:2], row(-2, None), row(-2, None, 1), row(0, None)]
    assert cell(rows) == "99.0 (2^-1), 1 of 2 diverged"


def test_by_the_trimmed_rule_the_runs_that_finished_decide():
    rows = [
        *(row(-1, accuracy, seed) for seed, accuracy in enumerate((0.9, 0.92, 0.91, 0.91, None))),
        *(row(-2, 0.8, seed) for seed in range(5)),
        *(row(0, accuracy, seed) for seed, accuracy in enumerate((0.99, None, None))),
    ]
    assert cell(rows) == "80.0 ± 0.0 (2^-2!*)"
    assert cell(rows, "trimmed") == "91.0 ± 0.8 (2^-1*), 1 of 5 diverged"
    lines, tried = {"a": Line("A", "skipinit")}, []
    for rule in ("strict", "trimmed"):
        settings = Settings(
            "digits", (16,), ("a",), (-2, -1, 0), seeds=tuple(range(5)), extend=1, best=rule
        )
        points = rates.points(lines, settings, digits(), rows)
        tried.append({point.key["log2_rate"] for point in points})
    text = rates.table(lines, Results(settings, digits(), rows))
    assert "91.0" in text and "* another rate has a better mean" in text.splitlines()[-1]
    # By the first rule the best rate is the lowest, and a lower one is tried.
    assert tried == [{-3, -2, -1, 0}, {-2, -1, 0}]


def test_a_best_rate_at_an_edge_carries_a_mark():
    rows = [row(-1, 0.5), row(-2, 0.9), row(-3, 0.8)]
    assert cell(rows) == "90.0 (2^-2)"
    assert cell(rows[:2]) == cell(rows[1:]) == "90.0 (2^-2!)"
    assert cell(rows[:1]) == "50.0 (2^-1!)"
    # A rate at which all runs diverged was tried, too.
    assert cell([*rows[1:], row(-1, None)]) == "90.0 (2^-2)"


def test_rates_go_on_beyond_an_edge_as_often_as_asked():
    def found(*rows, extend=2, grid=(-3, -4)):
        powers = [2.0**power for power in grid]
        return [rate.hex() for rate in widened(powers, rows, rate_of, extend=extend)]

    def powers(*exponents):
        return [(2.0**power).hex() for power in exponents]

    assert found() == found(row(-3, 0.9)) == powers(-4, -3)  # first what is missing
    up = [row(-3, 0.9), row(-4, 0.8)]
    assert found(*up, extend=0) == powers(-4, -3)
    assert found(*up) == found(*up[::-1]) == powers(-4, -3, -2)
    assert found(*up, row(-2, None)) == powers(-4, -3, -2)
    assert found(*up, row(-2, 0.95)) == powers(-4, -3, -2, -1)
    assert found(*up, row(-2, 0.95), row(-1, 0.99)) == powers(-4, -3, -2, -1)
    gone = [row(-3, None), row(-4, None)]
    assert found(*gone) == powers(-5, -4, -3)
    assert found(*gone, row(-5, None), row(-6, None)) == powers(-6, -5, -4, -3)
    assert found(row(-4, 0.9), row(-6, 0.95), grid=(-4, -6)) == powers(-8, -6, -4)


def test_the_runs_of_a_cell_are_those_of_its_own_rates():
    settings = Settings("digits", (16, 100), ("a",), (-3, -4), extend=1)
    rows = [row(-3, 0.9), row(-4, 0.8), row(-3, 0.5, depth="100"), row(-4, 0.7, depth="100")]
    points = rates.points({"a": Line("A", "skipinit")}, settings, digits(), rows)
    found = [(point.key["depth"], point.key["log2_rate"]) for point in points]
    assert found == [(16, -4), (16, -3), (16, -2), (100, -5), (100, -4), (100, -3)]


def test_cells_without_a_result():
    assert cell([]) == "-"
    assert cell([row(-1, None), row(-2, None)]) == "diverged"
    assert best_of([row(-1, None)]).best is None


def test_the_table_has_lines_down_and_depths_across():
    settings = Settings("digits", (16, 100), ("b", "a"), (-1,))
    lines = {"a": Line("A", "skipinit"), "b": Line("B", "batchnorm")}
    rows = [row(-1, 0.5), row(-1, 0.75, depth="100")]
    text = rates.table(lines, Results(settings, digits(), rows)).splitlines()
    assert text[0].split() == ["scheme", "16-2", "100-2"]
    assert text[1].split() == ["B", "-", "-"]
    assert text[2].split() == ["A", "50.0", "(2^-1!)", "75.0", "(2^-1!)"]
    assert text[3].startswith("! at the edge of the grid")


def test_the_runs_of_one_depth_and_anatomy_share_a_program():
    settings = Settings(
        "digits", (16, 100), ("a", "b", "c"), (-1, -2), seeds=(0, 1), weight_decay=0.25
    )
    lines = {
        "a": Line("A", "skipinit"),
        "b": Line("B", "alpha_one", l2=False),
        "c": Line("C", "sqrt_half"),
    }
    points = rates.points(lines, settings, digits(), ())
    assert len(points) == 24 and len({point.program for point in points}) == 4
    assert len({tuple(point.key.items()) for point in points}) == 24
    for point in points:
        assert point.start.hyper == {
            "learning_rate": 2.0 ** point.key["log2_rate"],
            "weight_decay": 0.0 if point.key["line"] == "b" else 0.25,
        }
        assert point.start.scheme.name == lines[point.key["line"]].scheme
