"""RescaleNet's biases, found in one pass, against means taken layer by layer."""

import functools

import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from nf_resnets import init, models
from nf_resnets.init import Rules
from nf_resnets.models.layers import ChannelBias
from tests.init.noted import network_of, noted
from tests.models.smallest import smallest
from tests.models.trees import quick_jit, random_like, shapes
from tests.trees import pairs

WIDE = models.WideResNet(depth=16, scheme="rescalenet", stem_channels=4)
NETWORKS = {
    "cifar": (models.CifarResNet(depth=14, scheme="rescalenet", stem_channels=4), 8),
    "wide": (WIDE, 8),
    "wide, remat": (WIDE.clone(remat=True), 8),
    "bottleneck": (smallest("resnet", "rescalenet"), 32),
    "vgg": (smallest("vgg", "rescalenet"), 32),
}


class TwoLayers(nn.Module):
    """Two biases with a layer between them, the second mean depending on the first bias."""

    @nn.compact
    def __call__(self, x):
        h = jnp.square(ChannelBias(name="one")(x))
        return ChannelBias(name="two")(h)


SMALL = functools.partial(init.rescale_biases, rules=Rules(channel_bias="/vector$"))
NETWORKS["small"] = TwoLayers(), 4
# Sums of a thousand float32 numbers of order 1, at each of some twenty layers of which each passes
# on the errors of those before it.
TOLERANCE = 3e-5


def _images(batch, side):
    noise = np.random.default_rng(0).standard_normal((batch, side, side, 3))
    return (2 + noise).astype("float32")


def _setting(name, batch=6):
    model, side = NETWORKS[name]
    images = _images(batch, side)
    # Biases too: what they are before does not matter.
    params = random_like(shapes(model, images.shape[1:])["params"], 1, 2**0.5, shift=1.0)
    return model, params, images


def _rescaled(model, params, images):
    function = SMALL if isinstance(model, TwoLayers) else init.rescale_biases
    return quick_jit(lambda tree: function(tree, network=network_of(model), inputs=(images,)))(
        params
    )


def _mean(value):
    return value.mean(axis=tuple(range(value.ndim - 1)))


@pytest.mark.every(9)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_mean_becomes_zero_and_weights_stay(name):
    model, params, images = _setting(name)
    result = _rescaled(model, params, images)
    assert jax.tree.structure(result) == jax.tree.structure(params)
    vectors = set()
    for path, old, new in pairs(params, result):
        if path.endswith("/vector"):
            vectors.add(path.removesuffix("/vector"))
        else:
            np.testing.assert_array_equal(old, new, err_msg=path)
    plain = model.clone(remat=False) if "remat" in name else model  # remat traces, jit off or not
    before, found = (
        noted(plain, tree, images, ChannelBias, lambda layer, args, out: _mean(out))
        for tree in (params, result)
    )
    assert {path for path, _ in found} == vectors
    assert max(np.abs(mean).max() for _, mean in found) < TOLERANCE
    # They are no such thing before: the test looked at something.
    assert min(np.abs(mean).max() for _, mean in before) > 0.1


def test_containers_dtypes_and_shardings_are_kept():
    model, params, images = _setting("small", batch=2)
    run = functools.partial(SMALL, network=network_of(model))
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:8])
    placed = jax.device_put(params, NamedSharding(mesh, P()))
    params = flax.core.freeze(params)
    result = run(params, inputs=(images,))
    assert isinstance(result, flax.core.FrozenDict)
    vector = result["two"]["vector"]
    assert isinstance(vector, np.ndarray) and vector.dtype == np.float32
    half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
    made = jax.eval_shape(lambda tree: run(tree, inputs=(images,)), half)
    assert {leaf.dtype for leaf in jax.tree.leaves(made)} == {jnp.dtype(jnp.bfloat16)}
    replicated = run(placed, inputs=(jax.device_put(images, placed["one"]["vector"].sharding),))
    assert replicated["two"]["vector"].sharding == placed["two"]["vector"].sharding
    np.testing.assert_allclose(replicated["two"]["vector"], vector, atol=TOLERANCE)


def test_a_network_without_channel_biases_is_refused():
    with pytest.raises(ValueError, match="no channel bias found in params; expected one"):
        init.rescale_biases(
            {"stem": {"kernel": np.ones((3, 3, 3, 4))}}, network=None, inputs=(np.ones(1),)
        )


ONE = functools.partial(init.rescale_biases, rules=Rules(channel_bias="^b$"))


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 1, 1)])
def test_channels_are_the_long_axis_of_the_leaf(shape):
    images = _images(6, 3)  # all axes of a picture have the same length
    network = jax.vmap(lambda params, x: x + params["b"], (None, 0))
    found = ONE({"b": np.ones(shape, "float32")}, network=network, inputs=(images,))["b"]
    others = tuple({0, 1, 2, 3} - {1 + shape.index(3)})
    assert found.shape == shape
    np.testing.assert_allclose(found.ravel(), -images.mean(others), atol=TOLERANCE)


def test_a_multiple_of_a_leaf_is_no_bias_that_can_be_set():
    with pytest.raises(ValueError, match="'b' meets the data in no layer or sum"):
        ONE({"b": np.ones((1, 3))}, network=lambda p, x: x + p["b"] / 2, inputs=(np.ones((2, 3)),))
