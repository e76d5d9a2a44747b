"""What machine and which versions a result comes from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from typing import Any

from nf_resnets.machine import processor

PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch")


def machine() -> dict[str, Any]:
    """Date, processor, device, load and versions, plain values for a JSON file."""
    import jax

    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
        "processor": processor(),
        "cores": cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


__all__ = ["PACKAGES", "cores", "machine"]
