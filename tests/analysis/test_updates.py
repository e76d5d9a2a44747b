"""The size of the first update: by a step, to first order, in closed form; flat in L for Fixup."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.untrained import OneStage, digits_batch, forward
from nf_resnets import init, models
from nf_resnets.analysis import random_head, updates
from nf_resnets.roles import Role, assign
from tests.models.trees import filled_with, quick_jit, random_variables

BATCH = 8
BLOCKS = 1  # the fewest are compiled soonest


@functools.cache
def network():
    images, labels = digits_batch(BATCH)
    model = OneStage(BLOCKS, 4, "fixup")
    params = random_variables(model, 1, image_shape=(8, 8, 1), branch=1.0)["params"]
    return forward(model), params, images, labels


def test_of_a_linear_network_the_update_is_known():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 4)).astype(np.float32)
    weights = rng.standard_normal((4, 3)).astype(np.float32)
    labels = rng.integers(0, 3, 6)
    z = x.astype(np.float64) @ weights
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    slope = (p - np.eye(3)[labels]) / 6  # of the loss averaged over the batch
    expected = -(x @ x.T).astype(np.float64) @ slope

    def matrix(at, images):
        return images @ at

    # Float32 sums of a few products.
    first = updates.first_order_update(matrix, weights, x, labels)
    np.testing.assert_allclose(first, expected, rtol=1e-5, atol=1e-6)
    # Linear in the weights: any rate has the same update.
    for rate in (None, 0.5):
        found = updates.update_size(matrix, weights, x, labels, rate)
        np.testing.assert_allclose(found, np.linalg.norm(expected, axis=1), rtol=1e-5)


def test_with_fixups_zero_head_only_the_head_moves():
    function, params, *batch = network()
    zero = init.fixup(params, BLOCKS)
    gradient = quick_jit(functools.partial(updates.loss_gradient, function))(zero, *batch)
    moved = {leaf.path for leaf, part in assign(zero).items(gradient) if np.any(part)}
    assert moved == {"head/kernel", "head/bias"}
    assert not np.any(function(zero, batch[0]))
    # The logits are linear in the head, so the first order is all there is.
    first, sizes = (
        quick_jit(functools.partial(measure, function))(zero, *batch)
        for measure in (updates.first_order_update, updates.update_size)
    )
    np.testing.assert_allclose(sizes, np.linalg.norm(first, axis=1), rtol=1e-4)


def test_the_random_head_is_the_standard_one_and_changes_nothing_else():
    _, params, *_ = network()
    zero = init.fixup(params, BLOCKS)
    drawn = random_head(zero, jax.random.key(0))
    for leaf, old, new in zip(
        assign(zero).leaves, jax.tree.leaves(zero), jax.tree.leaves(drawn), strict=True
    ):
        assert np.array_equal(old, new) == (leaf.path != "head/kernel"), leaf.path
    wide = random_head({"head": {"kernel": jnp.zeros((400, 50))}}, jax.random.key(1))
    # 20,000 draws: a standard error of 0.5%.
    assert float(wide["head"]["kernel"].std()) == pytest.approx(0.05, rel=0.02)


def test_integers_functions_and_half_precision_change_nothing():
    """As an Equinox module holds them; each weight is a number of bfloat16."""
    w = jnp.array([[0.5, -1.0, 0.25], [1.5, 0.75, -0.5]])
    x, labels = jnp.array([[1.0, 2.0], [3.0, -1.0]]), jnp.array([0, 2])
    other = {"act": jax.nn.relu, "w": w.astype(jnp.bfloat16), "steps": jnp.array(3)}

    def linear(params, x):
        return x.astype(params["w"].dtype) @ params["w"]

    for measure in (updates.loss_gradient, updates.first_order_update, updates.update_size):
        found, expected = (measure(linear, params, x, labels) for params in (other, {"w": w}))
        np.testing.assert_array_equal(*map(jax.tree.leaves, (found, expected)))


DEPTHS = (2, 8, 32)  # blocks in a stage: L = 6, 24, 96


def update_sizes(blocks):
    """The update's mean size to first order, with Fixup's rules and with rule 2 left out."""
    model = models.WideResNet(depth=6 * blocks + 4, stem_channels=4, scheme="fixup")
    images, labels = digits_batch(BATCH)
    L = model.num_branches
    zeros = filled_with(0.0, model, (8, 8, 1))
    role_map = assign(zeros)

    def one(key, factor):
        params = random_head(init.fixup(zeros, L, key=key), jax.random.fold_in(key, 1))
        scaled = role_map.map(
            lambda leaf, value: value * factor if leaf.role is Role.BRANCH else value, params
        )
        return updates.update_size(forward(model), scaled, images, labels).mean()

    keys = jax.random.split(jax.random.key(0), 8)
    run = quick_jit(lambda factor: jax.lax.map(lambda key: one(key, factor), keys).mean())
    return float(run(1.0)), float(run(L**0.5))


@pytest.mark.slow
def test_the_update_is_flat_in_depth_for_fixup_and_linear_without_rule_2():
    sizes = np.array([update_sizes(blocks) for blocks in DEPTHS])
    L = 3 * np.array(DEPTHS)
    fixup, without = sizes.T
    # Eight networks of width 4: their mean size scatters by some 10% about that of wide ones.
    assert abs(np.log(fixup[-1] / fixup[0]) / np.log(L[-1] / L[0])) < 0.1
    # A constant, of stem and head, and a part for each branch.
    growth = (without[2] - without[1]) / (without[1] - without[0])
    assert growth == pytest.approx((L[2] - L[1]) / (L[1] - L[0]), rel=0.3)
    assert without[-1] > 5 * fixup[-1]
