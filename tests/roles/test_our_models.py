"""Of this library's networks, what is read off the computation is what the names say."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from nf_resnets import roles, schemes
from nf_resnets.models import ARCHITECTURES
from nf_resnets.roles import LAYER_ROLES, Role
from tests.models.smallest import example, smallest

PAIRS = [
    (architecture, scheme)
    for architecture, found in ARCHITECTURES.items()
    for scheme in found.schemes()
]
# On images so small that a kernel becomes a matrix, its axes cannot be followed.
SIDES = {"resnet": 128, "resnet-v2": 128, "vgg": 128}
# Norms of single elements are multipliers, shifts and gains to a reader.
ELEMENTWISE = ("dyt", "derf")


def network_of(architecture, scheme):
    """A function of parameters and inputs, with shapes of both."""
    found = ARCHITECTURES[architecture]
    model = smallest(found, scheme)
    inputs = example(found, 2)
    if found.inputs == "images":
        side = SIDES.get(architecture, 32)
        inputs = (jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32),)
    variables = jax.eval_shape(model.init, jax.random.key(0), *inputs)
    state = {name: variables[name] for name in variables if name != "params"}

    def network(params, *inputs):
        ones = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), state)
        return model.apply({"params": params, **ones}, *inputs)

    return network, variables["params"], inputs


def comparable(leaf):
    """What a leaf is, but for the names of its axes of length 1."""
    fans = roles.fans(leaf) if leaf.weight and leaf.role in LAYER_ROLES[1:] else None
    return dataclasses.replace(leaf, axes=""), fans


def differs_for_a_reason(named, scheme):
    # Added to the output of the stem's layer alone, it is that layer's bias vector.
    stem = named.path == "bias_stem/vector" and named.role is Role.CHANNEL_BIAS
    return stem or (scheme in ELEMENTWISE and named.role is Role.NORM)


@pytest.mark.every(10)
@pytest.mark.parametrize(("architecture", "scheme"), PAIRS)
def test_the_reading_is_the_names_map(architecture, scheme):
    network, params, inputs = network_of(architecture, scheme)
    alpha = schemes.get(scheme).anatomy.alpha
    read, named = roles.read(network, params, *inputs, alpha=alpha), roles.assign(params)
    assert [(b.k, b.m) for b in read.branches] == [(b.k, b.m) for b in named.branches]
    for one, two in zip(read.leaves, named.leaves, strict=True):
        if not differs_for_a_reason(two, scheme):
            assert comparable(one) == comparable(two)
    for leaf in named.leaves:
        # What a block's shortcut shares with its branch lies above the fork, to a reader.
        if leaf.role in (Role.MULTIPLIER, Role.ALPHA, Role.SHORTCUT):
            same = read.leaves[named.leaves.index(leaf)]
            assert read.branches_of(same, leaf.count) == named.branches_of(leaf, leaf.count)
