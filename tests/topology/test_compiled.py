"""Programs compiled for slices of v5e on this machine, against compilations by hand."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import topology
from nf_resnets.sweep import make_sweep
from nf_resnets.sweep.engine import sweep_mesh
from nf_resnets.topology import CHIPS, DoesNotFitError, hlo

spec = importlib.util.find_spec("libtpu")
needs_libtpu = pytest.mark.skipif(
    spec is None or spec.origin is None,
    reason="libtpu is not installed (pip install 'nf_resnets[tpu-compiler]')",
)
TINY = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 2.0, "batch_size": 64}


def lowered(name, devices_per_run, runs_per_device=1):
    sweep = make_sweep({"peak_lr": (0.1,)}, TINY)
    mesh = sweep_mesh(topology.topology_devices(name), devices_per_run)
    return sweep, sweep.task.lower(sweep.plans[0], mesh, runs_per_device=runs_per_device)


def test_a_program_for_this_machine_has_a_footprint():
    x = jnp.ones((256, 256))
    found = topology.footprint(jax.jit(lambda x: x @ x).lower(x).compile())
    assert found.flops == pytest.approx(2 * 256**3, rel=0.01)
    assert found.arguments == found.outputs == 4 * 256**2
    assert found.memory >= 8 * 256**2
    assert found.collectives == {}


class Lowered:
    def __init__(self, message):
        self.message = message

    def compile(self):
        raise RuntimeError(self.message)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
            "temporaries (29.83G) exceeds available HBM (15.75G).",
            "it needs 29.83G of 15.75G bytes",
        ),
        ("RESOURCE_EXHAUSTED: no\n more", "the compiler says: RESOURCE_EXHAUSTED: no more"),
    ],
)
def test_a_program_that_is_too_large_is_said_with_its_bytes(message, said):
    with pytest.raises(DoesNotFitError) as error:
        topology.compile_footprint(Lowered(message))
    assert str(error.value) == said


def test_other_errors_of_the_compiler_stay():
    with pytest.raises(RuntimeError, match="INTERNAL"):
        topology.compile_footprint(Lowered("INTERNAL: a fault"))


@pytest.mark.slow
@needs_libtpu
def test_a_tiny_network_on_one_chip_is_as_compiled_by_hand():
    _, lower = lowered("v5e:1x1", 1)
    found, by_hand = topology.compile_footprint(lower), lower.compile()
    cost, memory = by_hand.cost_analysis(), by_hand.memory_analysis()
    assert found.arguments == memory.argument_size_in_bytes
    assert found.temporaries == memory.temp_size_in_bytes
    assert found.collectives == {}
    # The permutation of an epoch, which a call makes once, is no part of a step.
    assert 0.98 * cost["flops"] <= found.flops <= 1.02 * cost["flops"]
    assert 0.8 * cost["bytes accessed"] <= found.bytes <= 1.02 * cost["bytes accessed"]
    # The reader's own count comes near the compiler's, padding of tiles included.
    read = hlo.work(by_hand.as_text(), repeat_loops=False)
    assert read["bytes"] == pytest.approx(cost["bytes accessed"], rel=0.35)
    assert 0 < found.main_bytes < found.bytes
    assert found.memory < CHIPS["v5e"].usable


@pytest.mark.slow
@needs_libtpu
def test_a_scan_counts_as_often_as_it_goes_round():
    devices = topology.topology_devices("v5e:1x1")
    whole = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())

    def products(x, w):
        return lax.scan(lambda x, one: (jnp.tanh(x @ one), None), x, w)[0]

    shapes = (
        jax.ShapeDtypeStruct(shape, jnp.float32, sharding=whole)
        for shape in ((512, 512), (10, 512, 512))
    )
    lower = jax.jit(products).lower(*shapes)
    assert lower.compile().cost_analysis()["flops"] < 1.1 * 2 * 512**3
    found = topology.compile_footprint(lower)
    assert found.flops == pytest.approx(10 * 2 * 512**3, rel=0.01)
    assert found.main_bytes >= 10 * 512 * 512 * 4
