"""The public parts: Linen and NNX alike, and a block made of them is the library's own."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nf_resnets import init, schemes
from nf_resnets.models import Multiplier, ScalarBias, ScaledWSConv, SkipInit
from nf_resnets.models import nnx_parts as parts
from nf_resnets.models.blocks import PostActivationBlock

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 6, 5, 3))


def _noise(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


# A part in Linen, the same in NNX, how it is called, and the names of its parameters.
PAIRS = {
    "ScalarBias": (ScalarBias(), lambda: parts.ScalarBias(), (X,), {"bias_scalar": ()}),
    "Multiplier": (Multiplier(), lambda: parts.Multiplier(), (X,), {"multiplier": ()}),
    "SkipInit": (SkipInit(), lambda: parts.SkipInit(), (X,), {"alpha": ()}),
    "ScaledWSConv": (
        ScaledWSConv(8, stride=2),
        lambda: parts.ScaledWSConv(3, 8, stride=2, rngs=nnx.Rngs(0)),
        (X,),
        {"kernel": (3, 3, 3, 8), "gain": (8,), "bias": (8,)},
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_linen_and_nnx_compute_the_same(name):
    linen, make, inputs, shapes = PAIRS[name]
    start = linen.init(KEY, *inputs).get("params", {})
    assert {key: leaf.shape for key, leaf in start.items()} == shapes
    module = make()
    state = nnx.state(module, nnx.Param)
    assert {path[0]: leaf.get_value().shape for path, leaf in nnx.to_flat_state(state)} == shapes
    for key in start:
        if key != "kernel":  # drawn
            np.testing.assert_array_equal(start[key], getattr(module, key)[...], err_msg=key)
    params = {key: _noise(shape, index) for index, (key, shape) in enumerate(shapes.items())}
    for key, value in params.items():
        getattr(module, key)[...] = value
    result = linen.apply({"params": params}, *inputs)
    # One is compiled with the other's operations: what differs is how XLA fuses them.
    np.testing.assert_allclose(module(*inputs), result, rtol=1e-6, atol=1e-6)
    half = [x.astype(jnp.bfloat16) for x in inputs]
    if "Conv" not in name:
        assert linen.apply({"params": params}, *half).dtype == module(*half).dtype == jnp.bfloat16


def test_a_scaled_convolution_by_hand():
    """NumPy: every output channel's weights have mean 0 and variance 1/fan_in, times the gain."""
    kernel, gain = _noise((3, 3, 3, 8)), _noise(8, 1)
    module = ScaledWSConv(8, use_bias=False)
    image = jnp.zeros((1, 3, 3, 3)).at[0, 1, 1, 0].set(1.0)
    y = module.apply({"params": {"kernel": kernel, "gain": gain}}, image)
    flat = np.asarray(kernel, "f8").reshape(-1, 8)
    standard = ((flat - flat.mean(0)) / flat.std(0) / 27**0.5).reshape(3, 3, 3, 8)
    relu = (2 / (1 - 1 / np.pi)) ** 0.5
    # A convolution is a correlation: the response to one pixel is the kernel turned around.
    expected = relu * np.asarray(gain) * standard[::-1, ::-1, 0]
    np.testing.assert_allclose(y[0], expected, rtol=1e-5, atol=1e-6)


class FixupBlock(nn.Module):
    """What a user writes."""

    features: int

    @nn.compact
    def __call__(self, x):
        h = nn.Conv(self.features, (3, 3), use_bias=False)(ScalarBias()(x))
        h = nn.relu(ScalarBias()(h))
        h = nn.Conv(self.features, (3, 3), use_bias=False)(ScalarBias()(h))
        return nn.relu(x + ScalarBias()(Multiplier()(h)))


def test_a_block_of_parts_is_the_librarys_own():
    block = FixupBlock(3)
    shapes = jax.eval_shape(block.init, KEY, X)["params"]
    params = jax.tree.map(lambda leaf: _noise(leaf.shape, leaf.size), shapes)
    params = {
        name: {key: leaf + index / 10 for key, leaf in part.items()}
        for index, (name, part) in enumerate(params.items())
    }
    own = {
        "conv_1": params["Conv_0"],
        "conv_2": params["Conv_1"],
        "multiplier": params["Multiplier_0"]["multiplier"],
        **{
            name: params[f"ScalarBias_{index}"]["bias_scalar"]
            for index, name in enumerate(("bias_1a", "bias_1b", "bias_2a", "bias_2b"))
        },
    }
    ours = PostActivationBlock(3, 1, schemes.get("fixup").anatomy)
    # Sums in another order.
    np.testing.assert_allclose(
        block.apply({"params": params}, X), ours.apply({"params": own}, X), rtol=1e-5, atol=1e-5
    )


def test_the_parts_of_nnx_are_read():
    class Block(nnx.Module):
        def __init__(self, rngs):
            self.conv_1 = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
            self.conv_2 = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
            self.bias_a, self.bias_b, self.bias_c = (parts.ScalarBias() for _ in range(3))
            self.scale = parts.Multiplier()

        def __call__(self, x):
            h = jax.nn.relu(self.bias_b(self.conv_1(self.bias_a(x))))
            return x + self.scale(self.conv_2(self.bias_c(h)))

    net = nnx.List([Block(nnx.Rngs(seed)) for seed in range(2)])
    state = nnx.state(net, nnx.Param)
    graph = nnx.graphdef(net)

    def network(state, x):
        first, second = nnx.merge(graph, state)
        return second(first(x))

    nnx.update(net, init.fixup(state, 2, network=network, inputs=(X,)))
    # Every branch is silent.
    np.testing.assert_array_equal(net[1](net[0](X)), X)
