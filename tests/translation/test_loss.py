"""The smoothed loss against the definition, in NumPy and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.translation import PADDING, token_losses

RNG = np.random.default_rng(0)
LOGITS = 3 * RNG.standard_normal((2, 5, 7))
TARGETS = np.array([[3, 6, 2, PADDING, PADDING], [5, 4, 1, 3, 2]])


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_the_definition(smoothing):
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    expected, likelihood = np.zeros((2, 5, 1))[..., 0], np.zeros((2, 5))
    for b, t in np.ndindex(2, 5):
        if TARGETS[b, t] != PADDING:
            q = np.full(7, smoothing / 7)
            q[TARGETS[b, t]] += 1 - smoothing
            expected[b, t] = -(q * np.log(p[b, t])).sum()
            likelihood[b, t] = -np.log(p[b, t, TARGETS[b, t]])
    found = token_losses(
        jnp.asarray(LOGITS, jnp.float32), jnp.asarray(TARGETS), label_smoothing=smoothing
    )
    # Sums of seven float32 terms of at most 10: 1e-6 or so.
    np.testing.assert_allclose(found[0], expected, atol=5e-6)
    np.testing.assert_allclose(found[1], likelihood, atol=5e-6)


def test_padding_has_no_gradient_even_where_its_logits_are_infinite():
    logits = jnp.asarray(LOGITS, jnp.float32).at[0, 3:].set(1e30)

    def total(logits):
        return token_losses(logits, jnp.asarray(TARGETS), label_smoothing=0.1)[0].sum()

    grads = jax.grad(total)(logits)
    assert not np.asarray(grads)[0, 3:].any() and np.isfinite(grads).all()
    assert np.asarray(grads)[1].any()
