"""The machine and the versions that results come from."""

from __future__ import annotations

import datetime
import os
from typing import Any

from nf_resnets.machine import device_name, versions


def machine() -> dict[str, Any]:
    """When, on what and with which versions the results are being made."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": device_name(),
        "cores": os.cpu_count(),
        **versions(),
    }


__all__ = ["machine"]
