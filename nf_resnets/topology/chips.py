"""Accelerators as their makers' data sheets describe them."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Chip:
    """One accelerator; all rates are the published peaks, which no program reaches.

    Attributes:
      name: as users write it.
      kinds: what JAX calls it (``device_kind``), of a GPU how that starts.
      bfloat16: FLOP/s of dense bfloat16 products, a multiplication and an addition being two. TPUs
        multiply float32 numbers in bfloat16 by default.
      memory: bytes of high-bandwidth memory.
      usable: those of them that the compiler gives to programs, as it says when one is too large.
      bandwidth: bytes a second to and from it.
      source: where the numbers are from.
    """

    name: str
    kinds: tuple[str, ...]
    bfloat16: float
    memory: float
    usable: float
    bandwidth: float
    source: str


_TPU = "Google Cloud's documentation of TPU system architectures, page of TPU {}"
_GPU = "NVIDIA's data sheet of the {}, dense rates without sparsity"
_GB, _GIB = 1e9, 2.0**30

CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", ("TPU v4",), 275e12, 32 * _GIB, 30.75 * _GIB, 1228e9, _TPU.format("v4")),
        Chip("v5e", ("TPU v5 lite", "TPU v5e"), 197e12, 16 * _GIB, 15.75 * _GIB, 819e9,
             _TPU.format("v5e")),
        Chip("v5p", ("TPU v5", "TPU v5p"), 459e12, 95 * _GIB, 95 * _GIB, 2765e9,
             _TPU.format("v5p")),
        Chip("v6e", ("TPU v6 lite", "TPU v6e"), 918e12, 32 * _GIB, 31.25 * _GIB, 1638e9,
             _TPU.format("v6e")),
        Chip("A100", ("NVIDIA A100",), 312e12, 80 * _GB, 80 * _GB, 2039e9,
             _GPU.format("A100 80 GB SXM")),
        Chip("H100", ("NVIDIA H100",), 989e12, 80 * _GB, 80 * _GB, 3350e9,
             _GPU.format("H100 SXM")),
        Chip("H200", ("NVIDIA H200",), 989e12, 141 * _GB, 141 * _GB, 4800e9,
             _GPU.format("H200 SXM")),
    )
}  # fmt: skip
"""By name."""


def chip_of(device_kind: str) -> Chip:
    """The data sheet of what JAX calls ``device_kind``.

    Raises:
      ValueError: if there is none.

    Example:
      >>> chip_of("TPU v5 lite").name, chip_of("NVIDIA H100 80GB HBM3").name
      ('v5e', 'H100')
    """
    for chip in CHIPS.values():
        is_gpu = device_kind.startswith("NVIDIA") and device_kind.startswith(chip.kinds)
        if is_gpu or device_kind in chip.kinds:
            return chip
    raise ValueError(f"no data sheet of {device_kind!r} found; expected one of {', '.join(CHIPS)}.")


def shortest_step(flops: float, bytes_: float, chip: Chip) -> tuple[float, str]:
    """The shortest time in which a chip does some work, in seconds, and what bounds it.

    ``max(flops / peak, bytes / bandwidth)``, as in a roofline: the multipliers and the memory at
    their published peaks, and at the same time.

    Example:
      >>> shortest_step(197e12, 0.0, CHIPS["v5e"])
      (1.0, 'compute')

    Source: Williams, Waterman, Patterson, *Roofline*, 2009.
    """
    return max((flops / chip.bfloat16, "compute"), (bytes_ / chip.bandwidth, "memory"))


__all__ = ["CHIPS", "Chip", "chip_of", "shortest_step"]
