"""FixupNorm takes the place of Flax's norms, and the network starts as a Fixup network."""

import contextlib
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nf_resnets import init, models, roles
from nf_resnets.models import nnx_parts

X = jax.random.normal(jax.random.key(1), (2, 8, 8, 3))


class Block(nn.Module):
    width: int
    norm: Any

    @nn.compact
    def __call__(self, x):
        conv = partial(nn.Conv, self.width, (3, 3), use_bias=False)
        h = nn.relu(self.norm()(conv()(x)))
        h = self.norm(scale_init=nn.initializers.zeros)(conv()(h))
        if x.shape != h.shape:
            x = self.norm(name="norm_skip")(nn.Conv(self.width, (1, 1), use_bias=False)(x))
        return nn.relu(x + h)


class ResNet(nn.Module):
    norm: Any = nn.BatchNorm

    @nn.compact
    def __call__(self, x):
        norm = self.norm
        if norm in (nn.BatchNorm, models.FixupNorm):
            norm = partial(norm, use_running_average=False, momentum=0.9, dtype=jnp.float32)
        x = nn.relu(norm()(nn.Conv(8, (3, 3), use_bias=False)(x)))
        for width in (8, 16):
            x = Block(width, norm)(x)
        return nn.Dense(10)(x.mean((1, 2)))


def scalars(call, args, kwargs, context):
    """The recipe of docs/how_to/norm_free.md."""
    norm = context.module
    if not isinstance(norm, nn.BatchNorm | nn.LayerNorm | nn.GroupNorm):
        return call(*args, **kwargs)
    scale = norm.param("multiplier", norm.scale_init, ())
    return args[0] * scale + norm.param("bias_scalar", norm.bias_init, ())


@pytest.mark.parametrize("recipe", [False, True])
def test_a_linen_network_starts_as_a_fixup_network(recipe):
    model = ResNet() if recipe else ResNet(models.FixupNorm)
    within = partial(nn.intercept_methods, scalars) if recipe else contextlib.nullcontext

    def network(params, x):
        with within():
            return model.apply({"params": params}, x)

    with within():
        (params,) = model.init(jax.random.key(0), X).values()
    assert not params["Block_0"][f"{'Batch' if recipe else 'Fixup'}Norm_1"]["multiplier"]
    params = init.fixup(params, depth=2, network=network, inputs=(X,))
    assert not network(params, X).any()
    role_map = roles.read(network, params, X)
    assert sum(leaf.role is roles.Role.MULTIPLIER for leaf in role_map.leaves) == 2


@pytest.mark.parametrize("norm", [partial(nnx.BatchNorm, use_running_average=False), nnx.LayerNorm])
def test_it_takes_the_place_of_the_norms_of_nnx(norm):
    options = {"epsilon": 1e-3, "scale_init": nnx.initializers.constant(2.0), "rngs": nnx.Rngs(0)}
    assert norm(3, **options)(X).shape == X.shape
    options |= getattr(norm, "keywords", {})
    np.testing.assert_array_equal(nnx_parts.FixupNorm(3, **options)(X), 2 * X)


def test_dtype_and_missing_parts_are_as_in_flax():
    norm = models.FixupNorm(dtype=jnp.bfloat16, use_scale=False)
    y, variables = norm.init_with_output(jax.random.key(0), X)
    assert y.dtype == jnp.bfloat16
    assert list(variables["params"]) == ["bias_scalar"]
