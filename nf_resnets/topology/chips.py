"""TPUs as Google Cloud's documentation of them says, and the devices of slices of them."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from typing import Any

import jax

# Read by libtpu when it is loaded; set unless it is already.
ENVIRONMENT = {
    # libtpu is to ask neither Google's metadata server nor a TPU who it is.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Else it warns that it does not know; the slice is the one that is asked for.
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
}


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


def topology_devices(name: str) -> list[Any]:
    """The devices of a slice such as ``v5e:4x4``, for which programs can be compiled, not run.

    It is to be called before anything is computed: JAX is told to compute on this machine's CPU.

    Args:
      name: a kind of TPU and the chips along each axis of the slice.

    Raises:
      ValueError: if there is no such slice.
      ImportError: if the compiler is not installed, or there is none for this machine.

    Example:
      >>> topology_devices("v5e:2x2")[0].device_kind  # doctest: +SKIP
      'TPU v5 lite'
    """
    spec = importlib.util.find_spec("libtpu")
    if spec is None or spec.origin is None:  # a mere folder of that name has no origin
        raise ImportError(
            f"the slice {name} needs libtpu, TPUs' compiler on Linux: pip install "
            "'nf_resnets[tpu-compiler]'"
        )
    kind, _, sides = name.partition(":")
    shape = [int(side) for side in sides.split("x") if side.isdecimal()]
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    jax.config.update("jax_platforms", "cpu")
    from jax.experimental import topologies

    options: dict[str, Any] = {
        # Hosts have 2x2 chips, or what there is of a smaller slice.
        "chips_per_host_bounds": (*(min(2, side) for side in shape[:2]), 1)
    }
    if kind in ("v4", "v5p"):
        options["chip_config_name"] = "megacore"  # a chip's two cores are one device
    try:
        return list(
            topologies.get_topology_desc(platform="tpu", topology_name=name, **options).devices
        )
    except Exception as error:  # libtpu's own types
        what = " ".join(str(error).split())
        raise ValueError(
            f"the slice {name} found, which TPUs' compiler refuses ({what}); expected a kind and "
            "its chips along each axis, such as v5e:4x4 or v4:2x2x2."
        ) from None
