"""The data sheets, and the names of slices."""

import dataclasses

import pytest

from nf_resnets.topology import CHIPS, Footprint, chip_of, chips, topology_devices


def test_chips_are_found_by_what_jax_calls_them():
    kinds = {
        "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
        "TPU v6 lite": "v6e",
    }  # fmt: skip
    assert {kind: chip_of(kind) for kind in kinds} == {k: CHIPS[name] for k, name in kinds.items()}
    with pytest.raises(ValueError, match="no data sheet of 'TPU v99' found; expected one of v4, "):
        chip_of("TPU v99")


def test_the_slower_of_compute_and_memory_bounds_a_step():
    step = Footprint(
        arguments=0, temporaries=0, outputs=0, code=0, flops=7.16e10, bytes=3e9,
        main_bytes=2.43e9, collectives={},
    )  # fmt: skip
    chip = CHIPS["v5e"]
    # By hand: 2.43e9 / 819e9 and 7.16e12 / 197e12, to four digits.
    assert step.bound(chip) == (pytest.approx(2.967e-3, rel=1e-3), "memory")
    longer = dataclasses.replace(step, flops=7.16e12)
    assert longer.bound(chip) == (pytest.approx(36.35e-3, rel=1e-3), "compute")


def test_a_missing_compiler_is_said_with_what_to_install(monkeypatch):
    monkeypatch.setattr(chips.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs libtpu, TPUs' compiler on Linux: ") as error:
        topology_devices("v5e:2x2")
    assert str(error.value).endswith("pip install 'nf_resnets[tpu-compiler]'")
