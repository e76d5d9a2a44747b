"""Timing side by side: whatever else the machine does meets all that is compared."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping

WARM_UP = 2  # rounds that are not counted


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How much longer one thing takes than another.

    Attributes:
      value: the median of the ratios of neighbours. What slows the machine down for a while meets
        both of a pair; of the ratio of two medians it would be a part.
      low: the lower quartile of the ratios of neighbours.
      high: the upper quartile.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def interleaved(
    functions: Mapping[str, Callable[[], object]], rounds: int, *, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Calls each function once in every round, and gives the seconds of each.

    The order turns from round to round, so that nobody always runs behind the same neighbour.

    Args:
      functions: by name; each returns when its work is done.
      rounds: how many are counted.
      warm_up: how many come before and are not.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 else reversed(names):
            start = time.perf_counter()
            functions[name]()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """Compares two lists of seconds that were measured in the same rounds."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    value = statistics.median(pairs)
    if len(pairs) < 2:
        return Ratio(value, value, value)
    low, _, high = statistics.quantiles(pairs, n=4, method="inclusive")
    return Ratio(value, low, high)


def spread(values: list[float], scale: float = 1.0) -> str:
    """The median, and in brackets the least and the most."""
    median, low, high = statistics.median(values), min(values), max(values)
    return f"{scale * median:.4g} ({scale * low:.4g}-{scale * high:.4g})"


__all__ = ["WARM_UP", "Ratio", "interleaved", "ratio", "spread"]
