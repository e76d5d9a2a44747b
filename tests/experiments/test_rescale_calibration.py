"""What a dead unit is."""

import jax
import numpy as np

from experiments import rescale_calibration as calibration
from nf_resnets import models
from tests.models.trees import random_variables


def test_units_whose_relu_is_never_on_are_dead():
    """Three blocks of 4, 8 and 16 channels behind a stem of 4: 32 units in front of a ReLU."""
    model = models.CifarResNet(depth=8, scheme="rescalenet", stem_channels=4)
    params = random_variables(model, 0, (8, 8, 1))["params"]
    images = jax.random.uniform(jax.random.key(1), (8, 8, 8, 1))
    gradients_of = jax.jit(jax.grad(lambda p: model.apply({"params": p}, images).sum()))
    # Of every unit of a layer at most a few are dead at the start.
    before, total = calibration.dead_units(gradients_of(params))
    assert total == 32 and before < 8
    # The input of that layer is shifted by 1, and one unit's weights are negative.
    block = params["stage_2"]["first"]
    block["conv_1"]["kernel"][..., 3] = -1.0
    block["bias_1a"]["vector"] += 1
    gradients = gradients_of(params)
    found = np.abs(gradients["stage_2"]["first"]["conv_1"]["kernel"]).max(axis=(0, 1, 2))
    assert found[3] == 0
    assert calibration.dead_units(gradients)[0] >= 1
