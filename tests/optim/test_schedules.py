"""Schedules against their closed forms, at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.optim.schedules import cosine, halving, inverse_sqrt, step_decay, warmup


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


def path(schedule, steps):
    return np.asarray(jax.jit(jax.vmap(schedule))(jnp.asarray(steps)))


def test_step_decay_at_every_step_of_the_published_runs():
    # Written from the sentence: 200 epochs of 390 steps, a tenth at epochs 100 and 150; a fifth at
    # 60, 120 and 160 for Wide ResNets.
    for boundaries, factor in (((39_000, 58_500), 0.1), ((23_400, 46_800, 62_400), 0.2)):
        at = np.unique([*np.linspace(0, 77_999, 300).astype(int), *boundaries])
        at = np.unique([*at, *(np.array(boundaries) - 1)])
        expected = np.full(len(at), 0.1)
        for boundary in boundaries:
            expected[at >= boundary] *= factor
        # The power is rounded once, the rate once, their product once: 3 * 2^-24 at most.
        np.testing.assert_allclose(
            path(step_decay(0.1, boundaries, factor), at), expected, rtol=2e-7
        )


def test_inverse_square_root_at_every_step():
    at = np.unique([*range(20), 3_998, 3_999, 4_000, *np.linspace(0, 10**6, 300).astype(int)])
    expected = 5e-4 * np.minimum((at + 1) / 4_000, np.sqrt(4_000 / (at + 1)))
    schedule = inverse_sqrt(5e-4, warmup_steps=4_000)
    np.testing.assert_allclose(path(schedule, at), expected, rtol=3e-7)
    # The largest rate is that of the last step of the warm-up; the root of 4 is exact.
    exact = np.float32(5e-4)
    np.testing.assert_array_equal(path(schedule, [3_999, 15_999]), [exact, exact / 2])


def test_warmup_multiplies_any_schedule():
    schedule = warmup(cosine(0.4, 8), warmup_steps=4)
    at = np.arange(9)
    expected = 0.4 * (1 + np.cos(np.pi * at / 8)) / 2 * np.minimum(1, (at + 1) / 4)
    np.testing.assert_allclose(path(schedule, at), expected, rtol=0, atol=1e-7)
