"""Lanczos against dense eigenvalues: of matrices, and of a small network's Hessian."""

import functools

import jax
import jax.flatten_util
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
    rng = np.random.default_rng(1)

    def draw(*shape):
        return np.float32(0.5 * rng.standard_normal(shape))

    params = {"stem": draw(3, 3, 1, 3), "branch": draw(3, 3, 3, 3), "head": draw(3, 4)}
    labels = np.eye(4, dtype=np.float32)[rng.integers(0, 4, 8)]
    images = draw(8, 4, 4, 1)

    def loss(params):
        x = conv(images, params["stem"])
        x = x + conv(jax.nn.softplus(x), params["branch"])
        logits = x.mean(axis=(1, 2)) @ params["head"]
        return -(jax.nn.log_softmax(logits) * labels).sum(axis=1).mean()

    return loss, params


def test_the_largest_curvature_is_that_of_the_dense_hessian():
    function, params = network()
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    matrix = quick_jit(jax.jacrev(jax.grad(lambda at: function(unravel(at)))))(flat)
    find = functools.partial(curvature.largest_curvature, function, key=jax.random.key(0), steps=40)
    found = quick_jit(find)(params)
    expected = float(np.linalg.eigvalsh(matrix)[-1])
    assert float(found.value) == pytest.approx(expected, rel=10 * FLOAT32)
    assert float(found.residual) <= 1e-2 * expected
