"""The parts that the largest stable rates are made of."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import theory_stable_rate
from nf_resnets import data, models, optim, schemes

POINT = theory_stable_rate.BASE | {"lowest_log2_rate": -3, "highest_log2_rate": 3}


def trains_up_to(rate, *, lost=math.inf):
    """Losses that end at 0.1 up to a rate, at 9 beyond it, and nowhere from ``lost`` on."""

    def losses_at(at):
        return np.full(45, np.nan if at >= lost else 0.1 if at <= rate else 9.0)

    return losses_at


@pytest.mark.parametrize(
    ("border", "found"),
    [(3.0, 2 * 2**0.5), (2.1, 2.0), (0.13, 0.125), (100.0, 64 * 2**0.5)],  # the last: 2**3 trains
)
def test_the_border_is_found_to_half_an_octave(border, found):
    ends, largest = theory_stable_rate.border(trains_up_to(border, lost=300), POINT, 2.0)
    assert largest == pytest.approx(found, rel=1e-6)  # the rate is a float32 in between
    assert ends[0.125] == pytest.approx(0.1)
    assert set(ends) >= {2.0**power for power in range(-3, 4)}


def test_no_rate_trains():
    ends, largest = theory_stable_rate.border(trains_up_to(0.01, lost=2.0), POINT, 2.0)
    assert largest is None
    assert ends[1.0] == 9.0 and ends[2.0] == math.inf


@pytest.mark.slow
def test_training_is_that_of_sgd_with_slower_scalars():
    point, dataset = POINT | {"batch_size": 16, "steps": 10}, data.load("digits")
    draw, losses, _ = theory_stable_rate.make_network("fixup", 10, 4, 10, 0.9, 4)
    params = draw(jax.random.key(0))
    batches = theory_stable_rate.batches_of(point, dataset, 0)
    start, scales = theory_stable_rate.coordinates(params, 0.1)
    found = losses(start, scales, batches, jnp.float32(0.1))

    model = models.WideResNet(depth=10, scheme="fixup", stem_channels=4)
    images = (dataset.train.images - np.float32(dataset.mean)) / np.float32(dataset.std)

    @jax.jit
    def gradient(params, batch):
        def loss(at):
            logits = model.apply({"params": at}, jnp.asarray(images)[batch])
            labels = jnp.asarray(dataset.train.labels)[batch]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.value_and_grad(loss)(params)

    scheme = dataclasses.replace(schemes.get("fixup"), scalars=theory_stable_rate.SCALARS)
    optimizer = optim.sgd(0.1, momentum=0.9, scheme=scheme)
    state, losses = optimizer.init(params), []
    for batch in batches:
        loss, gradients = gradient(params, batch)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    # float32 over ten steps; with scalars at a hundredth instead, the last differ by 1.5e-3.
    np.testing.assert_allclose(found, losses, rtol=1e-4)


def test_batches_cover_each_epoch_once():
    dataset = data.load("digits")
    batches = np.asarray(theory_stable_rate.batches_of(POINT, dataset, 0))
    assert batches.shape == (45, 64)
    first, second = batches[:22].ravel(), batches[22:44].ravel()
    assert len(set(first)) == len(first) == 22 * 64 and len(set(second)) == len(second)
    assert (first != second).any()
