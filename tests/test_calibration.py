"""What a batch sets as it passes: channel means to 0, the variances of layers to 1."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.calibration import CENTERING, UNIT_VARIANCE, centered, unit_variance

# Sums of some hundred float32 numbers of order 1: about 2**-24 * 100**0.5 each.
TOLERANCE = 2e-6


class Chain(nn.Module):
    """Bias, product with a weight, ReLU, twice: the second bias depends on the first."""

    @nn.compact
    def __call__(self, x):
        for index in (1, 2):
            x = centered(self, f"bias_{index}", x)
            weight = self.param(f"weight_{index}", nn.initializers.normal(0.7), (5, 5))
            x = nn.relu(unit_variance(self, f"weight_{index}", x @ weight))
        return x


def _chain():
    x = jnp.asarray(3 + np.random.default_rng(0).standard_normal((2, 4, 4, 5)), "float32")
    params = Chain().init(jax.random.key(0), x)["params"]
    params["bias_2"] = jnp.full(5, 7.0)  # what was there before does not matter
    return params, x


def test_one_pass_centres_every_layer_on_those_before_it():
    params, x = _chain()
    y, found = Chain().apply({"params": params}, x, mutable=[CENTERING])
    assert set(found[CENTERING]) == {"bias_1", "bias_1_count", "bias_2", "bias_2_count"}
    # The pass computed with what it found.
    np.testing.assert_array_equal(Chain().apply({"params": params | found[CENTERING]}, x), y)
    h = np.float64(x)
    np.testing.assert_allclose(found[CENTERING]["bias_1"], -h.mean((0, 1, 2)), atol=TOLERANCE * 3)
    h = np.maximum((h - h.mean((0, 1, 2))) @ np.float64(params["weight_1"]), 0)
    np.testing.assert_allclose(found[CENTERING]["bias_2"], -h.mean((0, 1, 2)), atol=TOLERANCE * 3)


def test_one_pass_gives_every_layer_variance_1():
    params, x = _chain()
    y, found = Chain().apply({"params": params}, x, mutable=[UNIT_VARIANCE])
    factors = found[UNIT_VARIANCE]
    scaled = params | {name: params[name] * factors[name] for name in factors}
    np.testing.assert_allclose(Chain().apply({"params": scaled}, x), y, rtol=1e-5, atol=1e-5)
    h = np.float64(x)
    for index in (1, 2):
        h = (h + np.float64(params[f"bias_{index}"])) @ np.float64(scaled[f"weight_{index}"])
        assert h.var() == pytest.approx(1, abs=1e-5)
        h = np.maximum(h, 0)


def test_a_layer_without_variance_stays_as_it_is():
    params, x = _chain()
    params["weight_1"] = jnp.zeros((5, 5))
    _, found = Chain().apply({"params": params}, x, mutable=[UNIT_VARIANCE])
    assert float(found[UNIT_VARIANCE]["weight_1"]) == 1
