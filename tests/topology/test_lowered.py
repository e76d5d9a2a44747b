"""The programs lowered for GPUs, TPUs and CPUs on this machine: each has the form of its own."""

import re

import jax
import jax.export
import pytest

from nf_resnets.models import onednn
from nf_resnets.models.conv import _are_stored
from tests.topology.programs import PROGRAMS

CALL = "__onednn$convolution"
CONVOLUTIONAL = ("sweep", "ghost_batch_norm", "streamed")


def exported(program, platform):
    # Such a call is refused unless its name is given.
    allowed = [jax.export.DisabledSafetyCheck.custom_call(CALL)] if platform == "cpu" else []
    lower = jax.export.export(program.function, platforms=(platform,), disabled_checks=allowed)
    return lower(*program.arguments).mlir_module()


def calls(text):
    return re.findall(r"custom_call @([\w$.]+)", text)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_cpu_has_the_form_for_cpus(name):
    program = PROGRAMS[name](jax.devices())
    cuda, tpu, cpu = (exported(program, platform) for platform in ("cuda", "tpu", "cpu"))
    assert cuda == tpu and not calls(cuda)
    if name in CONVOLUTIONAL:
        assert "stablehlo.convolution" in cuda and cuda != cpu
        called = onednn.available() and not _are_stored()
        assert set(calls(cpu)) == ({CALL} if called else set())
    else:
        assert "stablehlo.dot_general" in cuda and not calls(cpu)
