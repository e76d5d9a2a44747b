"""Which sets are positively homogeneous: found by name, and held to the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models
from nf_resnets.analysis.bounds import homogeneous_sets
from nf_resnets.roles import assign
from tests.analysis.batch import undrawn
from tests.models.trees import quick_jit

IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8, 8, 1)), jnp.float32)


@functools.cache
def network(kind):
    if kind == "wide":
        model = models.WideResNet(depth=10, stem_channels=4, scheme="fixup")
    else:
        model = models.CifarResNet(depth=8, stem_channels=4, scheme="fixup")
    params = quick_jit(init.he)(undrawn(model), jax.random.key(1))
    return params, quick_jit(lambda p: model.apply({"params": p}, IMAGES))


def doubled(params, members):
    leaves, treedef = jax.tree.flatten(params)
    return treedef.unflatten([leaf * (2 if at in members else 1) for at, leaf in enumerate(leaves)])


TRANSITIONS = [
    (f"stage_{stage}/first/shortcut/kernel", f"stage_{stage}/first/conv_{layer}/kernel")
    for stage in (2, 3)
    for layer in (1, 2)
]
EXPECTED = {
    "wide": ["stem/kernel", "head/kernel", *(" + ".join(pair) for pair in TRANSITIONS)],
    "cifar": ["stem/kernel", "head/kernel"],  # its shortcuts are every second pixel
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_sets_are_those_of_figure_2_and_scale_the_logits(kind):
    params, logits = network(kind)
    sets = homogeneous_sets(assign(params))
    assert list(sets) == EXPECTED[kind]
    before = np.asarray(logits(params))
    assert np.abs(before).max() > 0.1
    for members in sets.values():
        # A factor of 2 changes exponents only, so that nothing is rounded differently.
        np.testing.assert_array_equal(logits(doubled(params, members)), 2 * before)
