"""Settings that must stand before JAX is imported.

The file is at the root because the doctests of the package need it as much as the tests do. The
settings are environment variables, so that processes which a test starts have them too.
"""

import os
import sys

import pytest

DEVICES = "--xla_force_host_platform_device_count"

if "jax" in sys.modules:
    raise pytest.UsageError(
        "JAX was imported before conftest.py could choose its devices; is a plugin loading it?"
    )

# Eight devices on a CPU, unless whoever started the tests chose a number.
if DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES}=8".strip()
# On a CPU also where there is an accelerator; JAX_PLATFORMS=cuda runs the tests there.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Arrays of different rank are not broadcast by chance: a missing axis is an error.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
# Figures are drawn without a display.
os.environ.setdefault("MPLBACKEND", "Agg")
