"""Timing in turns: whatever else the machine does meets all that is compared."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

WARM_UP = 2  # rounds that are not counted


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How much longer one thing takes than another: median and quartiles of neighbours' ratios.

    What slows the machine down for a while meets both of a pair; of the ratio of two medians it
    would be a part.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      what: the case, ``"wrn-16-4 fixup, 128 x 32x32"``.
      compared: what over what, ``"step time, this library / PyTorch eager"``.
      ratio: of the two.
      limit: what the ratio is to be at most; None where there is no target.
      numbers: what the ratio was made of; units stand in the names (``_ms``, ``_s``, ``_mib``).
    """

    what: str
    compared: str
    ratio: Ratio
    limit: float | None = None
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def held(self) -> bool | None:
        """Whether the limit was; None where there is none."""
        return None if self.limit is None else self.ratio.value <= self.limit

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return f"at most {self.limit:g}" + ("" if self.held else ", missed")


def interleaved(
    functions: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = WARM_UP,
    untimed: int = 0,
) -> dict[str, list[float]]:
    """Times each function once in every round, and gives the seconds of each.

    The order turns from round to round, so that nobody always runs behind the same neighbour. Of
    the ``warm_up`` rounds before nothing is kept. In every turn a function is called ``untimed``
    times before the call that is timed, if what counts is how long it takes behind itself.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    names = list(functions)
    for turn in range(warm_up + rounds):
        for name in names if turn % 2 else reversed(names):
            for _ in range(untimed):
                functions[name]()
            start = time.perf_counter()
            functions[name]()
            if turn >= warm_up:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(ours: list[float], theirs: list[float]) -> Ratio:
    """Compares two lists of seconds that were measured in the same rounds."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    quartiles = statistics.quantiles(pairs, n=4, method="inclusive") if pairs[1:] else 3 * pairs
    return Ratio(quartiles[1], quartiles[0], quartiles[2])
