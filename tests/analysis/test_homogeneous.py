"""Which sets are positively homogeneous: found by name, and held to the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

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


def test_the_papers_examples_and_their_composition_are_homogeneous_functions():
    """Definition 1, proposition 1; a bias, a sigmoid and a normalization are not."""
    kernel = jnp.linspace(-1, 1, 18).reshape(3, 3, 1, 2)

    def convolution(at):
        return jax.lax.conv_general_dilated(
            at, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def dropout(at):
        drop = nn.Dropout(0.5, deterministic=False)
        return drop.apply({}, at, rngs={"dropout": jax.random.key(0)})

    homogeneous = [
        convolution, dropout, nn.relu,
        lambda at: nn.max_pool(at, (2, 2), (2, 2)),
        lambda at: nn.avg_pool(at, (2, 2), (2, 2)),
        lambda at: jnp.concatenate([at, convolution(at)], axis=-1),
        lambda at: nn.max_pool(nn.relu(convolution(at) + at), (2, 2)),
    ]  # fmt: skip
    normalized = functools.partial(nn.standardize, axis=(1, 2, 3))
    others = [lambda at: convolution(at) + 1, nn.sigmoid, normalized]
    for function in homogeneous + others:
        once, twice = (quick_jit(function)(at) for at in (IMAGES, 2 * IMAGES))
        assert np.array_equal(twice, 2 * once) == (function in homogeneous)
