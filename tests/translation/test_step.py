"""The step: the gradient of the mean over all tokens, on one device as on eight."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import training
from nf_resnets.translation import token_loss, token_losses
from nf_resnets.translation.program import token_step
from tests.models.trees import assert_close, quick_jit
from tests.translation.small import SIZE, random_params, transformer

RNG = np.random.default_rng(0)
ROWS, WIDTH = 8, 6
RATE = 0.01  # random parameters without a norm have gradients of up to 100


def make_batch():
    """Rows of one to six tokens, and one of padding: devices have unlike numbers of tokens."""
    arrays = {name: np.zeros((ROWS, WIDTH), np.int32) for name in ("source", "inputs", "targets")}
    for row, length in enumerate((1, 6, 2, 6, 3, 1, 5, 0)):
        for array in arrays.values():
            array[row, :length] = RNG.integers(4, SIZE, length)
    return arrays


BATCH = make_batch()


def sgd(hyper):
    return optax.sgd(hyper["learning_rate"])


def state_of(model):
    params = random_params(model, 1)
    return training.create_state(params, sgd, {"learning_rate": RATE}, seed=3)


def after_steps(model, devices, steps=2):
    mesh = training.make_mesh(devices=jax.devices()[:devices])
    states = training.shard_runs(training.stack([state_of(model)]), mesh)
    step = token_step(model, sgd, mesh)
    for _ in range(steps):
        states, metrics = step(states, BATCH)
    return jax.device_get((states, metrics))


def test_one_step_is_the_gradient_of_the_mean_over_tokens():
    model = transformer()
    step = functools.partial(training.replica_step, loss=token_loss(model), optimizer=sgd)
    state, metrics = quick_jit(step)(state_of(model), BATCH)
    params = random_params(model, 1)

    def mean_loss(params):
        logits = model.apply({"params": params}, BATCH["source"], BATCH["inputs"])
        losses, _ = token_losses(logits, jnp.asarray(BATCH["targets"]), label_smoothing=0.1)
        return losses.sum() / np.count_nonzero(BATCH["targets"])

    loss, grads = quick_jit(jax.value_and_grad(mean_loss))(params)
    expected = jax.tree.map(lambda p, g: p - RATE * g, params, grads)
    # The same float32 arithmetic in another order.
    assert_close(state.params, expected, 1e-5)
    assert float(metrics["loss"]) == pytest.approx(float(loss), rel=1e-5)
    assert float(metrics["tokens"]) == 24
    assert int(state.step) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_eight_devices_do_what_one_does(dropout):
    model = transformer(dropout=dropout)
    one, eight = (after_steps(model, devices) for devices in (1, 8))
    # Sums of eight parts in another order, twice; an error of 24 / 8 in the normalization, or
    # another dropout, changes the first digit.
    assert_close(eight[0].params, one[0].params, 2e-5)
    for name in one[1]:
        np.testing.assert_allclose(eight[1][name], one[1][name], rtol=2e-5, atol=1e-6)
