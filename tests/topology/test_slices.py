"""What the devices of a sweep send each other, in programs compiled for this machine's eight."""

import math
import re

import jax
import pytest

from nf_resnets import topology
from nf_resnets.sweep import make_sweep
from nf_resnets.sweep.engine import sweep_mesh

TINY = {"model": "wrn-10-1", "stem_channels": 4, "epochs": 2.0, "batch_size": 64}


def compiled(devices, devices_per_run, runs_per_device=1, **base):
    """A sweep's program: its collectives, its text, and the states of its runs."""
    sweep = make_sweep({"seed": (0,)}, {**TINY, **base})
    mesh = sweep_mesh(jax.devices()[:devices], devices_per_run)
    lower = sweep.task.lower(
        sweep.plans[0], mesh, runs_per_device=runs_per_device, vectorize="vmap"
    )
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
    collectives, text, states = compiled(8, 4, runs_per_device=2)
    # Two runs on each device: gradients, loss and accuracy of both, once, in float32.
    assert collectives == {"all-reduce": (1, 2 * 4 * (numbers(states.params) + 2))}
    # A mesh of two runs' places by four parts of a batch.
    assert groups(text) == {(2, 4)}


@pytest.mark.slow
def test_ghost_batches_are_each_devices_own():
    collectives, text, states = compiled(4, 4, scheme="batchnorm", ghost_batch=8)
    # The statistics of the slices never leave a device; their running means do, with the gradients.
    count = numbers((states.params, states.batch_stats)) + 2
    assert collectives == {"all-reduce": (1, 4 * count)}
    assert groups(text) == {(1, 4)}
