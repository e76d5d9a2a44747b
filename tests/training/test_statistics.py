"""BatchNorm's statistics at the final parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import training
from nf_resnets.data import normalize
from tests.training.small import he_variables, host, order, split, state_of, wide_resnet

COUNT, BATCH, BATCHES = 48, 16, 2


def estimated(devices):
    model = wide_resnet("batchnorm")
    data = split(COUNT)
    state = state_of(he_variables(model))
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    apply_fn = training.train_apply(model, shards=devices)
    estimate = training.make_estimate_batch_stats(apply_fn, mesh, batch_size=BATCH, batches=BATCHES)
    states = training.shard_runs(training.stack([state]), mesh)
    orders = training.shard_runs(order(3, 0, COUNT)[None], mesh)
    found = estimate(states, training.replicate(data, mesh), orders)
    return model, data, state, training.unstack(host(found), 0)


def test_they_are_the_averages_of_the_batches_and_forget_the_running_ones():
    model, data, state, found = estimated(devices=1)
    apply = jax.jit(training.train_apply(model))
    # Some other running statistics than the zeros from which the library takes them.
    before = jax.tree.map(lambda leaf: leaf + 0.7, state.batch_stats)
    expected = jax.tree.map(np.zeros_like, state.batch_stats)
    for index in range(BATCHES):
        images = data.images[order(3, 0, COUNT)[index * BATCH : (index + 1) * BATCH]]
        images = normalize(jnp.asarray(images), data.mean, data.std)
        _, after = apply(state.params, before, images)
        # after = 0.9 before + 0.1 batch
        expected = jax.tree.map(
            lambda sum_, new, old: sum_ + (new - 0.9 * old) / (0.1 * BATCHES),
            expected, after, before,
        )  # fmt: skip
    # Taking the batch's share out of the sum costs a factor of ten in float32's 6e-8 of its size.
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected
    )


def test_they_are_the_same_on_eight_devices():
    _, _, _, one = estimated(devices=1)
    _, _, _, eight = estimated(devices=8)
    # Sums of a few hundred float32 values in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, eight)


def test_no_batches_are_refused():
    model = wide_resnet("batchnorm")
    with pytest.raises(ValueError, match="batches=0 found"):
        training.make_estimate_batch_stats(
            training.train_apply(model), training.make_mesh(devices=jax.devices()[:1]),
            batch_size=16, batches=0,
        )  # fmt: skip
