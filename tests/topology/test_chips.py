"""The data sheets, and the names of slices."""

import platform

import pytest

from nf_resnets.topology import CHIPS, chip_of, devices, shortest_step, topology_devices


def test_the_table_has_the_chips_and_says_where_its_numbers_are_from():
    assert set(CHIPS) == {"v4", "v5e", "v5p", "v6e", "A100", "H100", "H200"}
    for name, chip in CHIPS.items():
        assert name in chip.source
        assert 1e14 < chip.bfloat16 < 1e15 and 8e11 < chip.bandwidth < 5e12
        assert chip.usable + 2**30 >= 16e9 and chip.usable <= chip.memory < 2e11


def test_chips_are_found_by_what_jax_calls_them():
    kinds = {
        "TPU v4": "v4", "TPU v5 lite": "v5e", "TPU v5": "v5p", "TPU v5p": "v5p",
        "TPU v6 lite": "v6e", "NVIDIA A100-SXM4-80GB": "A100", "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H200": "H200",
    }  # fmt: skip
    assert {kind: chip_of(kind).name for kind in kinds} == kinds
    with pytest.raises(ValueError, match="no data sheet of 'TPU v99' found; expected one of v4, "):
        chip_of("TPU v99")


def test_the_slower_of_compute_and_memory_bounds_a_step():
    chip = CHIPS["v5e"]
    assert shortest_step(7.16e10, 2.43e9, chip) == (pytest.approx(2.967e-3, rel=1e-3), "memory")
    assert shortest_step(7.16e12, 2.43e9, chip) == (pytest.approx(36.35e-3, rel=1e-3), "compute")


def test_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(ImportError, match="for Linux on x86-64 only, and this is Darwin arm64"):
        topology_devices("v5e:2x2")


@pytest.mark.parametrize("origin", [None, ""])
def test_a_missing_compiler_is_said_with_what_to_install(monkeypatch, origin):
    class Folder:  # a folder named libtpu, which Python would import
        pass

    Folder.origin = None
    found = None if origin is None else Folder
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ImportError, match="needs TPUs' compiler, libtpu: pip install") as error:
        topology_devices("v5e:2x2")
    assert str(error.value).endswith("pip install 'nf_resnets[tpu-compiler]'")
