"""Of this library's networks, what is read off the computation is what the names say."""

import dataclasses

import pytest

from nf_resnets import roles, schemes
from nf_resnets.models import ARCHITECTURES
from nf_resnets.roles import LAYER_ROLES, Role
from tests.models.smallest import example, smallest
from tests.roles.libraries import linen
from tests.roles.networks import images

PAIRS = [
    (architecture, scheme)
    for architecture, found in ARCHITECTURES.items()
    for scheme in found.schemes()
]
# On images so small that a kernel becomes a matrix, its axes cannot be followed.
SIDES = {"resnet": 128, "resnet-v2": 128, "vgg": 128}
# Norms of single elements are multipliers, shifts and gains to a reader.
ELEMENTWISE = ("dyt", "derf")


def case_of(architecture, scheme):
    inputs = (images(SIDES.get(architecture, 32)),)
    if architecture == "transformer":
        inputs = example(architecture, 2)
    return linen(smallest(architecture, scheme), *inputs)


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
    case, alpha = case_of(architecture, scheme), schemes.get(scheme).anatomy.alpha
    read = roles.read(case.network, case.params, *case.inputs, alpha=alpha)
    named = roles.assign(case.params)
    assert [(b.k, b.m) for b in read.branches] == [(b.k, b.m) for b in named.branches]
    for one, two in zip(read.leaves, named.leaves, strict=True):
        if not differs_for_a_reason(two, scheme):
            assert comparable(one) == comparable(two)
    for leaf in named.leaves:
        # What a block's shortcut shares with its branch lies above the fork, to a reader.
        if leaf.role in (Role.MULTIPLIER, Role.ALPHA, Role.SHORTCUT):
            same = read.leaves[named.leaves.index(leaf)]
            assert read.branches_of(same, leaf.count) == named.branches_of(leaf, leaf.count)
