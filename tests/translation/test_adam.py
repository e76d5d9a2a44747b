"""Adam against its definition, in NumPy and float64, with the slower scalars."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import optim
from nf_resnets.translation import adam

RNG = np.random.default_rng(0)
PARAMS = {
    "head": {"kernel": RNG.standard_normal((3, 2)).astype(np.float32)},
    "bias_head": np.float32(0.4),
}


def test_ten_steps_are_those_of_the_definition():
    rate, decay, eps, b1, b2 = 0.3, 0.01, 1e-3, 0.8, 0.95
    schedule = optim.inverse_sqrt(rate, warmup_steps=4)
    optimizer = adam(schedule, b1=b1, b2=b2, eps=eps, weight_decay=decay, scalar_factor=0.25)
    params = jax.tree.map(jnp.asarray, PARAMS)
    state = optimizer.init(params)
    expected = {
        "kernel": PARAMS["head"]["kernel"].astype(float),
        "bias": float(PARAMS["bias_head"]),
    }
    moments = dict.fromkeys(expected, (0.0, 0.0))
    for t in range(1, 11):
        noise = {"kernel": RNG.standard_normal((3, 2)), "bias": RNG.standard_normal()}
        grads = {
            "head": {"kernel": jnp.asarray(noise["kernel"], jnp.float32)},
            "bias_head": jnp.float32(noise["bias"]),
        }
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        for name, factor in (("kernel", 1.0), ("bias", 0.25)):
            m, v = moments[name]
            m, v = b1 * m + (1 - b1) * noise[name], b2 * v + (1 - b2) * noise[name] ** 2
            moments[name] = m, v
            step = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps) + decay * expected[name]
            expected[name] = expected[name] - factor * rate * min(t / 4, (4 / t) ** 0.5) * step
    # Ten float32 updates of at most 0.3: an error of 1e-7 each.
    np.testing.assert_allclose(params["head"]["kernel"], expected["kernel"], atol=3e-6)
    np.testing.assert_allclose(params["bias_head"], expected["bias"], atol=3e-6)


@pytest.mark.parametrize(
    "wrong", [{"b1": 1.0}, {"b2": -0.1}, {"eps": -1.0}, {"weight_decay": float("nan")}]
)
def test_numbers_out_of_range_are_refused(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=f"^{name}="):
        adam(0.1, **wrong)
