"""Schedules against their closed forms, at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.optim import sgd
from nf_resnets.optim.schedules import halving


def test_the_published_rate_at_every_epoch():
    # Written from the sentence: 200 epochs, constant for 100, then halved every 10.
    schedule = halving(0.5, num_steps=200)
    rates = np.asarray(jax.vmap(schedule)(jnp.arange(200)))
    expected = [0.5] * 100 + [0.5 * 0.5 ** (1 + part) for part in range(10) for _ in range(10)]
    np.testing.assert_array_equal(rates, np.float32(expected))  # powers of two are exact


@pytest.mark.parametrize("steps", [1, 2, 7, 44, 78_000])
@pytest.mark.parametrize("halvings", [1, 3, 10])
def test_closed_form_also_where_the_parts_are_uneven(steps, halvings):
    at = np.unique(np.linspace(0, steps - 1, 500).astype(int))
    # From exact fractions: h parts of T / 2h steps each, in units of 1 / 2h.
    expected = [
        0 if 2 * t < steps else 1 + (2 * halvings * t - halvings * steps) // steps for t in at
    ]
    found = jax.vmap(halving(1.0, steps, halvings=halvings))(jnp.asarray(at))
    np.testing.assert_array_equal(-np.log2(np.asarray(found)), expected)
    assert max(expected) <= halvings


def test_after_the_end_the_rate_stays():
    schedule = halving(1.0, 20, halvings=4)
    assert float(schedule(19)) == float(schedule(20)) == float(schedule(10_000)) == 2**-4


def test_a_traced_rate_and_step_drive_sgd():
    params = {"head": {"kernel": jnp.zeros((1, 1))}}

    @jax.jit
    def path(rate):
        optimizer = sgd(halving(rate, 4, halvings=2), momentum=0.0)
        state, values = optimizer.init(params), []
        for _ in range(4):
            updates, state = optimizer.update({"head": {"kernel": jnp.ones((1, 1))}}, state, params)
            values.append(updates["head"]["kernel"][0, 0])
        return jnp.stack(values)

    np.testing.assert_array_equal(path(0.5), [-0.5, -0.5, -0.25, -0.125])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_steps": 0}, "num_steps=0 found; expected at least 1"),
        ({"num_steps": 10, "halvings": 0}, "halvings=0 found; expected at least 1"),
        ({"num_steps": 2**30}, "below 2"),
    ],
)
def test_bad_numbers_are_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        halving(0.1, **arguments)
