"""What a dead unit is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import rescale_calibration as calibration
from nf_resnets import models


@pytest.fixture(scope="module")
def network():
    model = models.CifarResNet(depth=8, scheme="rescalenet", stem_channels=4)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 8, 8, 1)))["params"]
    random = np.random.default_rng(0)

    def drawn(path, leaf):
        if path[-1].key == "kernel":
            return jnp.float32(random.normal(scale=0.3, size=leaf.shape))
        return jnp.full(leaf.shape, float(path[-1].key == "multiplier"))

    return model, jax.tree_util.tree_map_with_path(drawn, shapes)


def test_units_whose_relu_is_never_on_are_dead(network):
    """Three blocks of 4, 8 and 16 channels behind a stem of 4: 32 units in front of a ReLU."""
    model, params = network
    images = jax.random.uniform(jax.random.key(1), (8, 8, 8, 1))
    gradients_of = jax.jit(jax.grad(lambda p: jnp.sum(model.apply({"params": p}, images))))
    # Of every unit of a layer at most a few are dead at the start.
    before, total = calibration.dead_units(gradients_of(params))
    assert total == 32 and before < 8
    # The input of that layer is shifted by 1, and one unit's weights are negative.
    params = jax.tree.map(lambda leaf: leaf, params)
    block = params["stage_2"]["first"]
    block["conv_1"]["kernel"] = block["conv_1"]["kernel"].at[..., 3].set(-1.0)
    block["bias_1a"]["vector"] += 1
    gradients = gradients_of(params)
    found = np.abs(gradients["stage_2"]["first"]["conv_1"]["kernel"]).max(axis=(0, 1, 2))
    assert found[3] == 0
    assert calibration.dead_units(gradients)[0] >= 1
