"""Probabilities are the softmax of what the network computes of normalized pixels."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import trained
from nf_resnets.trained import TrainedError
from nf_resnets.trained.predict import classify, predict
from tests.models.trees import quick_jit
from tests.trained.networks import network, takes


def pixels(count, channels=1):
    return np.random.default_rng(0).uniform(0, 16, (count, 8, 8, channels)).astype(np.float32)


@pytest.mark.parametrize("scheme", ["batchnorm", pytest.param("fixup", marks=pytest.mark.slow)])
def test_probabilities_are_the_softmax_of_the_logits_in_any_batches(scheme):
    made = network(scheme)
    images = pixels(7)
    apply = quick_jit(made.model.apply)
    logits = np.asarray(apply(made.variables, (images - 4.9) / 6.0), np.float64)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    # Float32 rounding of a ten-layer network, compiled as one program and not.
    whole = predict(made, images)
    np.testing.assert_allclose(whole, expected, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(whole.sum(axis=1), 1, atol=1e-6)
    # 7 images by 3 are filled up to 9; rounding alone may differ.
    np.testing.assert_allclose(predict(made, images, batch_size=3), whole, rtol=1e-4, atol=1e-7)
    assert predict(made, images[:0]).shape == (0, 10)


def test_outputs_of_networks_of_other_libraries():
    """Probabilities are float32; outputs that are no classes are refused, and not cut up."""

    def linear(params, batch_stats, images, keys):
        return images.reshape(len(images), -1).astype(jnp.bfloat16) @ params, batch_stats

    kernel = np.random.default_rng(1).standard_normal((64, 20)).astype(jnp.bfloat16)
    made = trained.Trained(linear, {"params": kernel[:, :10]}, takes())
    np.testing.assert_allclose(predict(made, pixels(3)).sum(axis=1), 1, atol=1e-6)
    with pytest.raises(ValueError, match="cannot reshape array of size 60"):
        predict(dataclasses.replace(made, variables={"params": kernel}), pixels(3))


def test_images_of_another_shape_are_refused():
    made = network()
    with pytest.raises(TrainedError, match=r"shape \(5, 8, 8, 3\) found; expected \[B, 8, 8, 1\]"):
        predict(made, pixels(5, 3))
    with pytest.raises(
        TrainedError, match=r"pixels up to .* found, which look scaled; expected raw"
    ):
        classify(made, pixels(1) / 255)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_network_whose_outputs_are_nan_is_refused(value):
    made = network("fixup")
    made.variables["params"]["head"]["bias"][3] = value
    with pytest.raises(TrainedError, match="the network's outputs are NaN; expected"):
        predict(made, pixels(1))
