"""Dropout before the head: what it drops, when, and that devices do not matter."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis, schemes
from nf_resnets.models import CifarResNet, WideResNet
from tests.models.trees import quick_jit
from tests.training import small

PLAIN = schemes.get("skipinit")
DROPPING = dataclasses.replace(
    PLAIN, name="dropping", anatomy=dataclasses.replace(PLAIN.anatomy, dropout=True)
)


@pytest.mark.parametrize("network", [CifarResNet(depth=8), WideResNet(depth=10)], ids=str)
def test_it_stands_before_the_head_in_training_only(network):
    model = network.clone(scheme=DROPPING, stem_channels=2, dropout=0.5)
    images = jnp.asarray(np.random.default_rng(0).standard_normal((3, 8, 8, 1)), "float32")
    params = small.he_variables(model)["params"]
    # With the head as the identity on what it is given, logits are features.
    features = params["head"]["kernel"].shape[0]
    params["head"] = {"kernel": jnp.eye(features, 10), "bias": jnp.zeros(10)}
    plain = np.asarray(quick_jit(model.apply)({"params": params}, images))
    keys = jax.random.split(jax.random.key(1), 3)
    train = quick_jit(functools.partial(model.apply, train=True))
    dropped = np.asarray(train({"params": params}, images, keys=keys))
    zero = dropped == 0
    assert 0 < zero[plain != 0].mean() < 1
    np.testing.assert_allclose(dropped[~zero], 2 * plain[~zero], rtol=1e-6)
    without = quick_jit(functools.partial(model.clone(scheme=PLAIN).apply, train=True))
    np.testing.assert_array_equal(plain, without({"params": params}, images))


def test_channels_are_dropped_in_the_last_two_stages_only():
    """RescaleNet's recipe: of three stages, what the keys change begins with the second."""
    model = CifarResNet(depth=8, scheme="plain", stem_channels=2, conv_dropout=0.5)
    variables = small.he_variables(model)
    images = jnp.asarray(np.random.default_rng(0).standard_normal((4, 8, 8, 1)), "float32")

    @quick_jit
    def branches(key):
        keys = jax.random.split(key, 4)

        def network(params, images):
            return model.apply({**variables, "params": params}, images, train=True, keys=keys)

        return [block.branch for block in analysis.observe(network, variables["params"], images)[1]]

    one, other = branches(jax.random.key(0)), branches(jax.random.key(1))
    same = [bool((a == b).all()) for a, b in zip(one, other, strict=True)]
    assert same == [True, False, False]
