"""VGG networks against loops in NumPy."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.models import VGG
from tests.models.reference import numpy_conv, numpy_max_pool, numpy_norm
from tests.models.trees import assert_close, images, quick_jit, random_variables

VALUES = 1e-5  # of the largest logit; float32's rounding in 16 layers; seen: 3e-6
# VGG-11 of table 1 of Simonyan and Zisserman: channels, and M for a max-pool.
PUBLISHED = "64 M 128 M 256 256 M 512 512 M 512 512 M"


def small(depth, scheme, **options):
    return VGG(depth, scheme, **{"stem_channels": 4, "num_classes": 10, **options})


def numpy_adaptive_pool(x, size):
    """The means over what each of ``size x size`` positions covers."""
    pooled = np.empty((len(x), size, size, x.shape[3]))
    for i, j in np.ndindex(size, size):
        rows, columns = (
            [p for p in range(n) if p + 1 > at * n / size and p < (at + 1) * n / size]
            for at, n in zip((i, j), x.shape[1:3], strict=True)
        )
        pooled[:, i, j] = x[:, rows][:, :, columns].mean((1, 2))
    return pooled


def numpy_vgg(variables, x, scheme, pool_size):
    """A VGG network whose last map is at least as large as the pool."""
    tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
    params, stats = tree["params"], tree.get("batch_stats", {})

    def bias(name):
        return params[f"bias_{name}"]["vector"] if scheme == "rescalenet" else 0

    x, count = x.astype(np.float64), itertools.count(1)
    for symbol in PUBLISHED.split():
        if symbol == "M":
            x = numpy_max_pool(x, 2, 2)
            continue
        name = f"features_{next(count)}"
        p = params[name]
        assert p["kernel"].shape[3] * 16 == int(symbol)
        x = x if name == "features_1" else x + bias(name)
        x = numpy_conv(x, p["kernel"], 1) + p.get("bias", 0)
        x = np.maximum(numpy_norm(x, params, stats, f"norm_{name}", scheme, False), 0)
    dense = [name for name in ("classifier_1", "classifier_2") if name in params] + ["head"]
    x = x + bias(dense[0])
    x = numpy_adaptive_pool(x, pool_size).reshape(len(x), -1)
    for index, name in enumerate(dense):
        x = x + bias(name) if index else x
        x = x @ params[name]["kernel"] + params[name].get("bias", 0)
        x = x if name == "head" else np.maximum(x, 0)
    return x


@pytest.mark.every(5)
@pytest.mark.parametrize("options", [{"classifier": (12, 8)}, {"classifier": (), "pool_size": 1}])
@pytest.mark.parametrize("scheme", ["plain", "batchnorm", "rescalenet"])
def test_matches_numpy(scheme, options):
    """On images whose last map, 3 x 2, is no multiple of the pool."""
    options = {"pool_size": 2, **options}
    model = small(11, scheme, **options)
    x = images(1, 3, 97, 64, 3)
    variables = random_variables(model, 2, x.shape[1:])
    expected = numpy_vgg(variables, x, scheme, options["pool_size"])
    assert_close(quick_jit(model.apply)(variables, x), expected, VALUES)


def test_dropout_is_each_example_s_own():
    """In training only, with keys only; what an example loses does not depend on the others."""
    model = small(11, "plain", classifier=(64, 64), pool_size=1, dropout=0.5)
    x = images(1, 4, 32, 32, 3)
    variables = random_variables(model, 2, x.shape[1:])
    keys = jax.random.split(jax.random.key(0), 4)
    train = quick_jit(lambda x, keys: model.apply(variables, x, train=True, keys=keys))
    whole = train(x, keys)
    # In another place of the batch, and among others, an example loses the same.
    moved = train(np.concatenate([x[2:], 2 * x[:2]]), keys[np.array([2, 3, 1, 0])])
    np.testing.assert_allclose(moved[:2], whole[2:], rtol=1e-5, atol=1e-5)
    assert np.abs(train(x, keys[::-1]) - whole).max() > 0.1
    without = quick_jit(functools.partial(model.clone(dropout=0.0).apply, train=True))
    np.testing.assert_array_equal(without(variables, x), quick_jit(model.apply)(variables, x))


def test_half_precision():
    """Without a barrier behind each convolution, jax 0.12 makes NaN of both on a CPU."""
    model = small(16, "rescalenet", classifier=(24,))
    x = images(2, 2, 64, 64, 3)
    variables = random_variables(model, 1, x.shape[1:])
    one, other = (
        quick_jit(m.apply)(variables, x) for m in (model, model.clone(dtype=jnp.bfloat16))
    )
    assert other.dtype == jnp.float32
    # 2**-9 for each of 15 layers' roundings, of the size of what they round.
    assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max()
