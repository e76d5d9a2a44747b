"""TPUs as Google Cloud's documentation of TPU system architectures describes them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """One chip; all rates are the published peaks, which no program reaches.

    Attributes:
      kinds: what JAX calls it (``device_kind``).
      bfloat16: FLOP/s of bfloat16 products, a multiplication and an addition being two. TPUs
        multiply float32 numbers in bfloat16 by default.
      memory: bytes of high-bandwidth memory.
      usable: those of them that the compiler gives to programs, as it says when one is too large.
      bandwidth: bytes a second to and from it.
    """

    kinds: tuple[str, ...]
    bfloat16: float
    memory: float
    usable: float
    bandwidth: float


_GIB = 2.0**30

CHIPS = {
    "v4": Chip(("TPU v4",), 275e12, 32 * _GIB, 30.75 * _GIB, 1228e9),
    "v5e": Chip(("TPU v5 lite", "TPU v5e"), 197e12, 16 * _GIB, 15.75 * _GIB, 819e9),
    "v5p": Chip(("TPU v5", "TPU v5p"), 459e12, 95 * _GIB, 95 * _GIB, 2765e9),
    "v6e": Chip(("TPU v6 lite", "TPU v6e"), 918e12, 32 * _GIB, 31.25 * _GIB, 1638e9),
}
"""By name."""


def chip_of(device_kind: str) -> Chip:
    """The numbers of what JAX calls ``device_kind``.

    Raises:
      ValueError: if there are none.

    Example:
      >>> chip_of("TPU v5 lite") is CHIPS["v5e"]
      True
    """
    for chip in CHIPS.values():
        if device_kind in chip.kinds:
            return chip
    raise ValueError(f"no data sheet of {device_kind!r} found; expected one of {', '.join(CHIPS)}.")


__all__ = ["CHIPS", "Chip", "chip_of"]
