"""The best of the learning rates that were tried, by the rule of the sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.folder import Row
from nf_resnets.sweep.select import Optimum, Rule, optimum


def best_rate(rows: Sequence[Row], rate: Callable[[Row], float], rule: Rule = "strict") -> Optimum:
    """The rate of the best mean test accuracy over the seeds.

    Args:
      rows: those of one cell of a table, with ``seed``, ``status`` and ``test_accuracy``.
      rate: ``rate(row)`` is the learning rate of a row, above 0.
      rule: how rates are compared of which some seeds diverged; see
        :func:`nf_resnets.sweep.select.optimum`.

    Example:
      >>> rows = [{"rate": "0.1", "seed": "0", "status": "finished", "test_accuracy": "0.9"},
      ...         {"rate": "0.2", "seed": "0", "status": "diverged", "test_accuracy": "nan"}]
      >>> best_rate(rows, lambda row: float(row["rate"])).best
      0.1
    """
    return optimum(
        [
            {
                "peak_lr": rate(row),
                "seed": row["seed"],
                "state": row["status"],
                "test_accuracy": (
                    float(row["test_accuracy"]) if row["status"] == "finished" else None
                ),
            }
            for row in rows
        ],
        rule=rule,
    )


def widened(
    rates: Sequence[float],
    rows: Sequence[Row],
    rate: Callable[[Row], float],
    *,
    extend: int,
    rule: Rule = "strict",
) -> list[float]:
    """The rates of one cell of a table: those given, and, by their steps, beyond them.

    Where the best rate is the lowest or the highest, one more is tried beyond it; where every run
    diverged, a lower one.

    Args:
      rates: those that every cell has.
      rows: of the cell.
      rate: as for :func:`best_rate`.
      extend: how many more there are on each side, at most.
      rule: by which the best rate is chosen.

    Example:
      >>> rows = [{"rate": rate, "seed": "0", "status": "finished", "test_accuracy": accuracy}
      ...         for rate, accuracy in (("0.5", "0.8"), ("1", "0.9"))]
      >>> widened((0.5, 1.0), rows, lambda row: float(row["rate"]), extend=1)
      [0.5, 1.0, 2.0]
    """
    found = sorted(rates)
    if len(found) < 2 or not extend:
        return found
    down, up = found[1] / found[0], found[-1] / found[-2]
    below = above = extend
    while True:
        tried = [row for row in rows if rate(row) in found]
        if {rate(row) for row in tried} != set(found):
            return found  # those that are missing come first
        best = best_rate(tried, rate, rule).best
        if below and best in (None, found[0]):
            below -= 1
            found = [found[0] / down, *found]
        elif above and best == found[-1]:
            above -= 1
            found = [*found, found[-1] * up]
        else:
            return found


def counts(rows: Sequence[Row]) -> str:
    """How many of the runs at the best rate diverged, for a cell; nothing if none did.

    >>> counts([{"status": "finished"}, {"status": "diverged"}])
    ', 1 of 2 diverged'
    """
    gone = sum(row["status"] == "diverged" for row in rows)
    return f", {gone} of {len(rows)} diverged" if gone else ""


__all__ = ["best_rate", "counts", "widened"]
