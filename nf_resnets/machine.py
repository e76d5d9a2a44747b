"""The machine and the packages that runs are made with."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import time
from pathlib import Path
from typing import Any

import jax


def maker() -> dict[str, Any]:
    """What a row says of how it was made: the devices, the day, the versions."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return {"device": device_name(), "date": day, **versions()}


def versions() -> dict[str, str]:
    """The versions, and the processor, on which the numbers of a run depend."""
    found = {"processor": processor(), "python": platform.python_version()}
    for package in ("nf_resnets", "jax", "jaxlib", "flax", "optax", "numpy"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def needed(module: str, extra: str) -> Any:
    """Imports a module that an extra of this package brings."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ModuleNotFoundError(f"{error}: pip install 'nf_resnets[{extra}]'.") from error


def device_name() -> str:
    """The number and kind of the devices, such as ``8 x TPU v4``."""
    devices = jax.devices()
    return f"{len(devices)} x {devices[0].device_kind}"


def processor() -> str:
    """The processor's model, on which the order of a sum and so its rounding depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def small_pages(setting: str = "/sys/kernel/mm/transparent_hugepage/enabled") -> str | None:
    """How to shorten a CPU's steps where Linux gives huge pages on request only, or None."""
    if jax.devices()[0].platform != "cpu" or "malloc.hugetlb" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return None
    try:
        if "[madvise]" not in Path(setting).read_text() or platform.libc_ver()[0] != "glibc":
            return None
    except OSError:
        return None
    return (
        "Start the command with GLIBC_TUNABLES=glibc.malloc.hugetlb=1 to get huge pages: steps of "
        "deep networks, or on images of 32x32, then take 0.83 to 0.92 of the time."
    )
