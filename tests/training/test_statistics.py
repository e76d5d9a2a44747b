"""BatchNorm's statistics at the final parameters."""

import jax
import jax.numpy as jnp
import numpy as np

from nf_resnets import training
from nf_resnets.data import normalize
from nf_resnets.models.layers import GhostBatchNorm
from nf_resnets.training.evaluate import make_estimate_batch_stats
from tests.training import small

COUNT, BATCH, BATCHES = 48, 16, 2
SPLIT = small.split(COUNT)


def apply_of(shards):
    """Two norms with a ReLU between; 8 slices of the batch, as many as devices."""
    norm = GhostBatchNorm(groups=8 // shards)

    def apply(params, batch_stats, images, keys=None):
        updated = {}
        for name in ("first", "second"):
            variables = {"params": params[name], "batch_stats": batch_stats[name]}
            images, found = norm.apply(variables, images, mutable=["batch_stats"])
            images, updated[name] = jax.nn.relu(images), found["batch_stats"]
        return images.mean(axis=(1, 2)), updated

    return apply


def state():
    params = {"scale": np.full(1, 0.7, np.float32), "bias": np.full(1, 0.3, np.float32)}
    stats = {"mean": np.zeros(1, np.float32), "var": np.ones(1, np.float32)}
    return small.state_of(
        {
            "params": {"first": params, "second": params},
            "batch_stats": {"first": stats, "second": stats},
        }
    )


def estimated(devices):
    mesh = small.mesh_of(1, devices)
    estimate = make_estimate_batch_stats(apply_of(devices), mesh, batch_size=BATCH, batches=BATCHES)
    states = training.shard_runs(training.stack([state()]), mesh)
    found = estimate(states, training.replicate(SPLIT, mesh))
    return training.unstack(jax.device_get(found), 0)


def test_they_are_the_averages_of_the_batches_and_forget_the_running_ones():
    # Some other running statistics than the zeros from which the library takes them.
    before = jax.tree.map(lambda leaf: leaf + 0.7, state().batch_stats)
    expected = jax.tree.map(np.zeros_like, before)
    for index in range(BATCHES):
        images = SPLIT.images[small.order(3, 0, COUNT)[index * BATCH : (index + 1) * BATCH]]
        images = normalize(jnp.asarray(images), SPLIT.mean, SPLIT.std)
        _, after = apply_of(1)(state().params, before, images)
        # after = 0.9 before + 0.1 batch
        expected = jax.tree.map(
            lambda sum_, new, old: sum_ + (new - 0.9 * old) / (0.1 * BATCHES),
            expected, after, before,
        )  # fmt: skip
    # Taking the batch's part out of the sum costs a factor of ten in float32's 6e-8 of its size.
    small.assert_close(estimated(1), expected, rtol=1e-4, atol=1e-5)
    assert all(leaf > 0.1 for leaf in jax.tree.leaves(expected["second"]))


def test_they_are_the_same_on_eight_devices():
    # Sums of a few hundred float32 values in another order.
    small.assert_close(estimated(8), estimated(1), rtol=1e-5, atol=1e-6)
