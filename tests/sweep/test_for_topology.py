"""Dry runs for a slice elsewhere, with made-up footprints in place of the TPUs' compiler."""

import jax
import pytest

from nf_resnets.sweep import Execution, for_topology
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.topology import CHIPS, DoesNotFitError, Footprint
from tests.sweep import small

GIB = 2**30


def footprint(runs):
    """Of a program of so many runs a chip; eleven do not fit."""
    if runs > 10:
        raise DoesNotFitError("it needs 20G of 16G bytes")
    return Footprint(
        arguments=GIB, temporaries=runs * GIB // 4, outputs=1000, code=2000, flops=1e9 * runs,
        bytes=9e9 * runs, main_bytes=8.19e8 * runs, collectives={"all-reduce": (2.0, 4096.0)},
        peak=GIB + runs * GIB // 8,
    )  # fmt: skip


# Three rounds of four runs, 44 steps of 1 ms each, on four chips.
HOURS = f"{3 * 44e-3 / 3600 * 4:.3g} chip-hours: a lower bound"


@pytest.mark.parametrize(
    ("runs", "code", "sentences"),
    [
        (1, 0, ["fits: 1.13 GiB at a time in 15.8 GiB", "memory: at least 1 ms a step", HOURS]),
        (12, 1, ["12 runs a chip: it needs 20G of 16G bytes", "without the 1 that do not fit"]),
    ],
)
def test_a_report_says_what_each_program_needs(monkeypatch, capsys, runs, code, sentences):
    monkeypatch.setattr(ImageTask, "lower", lambda *_, runs_per_device: runs_per_device)
    monkeypatch.setattr(for_topology, "compile_footprint", footprint)
    monkeypatch.setattr(for_topology, "chip_of", lambda kind: CHIPS["v5e"])
    sweep = small.make({"seed": tuple(range(10))}, batch_size=64)
    left = [*sweep.programs.values()]
    execution = Execution(runs_per_device=runs)
    assert for_topology.report(sweep.task, left, jax.devices()[:4], execution, "v5e:2x2") == code
    said = capsys.readouterr().out
    assert all(sentence in said for sentence in sentences), said
