"""Which rate is the best, what a cell says of it, and which rates it wants besides."""

import pytest

from experiments.grid import grid
from experiments.rates import beyond, cell


def row(power, accuracy, seed=0):
    status = "diverged" if accuracy is None else "finished"
    return {
        "peak_lr": 2.0**power, "seed": seed, "status": status,
        "test_accuracy": "nan" if accuracy is None else accuracy,
    }  # fmt: skip


def test_a_best_rate_at_an_edge_carries_a_mark():
    rows = [row(-1, 0.5), row(-2, 0.9), row(-3, 0.8)]
    assert cell(rows) == "90.0 (2^-2)"
    assert cell(rows[:2]) == cell(rows[1:]) == "90.0 (2^-2!)"
    odd = [{**row(-3, 0.9), "peak_lr": 0.1}, row(-2, 0.8), row(-4, 0.8)]
    assert cell(odd) == "90.0 (0.1)"
    # A rate at which all runs diverged was tried, too.
    assert cell([*rows[1:], row(-1, None)]) == "90.0 (2^-2)"
    assert cell([]) == "-" and cell([row(-1, None)]) == "diverged"
    # The mean over the seeds wins; a better rate stands behind where one of its runs diverged.
    rows = [row(-2, 0.8), row(-2, 0.82, 1), row(-3, 0.1)]
    assert cell([row(-1, 0.99), row(-1, 0.5, 1), *rows]) == "81.0 ± 1.4 (2^-2)"
    assert cell([row(-1, 0.99), row(-1, None, 1), *rows]) == "81.0 ± 1.4 (2^-2*)"
    gone = [row(-1, 0.99), row(-1, None, 1), row(-2, None), row(0, None)]
    assert cell(gone) == "99.0 (2^-1), 1 of 2 diverged"


def rates_of(accuracy, extend, seeds=1):
    """The powers of the rates that are made in the end, of two to begin with."""
    first = grid({"scheme": "fixup"}, peak_lr=[0.125, 0.25], seed=range(seeds))
    points = first
    while True:
        powers = [point["peak_lr"] for point in points]
        rows = [row(0, accuracy(rate)) | {"peak_lr": rate, "seed": point["seed"]}
                for rate, point in zip(powers, points, strict=True)]  # fmt: skip
        more = beyond(first, points, rows, extend=extend)
        if not more:
            return sorted({point["peak_lr"] for point in points}), len(points)
        points = [*points, *more]


@pytest.mark.parametrize(
    ("accuracy", "extend", "rates"),
    [
        (lambda rate: -rate, 2, [2**-5, 2**-4, 2**-3, 2**-2]),  # as often as asked
        (lambda rate: rate, 1, [2**-3, 2**-2, 2**-1]),
        (lambda rate: -abs(rate - 0.5), 5, [2**-3, 2**-2, 2**-1, 1]),  # until it is inside
        (lambda rate: None, 1, [2**-4, 2**-3, 2**-2]),  # every run diverged: a lower one
    ],
)
def test_rates_go_on_beyond_an_edge(accuracy, extend, rates):
    assert rates_of(accuracy, extend) == (rates, len(rates))
    assert rates_of(accuracy, extend, seeds=2) == (rates, 2 * len(rates))


def test_a_cell_with_a_missing_run_waits():
    first = grid({"scheme": "fixup"}, peak_lr=[0.125, 0.25], seed=[0])
    assert beyond(first, first, [row(-3, 0.5), None], extend=3) == []
    other = grid({"scheme": "skipinit"}, peak_lr=[0.125, 0.25], seed=[0])
    rows = [row(-3, 0.5), None, row(-3, 0.5), row(-2, 0.6)]
    both = [*first, *other]
    (more,) = beyond(both, both, rows, extend=3)
    assert more == {"scheme": "skipinit", "peak_lr": 0.5, "seed": 0}
