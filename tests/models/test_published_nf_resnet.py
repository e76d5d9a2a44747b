"""NF-ResNet as DeepMind's code and timm's have it, against networks of ``jax.lax`` and of PyTorch.

The references are written after the published files: what differs from the paper's network is
there by the frameworks' own means (``"SAME"``, ``F.batch_norm`` of the weights, ``ceil_mode``). All
parameters are random.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models import ResNet
from nf_resnets.models.layers import Conv
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

# Of the largest logit: float32's rounding on both sides, through 26 layers; seen: 1e-6.
ROUNDING = 1e-5
GAMMA = 1.7139588594436646
ALPHA = 0.2


def model_of(scheme):
    return ResNet(26, scheme, version=2, stem_channels=4, num_classes=10)


def betas():
    """Deviations of the blocks' inputs: 2 blocks a stage, after the first of which they restart."""
    return [1.0, *[(1 + ALPHA**2) ** 0.5, (1 + 2 * ALPHA**2) ** 0.5] * 3, (1 + ALPHA**2) ** 0.5]


# --- DeepMind's --------------------------------------------------------------------------------


def published_logits(params, x):
    """After ``nfnets/nf_resnet.py`` and ``nfnets/base.py``."""

    def ws_conv(x, p, stride=1):
        weight = p["kernel"]
        mean = jnp.mean(weight, axis=(0, 1, 2), keepdims=True)
        variance = jnp.var(weight, axis=(0, 1, 2), keepdims=True)
        fan_in = np.prod(weight.shape[:-1])
        scale = jax.lax.rsqrt(jnp.maximum(variance * fan_in, 1e-4)) * p["gain"]
        weight = weight * scale - mean * scale
        dimensions = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "SAME", dimension_numbers=dimensions
        )
        return y + p["bias"]

    def act(x):
        return jax.nn.relu(x) * GAMMA

    x = ws_conv(x, params["stem"], 2)
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    of_branch = iter(betas())
    for stage in (1, 2, 3, 4):
        for index, p in enumerate(block_trees(params[f"stage_{stage}"])):
            stride = 2 if stage > 1 and index == 0 else 1
            h = act(x) * (1 / next(of_branch))
            skip = ws_conv(h, p["shortcut"], stride) if "shortcut" in p else x
            h = ws_conv(h, p["conv_1"])
            h = ws_conv(act(h), p["conv_2"], stride)
            h = ws_conv(act(h), p["conv_3"])
            x = ALPHA * p["alpha"] * h + skip
    return jnp.mean(act(x), axis=(1, 2)) @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.mark.parametrize("side", [64, pytest.param(50, marks=pytest.mark.slow)])
def test_matches_the_published_network(side):
    """With sides that are even where windows stride."""
    model = model_of("nf_resnet_published")
    params, x = random_variables(model, 0)["params"], images(1, 2, side, side, 3)
    logits = quick_jit(model.apply)({"params": params}, x)
    with jax.numpy_rank_promotion("allow"):
        expected = quick_jit(published_logits)(params, x)
    assert_close(logits, expected, ROUNDING)


# --- timm's ------------------------------------------------------------------------------------


def test_timms_standardised_kernels():
    """In NumPy, where torch is not: small weights, for which epsilon counts."""
    kernel = 0.02 * images(3, 3, 3, 4, 8).astype("f8")
    centred = kernel - kernel.mean((0, 1, 2))
    x = np.zeros((1, 3, 3, 4), "f4")
    x[0, 1, 1, 0] = 1.0  # the output is the kernel, turned around
    expected = GAMMA * 36**-0.5 * centred / np.sqrt((centred**2).mean((0, 1, 2)) + 1e-5)
    layer = Conv(8, standardized="timm", after_relu=False)  # it makes up for a ReLU everywhere
    params = layer.init(jax.random.key(0), x)["params"] | {"kernel": np.float32(kernel)}
    found = layer.apply({"params": params}, x)[0, ::-1, ::-1]
    # The deviations of float32's sums.
    np.testing.assert_allclose(found, expected[:, :, 0], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_timms_branches_start_at_zero_by_their_last_gains():
    model = model_of("nf_resnet_timm")
    x = images(0, 1, 32, 32, 3)
    params = jax.eval_shape(model.init, jax.random.key(0), x)["params"]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), params)
    scheme = schemes.get("nf_resnet_timm")
    draw = functools.partial(jax.jit, static_argnums=1)
    result = draw(scheme.init)(params, model.num_branches, key=jax.random.key(1))
    for stage in range(1, 5):
        for part in ("first", "rest"):
            block = result[f"stage_{stage}"][part]
            assert "alpha" not in block
            assert not np.any(block["conv_3"]["gain"])
            assert np.all(block["conv_1"]["gain"] == 1) and np.all(block["conv_2"]["gain"] == 1)
