"""What a benchmark says: a ratio of two things that were measured side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.timing import Ratio


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
      part: the benchmark's module, ``"depth"``.
      what: the case, ``"wrn-16-4 fixup, 128 x 32x32"``.
      compared: what over what, ``"step time, this library / PyTorch eager"``.
      ratio: of the two.
      limit: what the ratio is to be at most; for ``at_least`` at least; None where there is no
        target.
      at_least: whether more is better.
      numbers: what the ratio was made of; units stand in the names (``_ms``, ``_s``, ``_mib``).
    """

    part: str
    what: str
    compared: str
    ratio: Ratio
    limit: float | None = None
    at_least: bool = False
    numbers: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def held(self) -> bool | None:
        """Whether the limit was; None where there is none."""
        if self.limit is None:
            return None
        return self.ratio.value >= self.limit if self.at_least else self.ratio.value <= self.limit

    @property
    def verdict(self) -> str:
        if self.limit is None:
            return ""
        words = f"{'at least' if self.at_least else 'at most'} {self.limit:g}"
        return words if self.held else f"{words}: MISSED"


__all__ = ["Row"]
