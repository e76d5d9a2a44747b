"""Ghost BatchNorm: statistics of each slice, and its edges; tests/training has several devices.

Compared with NumPy in float64; float32 normalizes values of order 1 to about 1e-6.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.models.layers import GhostBatchNorm, GroupNorm
from tests.models.reference import numpy_norm
from tests.models.trees import assert_close, images, quick_jit, random_variables

FLOAT32 = 1e-5


def train(variables, x, groups, **options):
    module = GhostBatchNorm(groups=groups, train=True, **options)
    y, updated = quick_jit(lambda v, x: module.apply(v, x, mutable=["batch_stats"]))(variables, x)
    return y, updated["batch_stats"]


def reference(variables, x, groups):
    """Each slice by itself, in a loop; the running statistics follow the mean over the slices."""
    outputs, running = [], []
    for part in np.split(x.astype(np.float64), groups):
        stats = {"norm": jax.tree.map(np.float64, variables["batch_stats"])}
        params = {"norm": variables["params"]}
        outputs.append(numpy_norm(part, params, stats, "norm", "batchnorm", train=True))
        running.append(stats["norm"])
    return np.concatenate(outputs), jax.tree.map(lambda *each: np.mean(each, axis=0), *running)


def case(*shape, seed=0):
    """Images whose slices have different means and scales, so that no slice passes for another."""
    x = images(seed, *shape)
    x *= np.linspace(0.5, 2, shape[0], dtype=np.float32).reshape(-1, 1, 1, 1)
    x += np.linspace(-3, 3, shape[0], dtype=np.float32).reshape(-1, 1, 1, 1)
    return random_variables(GhostBatchNorm(), 1, shape[1:]), x


@pytest.mark.parametrize("groups", [1, 4])
def test_each_slice_has_its_own_statistics(groups):
    variables, x = case(16, 3, 5, 6)
    assert_close(train(variables, x, groups), reference(variables, x, groups), FLOAT32)


def test_refuses_a_batch_that_the_groups_do_not_divide():
    variables, x = case(6, 2, 2, 3)
    with pytest.raises(ValueError, match="batch of 6 images cannot be cut into bn_groups=4 equal"):
        train(variables, x, 4)


@pytest.mark.parametrize("norm", [GhostBatchNorm(groups=2, train=True), GroupNorm()])
def test_a_large_mean_does_not_spoil_the_variance(norm):
    """E[x^2] - E[x]^2 would lose all digits: 6e-8 of 1e8, beside a variance of 1."""
    x = images(3, 8, 4, 4, 16) + np.float32(1e4)
    variables = random_variables(norm, 4, x.shape[1:])
    variables["params"] = jax.tree.map(np.ones_like, variables["params"])
    y, _ = quick_jit(lambda v, x: norm.apply(v, x, mutable=["batch_stats"]))(variables, x)
    # What remains: the mean itself is rounded, to 6e-8 of 1e4 for each level of its sum's tree.
    slices = x.astype(np.float64).reshape(2, 4, 4, 4, 16)
    axes = (1, 2, 3)
    if isinstance(norm, GroupNorm):
        slices, axes = x.astype(np.float64).reshape(8, 16, 4, 4), (1, 3)
    expected = (slices - slices.mean(axes, keepdims=True)) / slices.std(axes, keepdims=True) + 1
    assert np.abs(y - expected.reshape(x.shape)).max() < 5e-3


def test_one_pixel_in_a_slice():
    """The variance is 0, and so is the unbiased one: the output is the bias."""
    variables, x = case(4, 1, 1, 3)
    y, stats = train(variables, x, groups=4)
    np.testing.assert_array_equal(y, np.broadcast_to(variables["params"]["bias"], x.shape))
    assert_close(stats["var"], 0.9 * variables["batch_stats"]["var"], FLOAT32)


@pytest.mark.parametrize("norm", [GhostBatchNorm(train=True), GroupNorm()])
def test_half_precision_in_and_out_with_statistics_in_float32(norm):
    x = jnp.asarray(images(5, 4, 3, 3, 8), jnp.bfloat16)
    variables = random_variables(norm, 6, x.shape[1:])
    apply = quick_jit(lambda v, x: norm.apply(v, x, mutable=["batch_stats"]))
    (y, stats), (wide, wide_stats) = (apply(variables, a) for a in (x, x.astype(jnp.float32)))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, wide.astype(jnp.bfloat16))  # rounded once, at the end
    jax.tree.map(np.testing.assert_array_equal, stats, wide_stats)
