"""The loss of smoothed and of mixed labels against NumPy in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.training import cross_entropy
from nf_resnets.training.loss import correct

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
    log_p = (
        z
        - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True))
        - z.max(1, keepdims=True)
    )
    return -(targets * log_p).sum(axis=1)


def one_hot(labels):
    return np.eye(7)[labels]


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_smoothed_labels(epsilon):
    found = cross_entropy(LOGITS, {"label": LABELS}, label_smoothing=epsilon)
    targets = (1 - epsilon) * one_hot(LABELS) + epsilon / 7
    np.testing.assert_allclose(found, numpy_loss(targets), **FLOAT32)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_mixed_labels(epsilon):
    batch = {"label": LABELS, "other_label": OTHERS, "fraction": SHARE}
    found = jax.jit(lambda batch: cross_entropy(LOGITS, batch, label_smoothing=epsilon))(batch)
    fraction = np.float64(SHARE)[:, None]
    targets = fraction * one_hot(LABELS) + (1 - fraction) * one_hot(OTHERS)
    targets = (1 - epsilon) * targets + epsilon / 7
    np.testing.assert_allclose(found, numpy_loss(targets), **FLOAT32)


@pytest.mark.parametrize("name", ["label", "other_label"])
@pytest.mark.parametrize(
    "labels",
    [LABELS[:1], LABELS[:, None], LABELS[:5], one_hot(LABELS), LABELS.astype(float), LABELS > 2],
    ids=["one", "a column", "fewer", "one-hot", "floats", "bools"],
)
def test_labels_that_are_not_one_integer_each_are_refused(name, labels):
    """One label alone was broadcast to all examples."""
    batch = {"label": LABELS, "other_label": OTHERS, "fraction": SHARE, name: labels}
    with pytest.raises(ValueError, match=rf"^{name} of shape .* found; expected .* shape \[12\]"):
        cross_entropy(LOGITS, batch)


def test_predictions_from_nan_are_wrong_whatever_the_label():
    logits = jnp.array([[jnp.nan] * 3, [0.0, jnp.nan, 5.0], [0.0, 1.0, -jnp.inf]])
    assert correct(logits, jnp.array([0, 1, 1])).tolist() == [0.0, 0.0, 1.0]
