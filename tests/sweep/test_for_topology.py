"""Dry runs for a slice elsewhere, with made-up footprints in place of the TPUs' compiler."""

import jax
import pytest

from nf_resnets.sweep import Execution, for_topology
from nf_resnets.sweep.image_task import ImageTask
from nf_resnets.topology import CHIPS, DoesNotFitError, Footprint
from tests.sweep import small

GIB = 2**30


@pytest.fixture
def reported(monkeypatch, capsys):
    """``reported(room, execution)`` prints the report of a grid on a slice of four chips."""
    compiled = []

    def lower(self, run, mesh, *, runs_per_device):
        return runs_per_device, run.settings["batch_size"]

    def report(room, execution):
        def compile_footprint(lowered):
            runs, batch = lowered
            compiled.append(lowered)
            if runs * batch > room:
                raise DoesNotFitError("it needs 20G of 16G bytes")
            work = runs
            return Footprint(
                arguments=GIB, temporaries=runs * GIB // 4, outputs=1000, code=2000,
                flops=1e9 * work, bytes=9e9 * work, main_bytes=8.19e8 * work,
                collectives={"all-reduce": (2.0, 4096.0)}, peak=GIB + runs * GIB // 8,
                compile_seconds=3.0,
            )  # fmt: skip

        monkeypatch.setattr(for_topology, "compile_footprint", compile_footprint)
        sweep = small.make({"seed": tuple(range(10))}, batch_size=64)
        (program,) = sweep.programs
        left = {program: (sweep.firsts[0], sweep.size)}
        code = for_topology.report(sweep.task, left, jax.devices()[:4], execution, "v5e:2x2")
        return code, capsys.readouterr().out, compiled

    monkeypatch.setattr(ImageTask, "lower", lower)
    monkeypatch.setattr(for_topology, "chip_of", lambda kind: CHIPS["v5e"])
    return report


def test_a_report_says_what_each_program_needs(reported):
    code, said, compiled = reported(10**6, Execution(runs_per_device=1))
    assert code == 0 and compiled == [(1, 64)]
    assert "fits: 1.13 GiB at a time in 15.8 GiB" in said
    assert "bound by memory: at least 1 ms a step" in said
    # Three rounds of four runs, 44 steps of 1 ms each, on four chips.
    assert f"{3 * 44e-3 / 3600 * 4:.3g} chip-hours: a lower bound" in said


def test_more_runs_than_fit_are_refused(reported):
    code, said, compiled = reported(200, Execution(runs_per_device=12))
    assert compiled == [(12, 64)] and code == 1
    assert "12 runs a chip: it needs 20G of 16G bytes; expected fewer" in said
    assert "without the 1 that do not fit" in said
