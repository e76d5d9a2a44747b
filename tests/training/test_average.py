"""The moving average of the parameters is that of optax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training
from tests.training import linear


def optimizer(hyper):
    return optax.sgd(0.5)


@pytest.mark.parametrize("decay", [0.0, 0.8, 0.9999])
def test_it_is_the_average_of_optax_without_the_start(decay):
    images = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
    batch = {"image": images, "label": np.arange(8, dtype=np.int32) % 2}
    loss = training.image_loss(linear.apply)
    step = jax.jit(functools.partial(training.replica_step, loss=loss, optimizer=optimizer))
    params = {"head": {"kernel": jnp.ones((3, 2))}}
    state = training.create_state(params, optimizer, {}, average_decay=decay)
    average = optax.ema(decay, debias=True)
    average_state = average.init(state.params)
    np.testing.assert_array_equal(state.tested_params["head"]["kernel"], 1.0)  # before a step
    for _ in range(5):
        state, _ = step(state, batch)
        expected, average_state = average.update(state.params, average_state)
    found = state.tested_params["head"]["kernel"]
    # optax divides sums by 1 - decay^t, of which float32 keeps 6e-8 / 1e-4 of itself.
    rtol = 1e-3 if decay > 0.9 else 1e-6
    np.testing.assert_allclose(found, expected["head"]["kernel"], rtol=rtol)
    assert (np.abs(found - state.params["head"]["kernel"]).max() > 0.01) == (decay > 0)
