"""Damped biases against the published layer's arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import optim


def test_the_published_bias_in_numpy():
    """RescaleNet's bias under SGD with momentum: 8 steps in which its effect is a hundredth.

    The published layer adds ``0.01 b - mean`` in these steps and ``b - mean`` after them; ``b``
    gets a hundredth of the gradient. The gradients are given, as they would be if they did not
    depend on ``b``, which is as good as true while it is small.
    """
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((12, 5))
    b, velocity = np.zeros(5), np.zeros(5)
    for step, gradient in enumerate(gradients):
        velocity = 0.9 * velocity + gradient * (0.01 if step < 8 else 1)
        b -= 0.1 * velocity

    tree = {"bias_head": {"vector": jnp.zeros(5)}, "head": {"kernel": jnp.ones((5, 2))}}
    optimizer = optax.chain(optim.damped(), optim.sgd(0.1, scheme="rescalenet_published"))
    state = optimizer.init(tree)
    for gradient in gradients:
        grads = {
            "bias_head": {"vector": jnp.float32(gradient)},
            "head": {"kernel": jnp.ones((5, 2))},
        }
        updates, state = jax.jit(optimizer.update)(grads, state, tree)
        tree = optax.apply_updates(tree, updates)
    # Twelve steps of float32.
    np.testing.assert_allclose(tree["bias_head"]["vector"], b, rtol=3e-6, atol=1e-6)
    # The kernel's gradient was never damped.
    velocity = sum((1 - 0.9**n) / 0.1 for n in range(1, 13))
    np.testing.assert_allclose(tree["head"]["kernel"], 1 - 0.1 * velocity, rtol=3e-6)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"factor": -1}, "factor=-1"),
        ({"factor": float("nan")}, "factor=nan"),
        ({"steps": -1}, "steps=-1"),
        ({"steps": 2.5}, "steps=2.5"),
    ],
)
def test_what_is_out_of_range(options, named):
    with pytest.raises(ValueError, match=f"{named} found; expected"):
        optim.damped(**options)
