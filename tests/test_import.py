"""What importing the library costs, and what it brings along."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nf_resnets

ROOT = Path(__file__).parents[1]
HEAVY = ("tensorflow", "tensorflow_datasets", "optax", "matplotlib", "sklearn", "rich", "flax")
LAZY = ("data", "models", "optim", "plotting", "training")


def in_a_fresh_process(code):
    """Runs the code, which prints JSON, in a Python that has imported nothing."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return json.loads(subprocess.check_output(command, cwd=ROOT, env=environment, timeout=120))


IMPORTED = """
import json, resource, sys
def loaded():
    return sorted({name.split(".")[1] for name in sys.modules if name.startswith("nf_resnets.")})
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
import nf_resnets
first = loaded()
nf_resnets.init.fixup
seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
modules = sorted({name.partition(".")[0] for name in sys.modules})
model = nf_resnets.models.WideResNet(depth=28, width=10)
then = loaded()
parts = [getattr(nf_resnets, name) for name in dir(nf_resnets)]
readers = sorted({"sklearn", "tensorflow", "tensorflow_datasets"} & set(sys.modules))
"""
# Whether a device has been used, which JAX says when their number is to be changed.
USED = """
import jax, json
try:
    jax.config.update("jax_num_cpu_devices", 3)
    used = False
except RuntimeError as error:
    used = str(error)
"""


def test_what_an_import_costs_and_brings():
    code = IMPORTED + USED + "print(json.dumps([seconds, modules, first, then, readers, used]))"
    seconds, modules, first, then, readers, used = in_a_fresh_process(code)
    assert "jax" in modules
    assert not set(HEAVY) & set(modules)
    # The parts are imported when they are used. What lies below the models is loaded with them.
    assert not set(LAZY) & set(first)
    assert {"init", "schemes", "roles"} <= set(first)
    assert set(then) - set(first) == {"models"}
    # No part, data among them, imports what reads data sets before one is read.
    assert readers == []
    # jax.distributed.initialize must come before the first use of a device, and users import first.
    assert used is False
    # An initialiser costs no more than JAX, about 1 s of processor time, also in a second and a
    # third try, where the other processes took much out of the caches.
    code = IMPORTED.partition("modules =")[0] + "print(json.dumps(seconds))"
    assert seconds < 2 or any(in_a_fresh_process(code) < 2 for _ in range(2))


def test_dir_lists_the_public_names_and_all_of_them_are_there():
    assert set(nf_resnets.__all__) <= set(dir(nf_resnets))
    for name in LAZY:
        assert getattr(nf_resnets, name).__name__ == f"nf_resnets.{name}"
    with pytest.raises(AttributeError, match="no attribute 'modles'"):
        nf_resnets.modles  # noqa: B018


def test_the_citation_has_the_same_version():
    assert f"\nversion: {nf_resnets.__version__}\n" in (ROOT / "CITATION.cff").read_text()
