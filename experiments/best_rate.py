"""The best of the learning rates that were tried, by the rule of the sweeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.folder import Row
from nf_resnets.sweep.selection import Optimum, Rule, optimum


def best_rate(rows: Sequence[Row], rate: Callable[[Row], float], rule: Rule = "strict") -> Optimum:
    """The rate of the best mean test accuracy over the seeds.

    Args:
      rows: those of one cell of a table, with ``seed``, ``status`` and ``test_accuracy``.
      rate: ``rate(row)`` is the learning rate of a row, above 0.
      rule: how rates are compared of which some seeds diverged; see
        :func:`nf_resnets.sweep.selection.optimum`.

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


def counts(rows: Sequence[Row]) -> str:
    """How many of the runs at the best rate diverged, for a cell; nothing if none did.

    >>> counts([{"status": "finished"}, {"status": "diverged"}])
    ', 1 of 2 diverged'
    """
    gone = sum(row["status"] == "diverged" for row in rows)
    return f", {gone} of {len(rows)} diverged" if gone else ""


__all__ = ["best_rate", "counts"]
