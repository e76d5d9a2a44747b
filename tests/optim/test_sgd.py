"""SGD against its closed form, in both groups."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets.init import Rules
from nf_resnets.optim import sgd
from nf_resnets.roles import Group, Role

PARAMS = {
    "head": {"kernel": np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)},
    "bias_head": np.float32(0.7),
}
# A few float32 operations on numbers of order 1, six steps.
CLOSE = {"rtol": 2e-6, "atol": 1e-6}


def gradients(steps):
    rng = np.random.default_rng(0)
    return [
        jax.tree.map(lambda p: rng.standard_normal(p.shape).astype(np.float32), PARAMS)
        for _ in range(steps)
    ]


def walk(optimizer, params, steps):
    """The parameters after each step."""
    state, path = optimizer.init(params), []
    for grads in gradients(steps):
        updates, state = optimizer.update(grads, state, params)
        params = optax.apply_updates(params, updates)
        path.append(params)
    return path


def closed_form(theta, grads, rates, momentum, decay):
    """theta after each step, in float64."""
    v, path = 0.0, []
    for grad, rate in zip(grads, rates, strict=True):
        v = momentum * v + grad + decay * theta
        theta = theta - rate * v
        path.append(theta)
    return path


def assert_follows(path, rates, momentum, decay, factor):
    grads = gradients(len(path))
    for get, group in ((lambda t: t["head"]["kernel"], 1), (lambda t: t["bias_head"], factor)):
        expected = closed_form(
            np.float64(get(PARAMS)),
            [np.float64(get(grad)) for grad in grads],
            [group * rate for rate in rates],
            momentum,
            decay,
        )
        for found, value in zip(path, expected, strict=True):
            np.testing.assert_allclose(get(found), value, **CLOSE)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize(("decay", "factor"), [(0.0, 0.1), (0.2, 0.1), (0.2, 1.0), (0.2, 0.0)])
def test_closed_form(momentum, decay, factor):
    optimizer = sgd(0.3, momentum=momentum, weight_decay=decay, scalar_factor=factor)
    assert_follows(walk(optimizer, PARAMS, 6), [0.3] * 6, momentum, decay, factor)


def test_nesterovs_momentum_looks_one_step_ahead():
    path = walk(sgd(0.3, momentum=0.9, nesterov=True, weight_decay=0.2), PARAMS, 6)
    theta, v = np.float64(PARAMS["head"]["kernel"]), 0.0
    for found, grad in zip(path, gradients(6), strict=True):
        g = np.float64(grad["head"]["kernel"]) + 0.2 * theta
        v = 0.9 * v + g
        theta = theta - 0.3 * (g + 0.9 * v)
        np.testing.assert_allclose(found["head"]["kernel"], theta, **CLOSE)


def test_a_constant_gradient_and_no_decay():
    # theta_t = theta_0 - eta g sum_{s <= t} (1 - mu^s) / (1 - mu).
    params = {"head": {"kernel": jnp.zeros((1, 1))}}
    optimizer, state = sgd(0.1, momentum=0.9), None
    state, theta = optimizer.init(params), params
    for _ in range(20):
        updates, state = optimizer.update({"head": {"kernel": jnp.ones((1, 1))}}, state, theta)
        theta = optax.apply_updates(theta, updates)
    expected = -0.1 * sum((1 - 0.9**s) / 0.1 for s in range(1, 21))
    np.testing.assert_allclose(theta["head"]["kernel"], expected, rtol=2e-6)


def test_by_default_scalars_take_a_tenth():
    updates, _ = sgd(1.0).update(PARAMS, sgd(1.0).init(PARAMS), PARAMS)
    np.testing.assert_allclose(updates["bias_head"], -0.1 * PARAMS["bias_head"], rtol=1e-6)
    np.testing.assert_allclose(updates["head"]["kernel"], -PARAMS["head"]["kernel"], rtol=1e-6)


def test_a_schedule_holds_for_both_groups_at_every_step():
    schedule = optax.piecewise_constant_schedule(0.4, {2: 0.5, 4: 0.1})
    rates = [0.4, 0.4, 0.2, 0.2, 0.02, 0.02]
    path = walk(sgd(schedule, weight_decay=0.1), PARAMS, 6)
    assert_follows(path, rates, 0.9, 0.1, 0.1)


def test_traced_numbers_give_what_constants_give():
    @jax.jit
    def traced(rate, momentum, decay, factor):
        return walk(
            sgd(rate, momentum=momentum, weight_decay=decay, scalar_factor=factor), PARAMS, 3
        )

    assert_follows(traced(0.3, 0.8, 0.2, 0.5), [0.3] * 3, 0.8, 0.2, 0.5)
    rates = jnp.array([0.3, 0.1])
    several = jax.vmap(traced, (0, None, None, None))(rates, 0.8, 0.2, 0.5)
    for run, rate in enumerate((0.3, 0.1)):
        path = jax.tree.map(lambda leaf, run=run: leaf[run], several)
        assert_follows(path, [rate] * 3, 0.8, 0.2, 0.5)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_velocity_keeps_the_dtype_of_the_weights(dtype):
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), PARAMS)
    optimizer = sgd(jnp.float32(0.3), momentum=jnp.float32(0.9), weight_decay=jnp.float32(0.1))
    state = optimizer.init(params)
    updates, new_state = optimizer.update(params, state, params)
    assert jax.tree.map(lambda leaf: leaf.dtype, new_state) == jax.tree.map(
        lambda leaf: leaf.dtype, state
    )
    new = optax.apply_updates(params, updates)
    assert new["head"]["kernel"].dtype == dtype
    # 1 - 0.3 (1 + 0.1) within the 8 (or 11) bits of the dtype.
    np.testing.assert_allclose(float(new["head"]["kernel"][0, 0]), 0.67, rtol=2**-8)


NUMBERS = ("learning_rate", "momentum", "weight_decay", "scalar_factor")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("of", [float, np.float32, jnp.float32], ids=["float", "numpy", "jax"])
@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), -float("inf")])
def test_numbers_out_of_range_are_refused(name, of, value):
    message = rf"^{name}={value:g} found; expected 0 <= {name} < "
    with pytest.raises(ValueError, match=message):
        sgd(**({"learning_rate": 0.1} | {name: of(value)}))


def test_limits():
    with pytest.raises(ValueError, match=r"^momentum=1 found; expected 0 <= momentum < 1\.$"):
        sgd(0.1, momentum=1.0)
    sgd(0, momentum=0, weight_decay=0, scalar_factor=0)
    sgd(1e9, momentum=0.999, weight_decay=1e9, scalar_factor=1e9)
    for name in NUMBERS:
        for value in ([0.1, 0.2], "0.1", None)[: 2 if name == "scalar_factor" else 3]:
            with pytest.raises(TypeError, match=rf"^{name}=.* found; expected a number\.$"):
                sgd(**({"learning_rate": 0.1} | {name: value}))


def test_rules_name_the_scalars_of_a_users_tree():
    params = {"dense": jnp.ones((2, 2)), "shift": jnp.ones(()), "gain": jnp.ones(())}
    rules = Rules(head="^dense$", scalar_bias="^shift$", keep="^gain$")
    optimizer = sgd(1.0, rules=rules)
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    found = {name: float(np.ravel(update)[0]) for name, update in updates.items()}
    assert found == pytest.approx({"dense": -1.0, "shift": -0.1, "gain": -1.0})
    with pytest.raises(ValueError, match="no rule says what the weight 'dense'"):
        sgd(1.0).init(params)


def test_exempt_leaves_do_not_decay():
    rate, decay = 0.1, 0.3
    path = walk(sgd(rate, weight_decay=decay, undecayed=Group((Role.SCALAR_BIAS,))), PARAMS, 4)
    grads = gradients(4)
    for get, factor, own in (
        (lambda t: t["head"]["kernel"], 1, decay),
        (lambda t: t["bias_head"], 0.1, 0.0),
    ):
        expected = closed_form(
            np.float64(get(PARAMS)),
            [np.float64(get(grad)) for grad in grads],
            [factor * rate] * 4,
            0.9,
            own,
        )
        for found, value in zip(path, expected, strict=True):
            np.testing.assert_allclose(get(found), value, **CLOSE)
