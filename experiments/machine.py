"""The machine and the versions that results come from."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """When, on what and with which versions the results are being made."""
    import jax

    versions = {}
    for package in ("nf_resnets", "jax", "jaxlib", "flax", "optax", "numpy"):
        versions[package] = "not installed"
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    devices = jax.devices()
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
    }


def processor() -> str:
    """The processor's model, on which the order of a sum and so its rounding depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


__all__ = ["machine", "processor"]
