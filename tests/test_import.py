"""What importing the library costs, and what it brings along."""

import configparser
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import nf_resnets

ROOT = Path(__file__).parents[1]
HEAVY = (
    "tensorflow", "tensorflow_datasets", "optuna", "optax", "matplotlib", "sklearn", "orbax", "flax"
)  # fmt: skip
LAZY = ("data", "models", "optim", "plotting", "training")


def in_a_fresh_process(code):
    """Runs the code, which prints JSON, in a Python that has imported nothing."""
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


COST = """
import json, resource, sys
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
import nf_resnets
nf_resnets.init.fixup
seconds = resource.getrusage(resource.RUSAGE_SELF).ru_utime - before
print(json.dumps([seconds, sorted({name.partition(".")[0] for name in sys.modules})]))
"""


def test_an_initialiser_costs_no_more_than_jax():
    runs = [in_a_fresh_process(COST) for _ in range(3)]
    for _, modules in runs:
        assert "jax" in modules
        assert not set(HEAVY) & set(modules)
    # Processor time and not the clock's, which on a busy machine says nothing, and the median, for
    # what the other processes take out of the caches. JAX itself takes about 1 s of it.
    assert statistics.median(seconds for seconds, _ in runs) < 2


def test_importing_everything_touches_no_device():
    # jax.distributed.initialize must come before the first use of a device, and users import first.
    code = """
import json, jax, nf_resnets
parts = [getattr(nf_resnets, name) for name in dir(nf_resnets)]
try:
    jax.config.update("jax_num_cpu_devices", 3)
except RuntimeError as error:
    print(json.dumps(str(error)))
else:
    print(json.dumps(len(parts)))
"""
    used = code.replace("parts =", "jax.devices(); parts =")
    assert in_a_fresh_process(code) == len(dir(nf_resnets))
    # The check can fail.
    assert "before backends are initialized" in in_a_fresh_process(used)


def test_the_parts_are_imported_when_they_are_used():
    code = """
import json, sys, nf_resnets
def loaded():
    return sorted({name.split(".")[1] for name in sys.modules if name.startswith("nf_resnets.")})
before = loaded()
listed = dir(nf_resnets)
model = nf_resnets.models.WideResNet(depth=28, width=10)
print(json.dumps([before, listed, model.num_branches, loaded()]))
"""
    before, listed, branches, after = in_a_fresh_process(code)
    assert not set(LAZY) & set(before)
    assert {"init", "schemes", "roles"} <= set(before)
    assert set(LAZY) <= set(listed)
    assert branches == 12
    # What lies below the models is loaded with them, and nothing else.
    assert set(after) - set(before) == {"models", "taps"}


def test_dir_lists_the_public_names_and_all_of_them_are_there():
    assert set(nf_resnets.__all__) <= set(dir(nf_resnets))
    for name in LAZY:
        assert name in nf_resnets.__all__
        assert getattr(nf_resnets, name).__name__ == f"nf_resnets.{name}"
    with pytest.raises(AttributeError, match="module 'nf_resnets' has no attribute 'modles'"):
        nf_resnets.modles  # noqa: B018


def test_the_version_is_that_of_the_distribution():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert nf_resnets.__version__ == config["metadata"]["version"]
