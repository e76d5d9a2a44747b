"""Lanczos against dense eigenvalues, and the largest stable rate of quadratics."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.untrained import OneStage, digits_batch, forward
from nf_resnets.analysis import curvature
from tests.models.trees import quick_jit, random_variables

# Sums of a few hundred float32 products: 1e-6 each, relative to the largest eigenvalue.
FLOAT32 = 1e-5


def symmetric(eigenvalues, seed=0):
    size = len(eigenvalues)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))
    return np.float32((basis * np.asarray(eigenvalues)) @ basis.T)


@functools.partial(quick_jit, static_argnums=1)
def run(matrix, steps):
    return curvature.lanczos(
        lambda v: matrix @ v, matrix.shape[0], key=jax.random.key(3), steps=steps
    )


def test_the_residual_bounds_the_error_when_it_has_not_converged():
    eigenvalues = np.linspace(0, 1, 300)
    found = run(symmetric(eigenvalues), 6)
    error = np.abs(eigenvalues - float(found.value)).min()
    assert error <= float(found.residual) + FLOAT32
    assert 1e-3 < float(found.residual) < 1  # it says that it has not converged


@pytest.mark.parametrize(
    "eigenvalues",
    [
        [2.0] * 4,  # one step spans an invariant space
        [-3.0, -3.0, -1.0, -1.0],  # two do; all are negative, so a made-up 0 would win
        [0.0] * 4,
        [-9.0, 1.0, 2.0, 5.0],
    ],
)
def test_an_early_end_makes_up_no_eigenvalue(eigenvalues):
    found = run(symmetric(eigenvalues), len(eigenvalues))
    tolerance = FLOAT32 * max(map(abs, eigenvalues))
    assert float(found.value) == pytest.approx(max(eigenvalues), abs=tolerance)


def network():
    """A residual network with convolutions of ours, whose backward pass is their own."""
    images, labels = digits_batch(8)
    model = OneStage(1, 2, "fixup")

    def loss(params):
        logits = forward(model)(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return loss, random_variables(model, 1, image_shape=(8, 8, 1), branch=1.0)["params"]


def test_the_largest_curvature_is_that_of_the_dense_hessian():
    function, params = network()
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    matrix = quick_jit(jax.jacrev(jax.grad(lambda at: function(unravel(at)))))(flat)
    find = functools.partial(curvature.largest_curvature, function, key=jax.random.key(0), steps=40)
    found = quick_jit(find)(params)
    expected = float(np.linalg.eigvalsh(matrix)[-1])
    assert float(found.value) == pytest.approx(expected, rel=10 * FLOAT32)
    assert float(found.residual) <= 1e-2 * expected


CURVATURES = jnp.array([0.1, 1.0, 3.0, 8.0])


def quadratic(params, step):
    return 0.5 * (CURVATURES * params**2).sum()


def test_another_scale_of_the_parameters_has_another_rate():
    """``L(w / c)`` from ``c w_0`` at ``c^2 eta`` descends as ``L`` from ``w_0`` at ``eta``."""
    start, c = jnp.array([1.0, -2.0, 0.5, 1.5]), 4.0  # a power of 2: nothing is rounded otherwise

    def losses(loss, at, rate):
        return curvature.descend(loss, at, jnp.float32(rate), steps=12, momentum=0.7)

    def rescaled(params, step):
        return quadratic(params / c, step)

    expected = losses(quadratic, start, 0.05)
    np.testing.assert_array_equal(losses(rescaled, c * start, c**2 * 0.05), expected)
    assert (losses(rescaled, c * start, 0.05) != expected).any()


def test_the_descent_is_heavy_ball():
    rate, momentum = 0.05, 0.7
    at, velocity, expected = np.array([1.0, -2.0, 0.5, 1.5]), np.zeros(4), []
    curvatures = np.asarray(CURVATURES, np.float64)
    for _ in range(12):
        expected.append(0.5 * (curvatures * at**2).sum())
        velocity = momentum * velocity + curvatures * at
        at = at - rate * velocity
    losses = curvature.descend(
        quadratic, jnp.array([1.0, -2.0, 0.5, 1.5]), jnp.float32(rate), steps=11, momentum=momentum
    )
    np.testing.assert_allclose(losses, expected, rtol=1e-5)  # float32 over a dozen steps


@pytest.mark.parametrize(
    ("losses", "stable"),
    [
        ([1.0, 9, 9, 9, 9, 9, 0.5, 0.5], True),  # no more than the last quarter counts
        ([1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.8, 0.5], False),  # and all of it does: its mean is 1.15
        ([1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 1.2, 0.5], True),  # its mean, and not its largest
        ([1.0, 0.5, 1.1], False),  # of fewer than four losses, the last
    ],
)
def test_the_last_quarter_decides(losses, stable):
    def run(rate):
        # Below 0.2 all is well, above 0.8 nothing is; in between it is as the case has it.
        fine, bad = [0.5] * len(losses), [2.0] * len(losses)
        return np.asarray(fine if rate < 0.2 else bad if rate > 0.8 else losses, np.float32)

    result = curvature.largest_stable_rate(run, 0.1, 1.0, resolution=0.05, limit=1.0)
    assert (result.stable > 0.7) == stable
    assert (result.stable < 0.3) == (not stable)


def test_losses_that_overflow_are_unstable():
    run = jax.jit(lambda rate: jnp.array([1.0, jnp.where(rate > 0.3, jnp.nan, 0.5)]))
    result = curvature.largest_stable_rate(run, 0.1, 1.0, resolution=1e-3)
    assert result.stable <= 0.3 <= result.unstable
    run = jax.jit(lambda rate: jnp.array([1.0, jnp.where(rate > 0.3, jnp.inf, 0.5), 0.1, 0.1]))
    assert curvature.largest_stable_rate(run, 0.1, 1.0).stable <= 0.3


@pytest.mark.parametrize(
    ("bounds", "message"), [((0.5, 1.0), "low=0.5 found"), ((0.01, 0.1), "high=0.1 found")]
)
def test_bounds_that_hold_no_border_are_refused(bounds, message):
    run = jax.jit(lambda rate: curvature.descend(quadratic, jnp.ones(4), rate, steps=50))
    with pytest.raises(ValueError, match=message):
        curvature.largest_stable_rate(run, *bounds)
