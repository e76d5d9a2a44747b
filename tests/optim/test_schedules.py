"""Schedules against their closed forms, at every step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.optim.schedules import halving, inverse_sqrt


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


def test_an_inverse_root_without_warmup_is_refused():
    """Its rate would be 0 at every step."""
    with pytest.raises(ValueError, match="warmup_steps=0 found; expected 1 or more"):
        inverse_sqrt(0.1, 0)
