"""The public parts: Linen and NNX alike, and a block made of them is the library's own."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nf_resnets import init, roles, schemes
from nf_resnets.models import FixupNorm, Multiplier, ScalarBias, ScaledWSConv, SkipInit
from nf_resnets.models import nnx_parts as parts
from nf_resnets.models.blocks import PostActivationBlock

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (2, 6, 5, 3))


def _noise(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape), "float32")


# A part in Linen, the same in NNX, and the names of its parameters.
PAIRS = [
    (ScalarBias(), parts.ScalarBias, {"bias_scalar": ()}),
    (Multiplier(), parts.Multiplier, {"multiplier": ()}),
    (SkipInit(), parts.SkipInit, {"alpha": ()}),
    (
        ScaledWSConv(8, stride=2),
        lambda: parts.ScaledWSConv(3, 8, stride=2, rngs=nnx.Rngs(0)),
        {"kernel": (3, 3, 3, 8), "gain": (8,), "bias": (8,)},
    ),
]


@pytest.mark.parametrize(("linen", "make", "shapes"), PAIRS)
def test_linen_and_nnx_compute_the_same(linen, make, shapes):
    start, module = linen.init(KEY, X)["params"], make()
    assert {key: leaf.shape for key, leaf in start.items()} == shapes
    state = nnx.to_flat_state(nnx.state(module, nnx.Param))
    assert {path[0]: leaf.get_value().shape for path, leaf in state} == shapes
    for key in start:
        if key != "kernel":  # drawn
            np.testing.assert_array_equal(start[key], getattr(module, key)[...], err_msg=key)
    params = {key: _noise(shape, index) for index, (key, shape) in enumerate(shapes.items())}
    for key, value in params.items():
        getattr(module, key)[...] = value
    # One is compiled with the other's operations: what differs is how XLA fuses them.
    result = linen.apply({"params": params}, X)
    np.testing.assert_allclose(module(X), result, rtol=1e-6, atol=1e-6)
    if "kernel" not in shapes:
        half = X.astype(jnp.bfloat16)
        assert linen.apply({"params": params}, half).dtype == module(half).dtype == jnp.bfloat16


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
    graph, state = nnx.split(net)

    def network(state, x):
        first, second = nnx.merge(graph, state)
        return second(first(x))

    # Every branch is silent.
    np.testing.assert_array_equal(network(init.fixup(state, 2, network=network, inputs=(X,)), X), X)


class Network(nn.Module):
    """A user's own, with FixupNorm in the place of its norms."""

    @nn.compact
    def __call__(self, x):
        norm = partial(FixupNorm, use_running_average=False, momentum=0.9, dtype=jnp.float32)
        conv = partial(nn.Conv, 8, (3, 3), use_bias=False)
        x = nn.relu(norm()(conv()(x)))
        h = nn.relu(norm()(conv()(x)))
        x = nn.relu(x + norm(scale_init=nn.initializers.zeros)(conv()(h)))
        return nn.Dense(10)(x.mean((1, 2)))


def test_a_network_of_fixup_norms_starts_as_a_fixup_network():
    model = Network()

    def network(params, x):
        return model.apply({"params": params}, x)

    (params,) = model.init(KEY, X).values()
    assert not params["FixupNorm_2"]["multiplier"]
    params = init.fixup(params, depth=1, network=network, inputs=(X,))
    assert params["FixupNorm_2"]["multiplier"] == 1 and not network(params, X).any()
    role_map = roles.read(network, params, X)
    assert sum(leaf.role is roles.Role.MULTIPLIER for leaf in role_map.leaves) == 1


@pytest.mark.parametrize("norm", [partial(nnx.BatchNorm, use_running_average=False), nnx.LayerNorm])
def test_fixup_norm_takes_the_place_of_the_norms_of_nnx(norm):
    options = {"epsilon": 1e-3, "scale_init": nnx.initializers.constant(2.0), "rngs": nnx.Rngs(0)}
    assert norm(3, **options)(X).shape == X.shape
    options |= getattr(norm, "keywords", {})
    np.testing.assert_array_equal(parts.FixupNorm(3, **options)(X), 2 * X)


def test_fixup_norm_has_the_dtype_and_the_parts_that_flax_would_have():
    norm = FixupNorm(dtype=jnp.bfloat16, use_scale=False)
    y, variables = norm.init_with_output(KEY, X)
    assert y.dtype == jnp.bfloat16
    assert list(variables["params"]) == ["bias_scalar"]
