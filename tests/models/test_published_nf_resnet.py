"""What timm's NF-ResNet has that the paper's has not; tests/trained compares it with PyTorch's."""

import functools

import jax
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models import ResNet
from nf_resnets.models.layers import Conv
from tests.models.trees import images

GAMMA = 1.7139588594436646


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
    model = ResNet(26, "nf_resnet_timm", version=2, stem_channels=4, num_classes=10)
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
