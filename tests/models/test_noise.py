"""Dropout: of channels in the branches, of features before the head."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import analysis
from nf_resnets.models import CifarResNet, ResNet, WideResNet
from nf_resnets.models.blocks import dropped
from nf_resnets.models.layers import dropout
from tests.models.trees import quick_jit, random_variables

IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((6, 8, 8, 1)), "float32")
KEYS = jax.random.split(jax.random.key(1), 6)


def applied(model, params, keys=KEYS):
    run = quick_jit(functools.partial(model.apply, train=True))
    return np.asarray(run({"params": params}, IMAGES, keys=keys))


def test_dropout_in_two_dimensions_takes_whole_channels():
    keys = jax.random.split(jax.random.key(0), 400)
    found = np.asarray(dropout(jnp.ones((400, 3, 5, 20)), keys, 0.3, whole_channels=True))
    channels = found.reshape(400, 15, 20)
    np.testing.assert_array_equal(channels.min(axis=1), channels.max(axis=1))
    assert set(np.unique(found)) == {0, np.float32(1 / np.float32(0.7))}
    # 8,000 channels: a standard error of 0.0051; four of them.
    assert np.mean(found == 0) == pytest.approx(0.3, abs=0.021)


@pytest.mark.parametrize("rate", [-0.5, 1.0])
def test_a_dropout_that_is_no_rate_is_refused(rate):
    """At -0.5 the features would be divided by 1.5."""
    with pytest.raises(ValueError, match=f"^dropout={rate} found"):
        dropout(jnp.ones((6, 3)), KEYS, rate)


def test_the_layers_of_a_branch_draw_from_folds_of_their_own():
    """Fold j of a branch's key says what its j-th layer drops."""
    keys = jax.random.split(jax.random.key(4), 32)
    for layer in (1, 2):
        left = np.asarray(dropped(jnp.ones((32, 1, 1, 4)), keys, 0.5, layer))[:, 0, 0] > 0
        folds = [jax.random.fold_in(key, layer) for key in keys]
        kept = [jax.random.bernoulli(key, 0.5, (1, 1, 4))[0, 0] for key in folds]
        np.testing.assert_array_equal(left, kept)


@pytest.mark.every(4)
@pytest.mark.parametrize(
    "model",
    [
        WideResNet(depth=16, scheme="rezero", stem_channels=4),
        CifarResNet(depth=14, scheme="rezero", stem_channels=4),
        ResNet(depth=26, scheme="rezero", stem_channels=2, num_classes=10),
        ResNet(depth=26, scheme="rezero", version=2, stem_channels=2, num_classes=10),
    ],
    ids=["wide", "cifar", "resnet", "resnet_v2"],
)
def test_in_the_test_there_is_no_noise_and_in_training_there_is(model):
    noisy = model.clone(conv_dropout=0.3)
    params = random_variables(noisy, 0, (8, 8, 1), branch=1.0)["params"]
    programs = [jax.make_jaxpr(one.apply)({"params": params}, IMAGES) for one in (model, noisy)]
    assert str(programs[0]) == str(programs[1])
    found, plain = applied(noisy, params), applied(model, params)
    assert np.all(np.isfinite(found)) and np.abs(found - plain).max() > 1e-3


def test_channels_are_dropped_in_the_last_two_stages_only():
    """RescaleNet's recipe: of three stages, what the keys change begins with the second."""
    model = CifarResNet(depth=8, scheme="plain", stem_channels=2, conv_dropout=0.5)
    params = random_variables(model, 0, (8, 8, 1), branch=1.0)["params"]

    @quick_jit
    def branches(key):
        def network(params, images):
            keys = jax.random.split(key, len(images))
            return model.apply({"params": params}, images, train=True, keys=keys)

        return [block.branch for block in analysis.observe(network, params, IMAGES)[1]]

    one, other = branches(jax.random.key(0)), branches(jax.random.key(1))
    same = [bool((a == b).all()) for a, b in zip(one, other, strict=True)]
    assert same == [True, False, False]


@pytest.mark.parametrize("network", [CifarResNet(depth=8), WideResNet(depth=10)], ids=str)
def test_dropout_stands_before_the_head_in_training_only(network):
    model = network.clone(scheme="regularized_skipinit", stem_channels=2, dropout=0.5)
    params = random_variables(model, 0, (8, 8, 1), branch=1.0)["params"]
    with pytest.raises(ValueError, match="keys=None found; a network with dropout"):
        applied(model, params, keys=None)
    # With the head as the identity on what it is given, logits are features.
    features = params["head"]["kernel"].shape[0]
    params["head"] = {"kernel": jnp.eye(features, 10), "bias": jnp.zeros(10)}
    plain = np.asarray(quick_jit(model.apply)({"params": params}, IMAGES))
    found = applied(model, params)
    zero = found == 0
    assert 0 < zero[plain != 0].mean() < 1
    np.testing.assert_allclose(found[~zero], 2 * plain[~zero], rtol=1e-6)
    np.testing.assert_array_equal(plain, applied(model.clone(scheme="skipinit"), params))
