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
    """Definition 1, proposition 1."""
    kernel = jnp.linspace(-1, 1, 18).reshape(3, 3, 1, 2)

    def convolution(at):
        return jax.lax.conv_general_dilated(
            at, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    examples = {
        "convolution": convolution,
        "dense": lambda at: at.reshape(3, -1) @ jnp.linspace(-1, 1, 256).reshape(64, 4),
        "maximum": lambda at: nn.max_pool(at, (2, 2), (2, 2)),
        "average": lambda at: nn.avg_pool(at, (2, 2), (2, 2)),
        "addition": lambda at: at + convolution(at),
        "concatenation": lambda at: jnp.concatenate([at, convolution(at)], axis=-1),
        "dropout": lambda at: nn.Dropout(0.5, deterministic=False).apply(
            {}, at, rngs={"dropout": jax.random.key(0)}
        ),
        "relu": nn.relu,
        "composition": lambda at: nn.max_pool(nn.relu(convolution(at) + at), (2, 2)),
    }
    others = {
        "bias": lambda at: convolution(at) + 1,
        "sigmoid": nn.sigmoid,
        "normalization": lambda at: nn.standardize(at, axis=(1, 2, 3)),
    }
    functions = examples | others
    values = quick_jit(lambda at: {name: each(at) for name, each in functions.items()})
    once, twice = values(IMAGES), values(2 * IMAGES)
    for name in functions:
        assert (np.abs(twice[name] - 2 * once[name]).max() == 0) == (name in examples), name


def test_other_sets_do_not_scale_the_logits():
    params, logits = network("wide")
    expected = 2 * np.asarray(logits(params))
    sets = homogeneous_sets(assign(params))
    both = sets[" + ".join(TRANSITIONS[0])]
    for members in ((both[0],), (both[1],), sets["stem/kernel"] + both):
        assert np.abs(logits(doubled(params, members)) - expected).max() > 1e-2
