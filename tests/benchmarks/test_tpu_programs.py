"""What programs need of a TPU: the committed numbers, and that the compiler still finds them."""

from __future__ import annotations

import pytest

from benchmarks import fresh, tpu_programs
from benchmarks.tpu_programs import CHEAP, PROGRAMS
from nf_resnets.models import DTYPES, architectures

KEPT = tpu_programs.kept()


def test_every_program_is_in_the_file_and_can_be_made():
    assert list(KEPT["programs"]) == list(PROGRAMS)
    assert set(KEPT["versions"]) == {"jax", "libtpu"}
    for program in PROGRAMS.values():
        model = architectures.make(program.model, program.scheme)
        assert program.dtype in DTYPES and model.num_branches > 0


def test_the_numbers_are_those_of_one_step():
    programs = KEPT["programs"]
    for name, need in programs.items():
        assert 0 < need["main_bytes"] <= need["bytes"], name
        assert need["bound"] in ("compute", "memory") and need["least_ms"] > 0
    one, eight = programs["wrn-16-2"], programs["wrn-16-2, 8 runs vectorised"]
    assert eight["flops"] == pytest.approx(8 * one["flops"], rel=0.02)


def test_ten_thousand_layers_fit_on_a_chip():
    need = KEPT["programs"]["wrn-10000-1, batch 64"]
    assert need["temporaries"] < 8 * 2**30
    assert need["arguments"] + need["temporaries"] < 15.75 * 2**30


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEAP)
def test_the_compiler_finds_the_same(name):
    pytest.importorskip("libtpu")
    if tpu_programs.versions() != KEPT["versions"]:
        pytest.skip(f"the file is of {KEPT['versions']}, here are {tpu_programs.versions()}")
    found = fresh.call("benchmarks.tpu_programs:compiled", name)
    assert found == KEPT["programs"][name]
