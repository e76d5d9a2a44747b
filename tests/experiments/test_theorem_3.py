"""Theorem 3: its closed form against automatic differentiation, and the update that it sums to."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.models.trees import quick_jit

WIDTH, CLASSES = 12, 5
# Products of up to ten 12 x 12 matrices in float32.
FLOAT32 = 1e-5
CASES = [(1, 1), (4, 1), (3, 2), (2, 3)]  # branches, m


class Network(NamedTuple):
    """``x_l = x_{l-1} + ReLU(W_l^(m) ... ReLU(W_l^(1) x_{l-1}))`` and ``f = W_L x_{L-1}``."""

    branches: Any
    head: Any


def network(num_branches, m, scales=None):
    """He's draw, each layer times a scale, and an input."""
    rng = np.random.default_rng(0)

    def draw(count, scale):
        drawn = scale * (2 / WIDTH) ** 0.5 * rng.standard_normal((count, WIDTH))
        return jnp.asarray(drawn, jnp.float32)

    scales = scales or [0.7] * m
    branches = [[draw(WIDTH, scale) for scale in scales] for _ in range(num_branches)]
    return Network(branches, draw(CLASSES, 1)), draw(1, 2)[0]


def network_logits(network, x, relu=jax.nn.relu):
    for branch in network.branches:
        h = x
        for weight in branch:
            h = relu(weight @ h)
        x = x + h
    return network.head @ x


def numpy_logits(network, x):
    """In float64."""
    return network_logits(network, x, lambda h: np.maximum(h, 0))


def update_terms(network, x):
    """``J_l^i = ||F^(i-)||^2 (df/dx_l)^T F^(i+) (F^(i+))^T (df/dx_l)``, equation 12.

    ``F^(i-)`` is the input of layer ``i``, and ``F^(i+)`` leads from its pre-activation to the
    branch's output. (As printed it begins with the layer's weight, without which equation 13 is.)
    """
    seen = []
    for branch in network.branches:
        h, layers = x, []
        for weight in branch:
            layers.append((weight, h, weight @ h > 0))
            h = jax.nn.relu(weight @ h)
        seen.append(layers)
        x = x + h
    head, slope, terms = (x @ x) * jnp.eye(CLASSES), network.head, []
    for layers in reversed(seen):
        through, of_branch = slope, []
        for weight, h, active in reversed(layers):
            through = through * active.reshape(1, -1)
            of_branch.append((h @ h) * through @ through.T)
            through = through @ weight
        terms.append(of_branch[::-1])
        slope = slope + through
    return Network(terms[::-1], head)


def update_terms_by_jacobian(network, x):
    """``(df/dvec W) (df/dvec W)^T``."""
    rows = jax.tree.map(lambda of: of.reshape(CLASSES, -1), jax.jacrev(network_logits)(network, x))
    return jax.tree.map(lambda of: of @ of.T, rows)


@functools.cache
def both(num_branches, m):
    drawn, x = network(num_branches, m)
    return jax.device_get(
        quick_jit(lambda *at: (update_terms(*at), update_terms_by_jacobian(*at)))(drawn, x)
    )


@pytest.mark.every(2)
@pytest.mark.parametrize(("num_branches", "m"), CASES)
def test_the_closed_form_of_equation_12_is_the_jacobians(num_branches, m):
    closed, by_jacobian = both(num_branches, m)
    assert len(jax.tree.leaves(closed)) == num_branches * m + 1
    for one, other in zip(jax.tree.leaves(closed), jax.tree.leaves(by_jacobian), strict=True):
        assert one.shape == (CLASSES, CLASSES)
        assert np.trace(one) > 0
        np.testing.assert_allclose(one, other, rtol=FLOAT32, atol=FLOAT32 * np.trace(one))


@pytest.mark.parametrize(("num_branches", "m"), CASES)
def test_every_term_is_positive_semi_definite(num_branches, m):
    for term in jax.tree.leaves(both(num_branches, m)[0]):
        matrix = np.asarray(term, np.float64)
        np.testing.assert_allclose(matrix, matrix.T, rtol=FLOAT32, atol=FLOAT32)
        assert np.linalg.eigvalsh(matrix).min() >= -FLOAT32 * np.trace(matrix)


def test_with_the_layers_own_weight_in_it_as_printed_the_form_is_another():
    # One branch of one layer: F^(1+) as printed is D W, of which J would be 2-homogeneous in W.
    drawn, x = network(1, 1)
    (weight,) = drawn.branches[0]
    active = (weight @ x > 0).astype(jnp.float32)
    through = (drawn.head * active.reshape(1, -1)) @ weight
    as_printed = (x @ x) * through @ through.T
    (term,) = both(1, 1)[1].branches[0]
    difference = abs(float(jnp.trace(as_printed) - jnp.trace(term)))
    assert difference > 0.01 * float(jnp.trace(term))


@pytest.mark.parametrize(("num_branches", "m"), CASES)
def test_the_sum_is_the_first_order_of_the_update(num_branches, m):
    drawn, x = network(num_branches, m)
    label = jnp.array(2)

    def loss(z):
        return optax.softmax_cross_entropy_with_integer_labels(z, label)

    slope, gradient = quick_jit(
        lambda n: (
            jax.grad(loss)(network_logits(n, x)),
            jax.grad(lambda at: loss(network_logits(at, x)))(n),
        )
    )(drawn)
    predicted = -np.sum(jax.tree.leaves(both(num_branches, m)[0]), axis=0) @ slope

    # By one step in float64, so small that no ReLU switches and the second order is 1e-7.
    eta = 1e-7
    wide = functools.partial(jax.tree.map, lambda leaf: np.asarray(leaf, np.float64))
    before, slope, at = wide(drawn), wide(gradient), np.asarray(x, np.float64)
    after = jax.tree.map(lambda p, g: p - eta * g, before, slope)
    change = (numpy_logits(after, at) - numpy_logits(before, at)) / eta
    np.testing.assert_allclose(predicted, change, rtol=1e-4, atol=1e-4 * np.abs(change).max())


def test_a_block_is_its_derivative_times_its_input():
    """Equation 14, which a bias breaks."""
    drawn, x = network(1, 2)

    def block(at, bias):
        h = at
        for weight in drawn.branches[0]:
            h = jax.nn.relu(weight @ h + bias)
        return at + h

    of_x = quick_jit(lambda bias: jax.jvp(lambda at: block(at, bias), (x,), (x,)))
    value, along_x = of_x(0.0)
    np.testing.assert_allclose(along_x, value, rtol=FLOAT32, atol=FLOAT32)
    value, along_x = of_x(0.5)
    assert np.abs(along_x - value).max() > 0.1


@pytest.mark.parametrize(("num_branches", "m"), CASES)
def test_the_expected_update_is_the_trace_to_within_a_root_of_the_classes(num_branches, m):
    """Of a random unit ``dl/dz``, by the root of the mean square."""
    J = np.sum(jax.tree.leaves(both(num_branches, m)[0]), axis=0, dtype=np.float64)
    directions = np.random.default_rng(0).standard_normal((20_000, CLASSES))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    expected = np.sqrt(np.mean(np.sum((directions @ J) ** 2, axis=1)))
    # 20,000 directions leave a mean uncertain by 1%.
    np.testing.assert_allclose(expected, np.linalg.norm(J) / CLASSES**0.5, rtol=0.03)
    # The ends are those of a multiple of the identity and of a matrix of rank one.
    assert 1 < expected * CLASSES / np.trace(J) < CLASSES**0.5


def test_a_relu_is_a_diagonal_matrix_also_after_a_small_step():
    """Appendix B.1's first insight: same logits, same gradient, same logits after the step."""
    drawn, x = network(3, 2)
    at = np.asarray(x, np.float64)
    weights = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), drawn)
    active: list[np.ndarray] = []
    logits = network_logits(weights, at, lambda h: active.append(np.diag(h > 0)) or active[-1] @ h)
    np.testing.assert_array_equal(logits, numpy_logits(weights, at))

    def fixed(weights):
        diagonals = iter(active)
        return network_logits(weights, at, lambda h: next(diagonals) @ h)

    def slopes(logits_of):
        return quick_jit(jax.grad(lambda weights: jnp.sum(logits_of(weights))))(drawn)

    gradient = slopes(lambda weights: network_logits(weights, x))
    for one, other in zip(*map(jax.tree.leaves, (gradient, slopes(fixed))), strict=True):
        np.testing.assert_allclose(one, other, rtol=FLOAT32, atol=FLOAT32)

    def stepped(eta):
        return jax.tree.map(lambda p, g: p - eta * np.asarray(g, np.float64), weights, gradient)

    np.testing.assert_array_equal(fixed(stepped(1e-4)), numpy_logits(stepped(1e-4), at))
    assert np.abs(fixed(stepped(1.0)) - numpy_logits(stepped(1.0), at)).max() > 0.1


def test_a_zero_layer_under_a_relu_never_moves():
    drawn, x = network(3, 2, scales=[0.5, 0])
    terms = quick_jit(update_terms_by_jacobian)(drawn, x)
    for inner, last in terms.branches:
        assert float(jnp.trace(inner)) == 0
        # At a pre-activation of exactly 0 the ReLU's slope is 0, by the paper's choice: with the
        # ReLU after its last layer, this form of branch would never leave 0.
        assert float(jnp.trace(last)) == 0
