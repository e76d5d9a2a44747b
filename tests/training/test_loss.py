"""The loss of smoothed and of mixed labels against NumPy in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.training import cross_entropy
from nf_resnets.training.loss import correct, image_loss

RNG = np.random.default_rng(0)
LOGITS = (3 * RNG.standard_normal((12, 7))).astype(np.float32)
LABELS = RNG.integers(0, 7, 12).astype(np.int32)
OTHERS = RNG.integers(0, 7, 12).astype(np.int32)
SHARE = RNG.uniform(size=12).astype(np.float32)
# Logits of order 10 in float32: their logarithms of sums are off by 2^-21 or so.
FLOAT32 = {"rtol": 2e-6, "atol": 2e-6}


def numpy_loss(targets):
    """The cross-entropy to any distribution of the classes."""
    z = np.float64(LOGITS)
    return np.log(np.exp(z).sum(1)) - (targets * z).sum(1)


def one_hot(labels):
    return np.eye(7)[labels]


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("mixed", [False, True])
def test_mixed_and_smoothed_labels(mixed, epsilon):
    batch, targets = {"label": LABELS}, one_hot(LABELS)
    if mixed:
        batch |= {"other_label": OTHERS, "fraction": SHARE}
        fraction = np.float64(SHARE)[:, None]
        targets = fraction * targets + (1 - fraction) * one_hot(OTHERS)
    loss = image_loss(lambda params, *_: (params, {}), label_smoothing=epsilon)
    found, (metrics, _) = loss(LOGITS, {}, {"image": None, **batch})
    right = (targets * one_hot(LOGITS.argmax(1))).sum(1).mean()
    np.testing.assert_allclose(metrics["accuracy"], right, **FLOAT32)
    expected = numpy_loss((1 - epsilon) * targets + epsilon / 7)
    np.testing.assert_allclose(found, expected.mean(), **FLOAT32)


@pytest.mark.parametrize("name", ["label", "other_label"])
@pytest.mark.parametrize(
    "labels", [LABELS[:1], LABELS[:, None], one_hot(LABELS), LABELS.astype(float)], ids=np.shape
)
def test_labels_that_are_not_one_integer_each_are_refused(name, labels):
    """One label alone was broadcast to all examples."""
    batch = {"label": LABELS, "other_label": OTHERS, "fraction": SHARE, name: labels}
    with pytest.raises(ValueError, match=rf"^{name} of shape"):
        cross_entropy(LOGITS, batch)


def test_predictions_from_nan_are_wrong_whatever_the_label():
    logits = jnp.array([[jnp.nan] * 3, [0.0, jnp.nan, 5.0], [0.0, 1.0, -jnp.inf]])
    assert correct(logits, jnp.array([0, 1, 1])).tolist() == [0.0, 0.0, 1.0]
