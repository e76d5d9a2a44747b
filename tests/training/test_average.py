"""The moving average of the parameters: against optax, in a step, and in checkpoints."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training

DECAY = 0.8
HYPER = {"learning_rate": 0.5, "weight_decay": 0.0}
BATCH = {
    "image": np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32),
    "label": np.arange(8, dtype=np.int32) % 2,
}


def network(params, batch_stats, images, keys):
    return images @ params["head"]["kernel"], batch_stats


def optimizer(hyper):
    return optax.sgd(hyper["learning_rate"])


def state_of(decay=DECAY):
    params = {"head": {"kernel": jnp.ones((3, 2))}}
    return training.create_state(params, optimizer, HYPER, average_decay=decay)


@functools.cache
def step():
    loss = training.image_loss(network)
    return jax.jit(functools.partial(training.replica_step, loss=loss, optimizer=optimizer))


@pytest.mark.parametrize("decay", [0.0, DECAY, 0.9999])
def test_it_is_the_average_of_optax_without_the_start(decay):
    state, average = state_of(decay), optax.ema(decay, debias=True)
    average_state = average.init(state.params)
    np.testing.assert_array_equal(state.tested_params["head"]["kernel"], 1.0)  # before a step
    for _ in range(5):
        state, _ = step()(state, BATCH)
        expected, average_state = average.update(state.params, average_state)
    found = state.tested_params["head"]["kernel"]
    # optax divides sums by 1 - decay^t, of which float32 keeps 6e-8 / 1e-4 of itself.
    np.testing.assert_allclose(
        found, expected["head"]["kernel"], rtol=1e-3 if decay > 0.9 else 1e-6
    )
    assert (np.abs(found - state.params["head"]["kernel"]).max() > 0.01) == (decay > 0)
    assert state.tested_params is state.average.params
