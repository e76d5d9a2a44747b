"""Lanczos against dense eigenvalues: of matrices, and of a small network's Hessian."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.analysis import curvature
from nf_resnets.models.conv import conv
from tests.models.trees import quick_jit

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


def test_few_steps_find_an_eigenvalue_that_stands_apart():
    eigenvalues = np.append(np.linspace(-1, 1, 199), 5.0)
    found = run(symmetric(eigenvalues), 20)
    assert float(found.value) == pytest.approx(5.0, rel=FLOAT32)
    assert float(found.residual) < 1e-3


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


def loss(params, images, labels):
    """A residual network with one convolution of ours, which has a custom backward pass."""
    x = conv(images, params["stem"])
    x = x + conv(jax.nn.softplus(x), params["branch"])
    logits = x.mean(axis=(1, 2)) @ params["head"]
    return -(jax.nn.log_softmax(logits) * labels).sum(axis=1).mean()


def network():
    rng = np.random.default_rng(1)

    def draw(*shape):
        return np.float32(0.5 * rng.standard_normal(shape))

    params = {"stem": draw(3, 3, 1, 3), "branch": draw(3, 3, 3, 3), "head": draw(3, 4)}
    labels = np.eye(4, dtype=np.float32)[rng.integers(0, 4, 8)]
    images = draw(8, 4, 4, 1)
    return lambda p: loss(p, images, labels), params


def dense_hessian(function, params):
    """Row by row, by finite differences of the gradient in float64 arithmetic of NumPy."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    step = 1e-2
    gradients = quick_jit(
        lambda rows: jax.lax.map(
            lambda v: jax.flatten_util.ravel_pytree(jax.grad(function)(unravel(v)))[0], rows
        )
    )
    flat, moves = np.asarray(flat), step * np.eye(flat.size, dtype=np.float32)
    moved = np.concatenate([flat + moves, flat - moves])
    above, below = np.split(np.asarray(gradients(moved), np.float64), 2)
    matrix = (above - below) / (2 * step)
    return (matrix + matrix.T) / 2


def test_the_largest_curvature_is_that_of_the_dense_hessian():
    function, params = network()
    flat, unravel = jax.flatten_util.ravel_pytree(params)

    @quick_jit
    def measured(params, key):
        products = jax.lax.map(
            lambda v: jax.flatten_util.ravel_pytree(
                curvature.hessian_product(function, params, unravel(v))
            )[0],
            jnp.eye(flat.size),
        )
        return products, curvature.largest_curvature(function, params, key=key, steps=40)

    by_products, found = jax.device_get(measured(params, jax.random.key(0)))
    # Central differences at a step of 1e-2: 1e-4 of the third derivatives, which are of order 1.
    by_differences = dense_hessian(function, params)
    scale = np.abs(by_differences).max()
    np.testing.assert_allclose(by_products, by_differences, atol=1e-2 * scale)
    np.testing.assert_allclose(by_products, by_products.T, atol=FLOAT32 * scale)

    expected = float(np.linalg.eigvalsh(by_products)[-1])
    assert float(found.value) == pytest.approx(expected, rel=10 * FLOAT32)
    assert float(found.residual) <= 1e-2 * expected
