"""The programs compiled for slices of v5e: what their chips send each other, and that they fit."""

import importlib.util
import re

import jax
import pytest

from nf_resnets import topology
from nf_resnets.topology import CHIPS
from tests.topology import programs

spec = importlib.util.find_spec("libtpu")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        spec is None or spec.origin is None,
        reason="libtpu is not installed (pip install 'nf_resnets[tpu-compiler]')",
    ),
]


def compiled(make, name, **options):
    """A program for a slice: its footprint, its text, and the states of its runs."""
    program = make(topology.topology_devices(name), **options)
    found = program.function.lower(*program.arguments).compile()
    need = topology.footprint(found)
    assert 0 < need.memory < CHIPS["v5e"].usable and need.flops > 0
    return need, found.as_text(), program.arguments[0]


def numbers(tree):
    """How many numbers the first run of stacked states has."""
    return sum(leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(tree))


def groups(text):
    """Between which chips the all-reduces of a program go: how many groups of how many."""
    listed = re.findall(r"all-reduce(?:-start)?\(.*?replica_groups=(\{\{.*?\}\}|\[\d+,\d+\])", text)
    assert listed
    found = set()
    for each in listed:
        if each.startswith("["):
            found.add(tuple(map(int, each.strip("[]").split(","))))
        else:
            parts = each[2:-2].split("},{")
            found.add((len(parts), len(parts[0].split(","))))
    return found


def test_runs_of_a_sweep_send_each_other_nothing():
    need, text, states = compiled(programs.sweep, "v5e:4x4")
    # Two runs on each chip: gradients, loss and accuracy of both, once, in float32.
    assert need.collectives == {"all-reduce": (1, 2 * 4 * (numbers(states.params) + 2))}
    # A mesh of four runs' places by four parts of a batch.
    assert groups(text) == {(4, 4)}


def test_ghost_batches_are_each_chips_own():
    need, text, states = compiled(programs.ghost_batch_norm, "v5e:2x2")
    # The statistics of the slices never leave a chip; their running means do, with the gradients.
    count = numbers((states.params, states.batch_stats)) + 2
    assert need.collectives == {"all-reduce": (1, 4 * count)}
    assert groups(text) == {(1, 4)}


def test_streamed_images_are_mixed_as_bytes():
    need, _, states = compiled(programs.streamed, "v5e:2x2")
    images, labels = 32 * 32 * 32 * 3, 4 * 32
    assert need.collectives.keys() == {"all-gather", "all-reduce"}
    sent = sum(bytes_ for _, bytes_ in need.collectives.values())
    assert need.collectives["all-gather"][1] in (images, images + labels)
    assert sent == images + labels + 4 * (numbers(states.params) + 2)
