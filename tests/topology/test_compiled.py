"""The data sheets, and programs compiled for slices of v5e and for this machine's devices."""

import dataclasses
import importlib.util
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nf_resnets import topology
from nf_resnets.sweep import make_sweep
from nf_resnets.sweep.engine import sweep_mesh
from nf_resnets.topology import CHIPS, DoesNotFitError, Footprint, chip_of, chips, hlo

spec = importlib.util.find_spec("libtpu")
needs_libtpu = pytest.mark.skipif(
    spec is None or spec.origin is None,
    reason="libtpu is not installed (pip install 'nf_resnets[tpu-compiler]')",
)
TINY = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 2.0, "batch_size": 64}


def lowered(devices, devices_per_run, runs_per_device=1, **base):
    """A sweep's program."""
    sweep = make_sweep({"seed": (0,)}, {**TINY, **base})
    mesh = sweep_mesh(devices, devices_per_run)
    how = {"runs_per_device": runs_per_device, "vectorize": "vmap"}
    return sweep.task.lower(sweep.plans[0], mesh, **how)


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
        topology.topology_devices("v5e:2x2")
    assert str(error.value).endswith("pip install 'nf_resnets[tpu-compiler]'")


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
    lower = lowered(topology.topology_devices("v5e:1x1"), 1)
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


def sent(devices, devices_per_run, *options, **base):
    """What this machine's devices send each other, the program's text, and the runs' states."""
    lower = lowered(jax.devices()[:devices], devices_per_run, *options, **base)
    found = lower.compile()
    return topology.footprint(found).collectives, found.as_text(), lower.args_info[0][0]


def numbers(tree):
    """How many numbers the first run of stacked states has."""
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(tree))


def groups(text):
    """Between which devices the all-reduces of a program go: how many groups of how many."""
    found = re.findall(r"all-reduce(?:-start)?\(.*?replica_groups=\[(\d+),(\d+)\]", text)
    listed = re.findall(r"all-reduce(?:-start)?\(.*?replica_groups=\{\{(.*?)\}\}", text)
    parts = [each.split("},{") for each in listed]
    return {(int(a), int(b)) for a, b in found} | {
        (len(part), len(part[0].split(","))) for part in parts
    }


@pytest.mark.slow  # compiled as users do: else sums are not joined
def test_runs_of_a_sweep_send_each_other_nothing():
    collectives, text, states = sent(8, 4, 2)
    # Two runs on each device: gradients, loss and accuracy of both, once, in float32.
    assert collectives == {"all-reduce": (1, 2 * 4 * (numbers(states.params) + 2))}
    # A mesh of two runs' places by four parts of a batch.
    assert groups(text) == {(2, 4)}


@pytest.mark.slow
def test_ghost_batches_are_each_devices_own():
    collectives, text, states = sent(4, 4, scheme="batchnorm", ghost_batch=8)
    # The statistics of the slices never leave a device; their running means do, with the gradients.
    count = numbers((states.params, states.batch_stats)) + 2
    assert collectives == {"all-reduce": (1, 4 * count)}
    assert groups(text) == {(1, 4)}
