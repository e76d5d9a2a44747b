"""Programs compiled for chips that this machine does not have, and what they need of them."""

from nf_resnets.topology.chips import CHIPS, Chip, chip_of, topology_devices
from nf_resnets.topology.compiled import (
    DoesNotFitError,
    Footprint,
    compile_footprint,
    footprint,
)

__all__ = [
    "CHIPS", "Chip", "DoesNotFitError", "Footprint", "chip_of", "compile_footprint", "footprint",
    "topology_devices",
]  # fmt: skip
