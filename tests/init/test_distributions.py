"""What the standard initialisations draw, against closed forms.

Tolerances. The sample variance of ``n`` draws of N(0, s^2) has standard deviation
``s^2 sqrt(2 / n)``, so their standard deviation deviates by about ``s / sqrt(2n)``; for the
uniform distribution (fourth moment ``9/5 s^4``) by ``s / sqrt(5n)``, which is less. All tests
allow five times ``1 / sqrt(2n)``, a chance of 6e-7 in each; the keys are fixed, so the result of
a test is always the same.
"""

import dataclasses
import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, random
from nf_resnets.init import Rules

HWIO = Rules(stem="^w", head="^head")
OIHW = Rules(stem="^w", head="^head", layout="OIHW")
KEY = jax.random.key(11)


def _drawn(initialise, shape, rules=HWIO, name="w", key=KEY, **options):
    """One weight of ``shape`` beside the others that the rules name."""
    tree = {"w": jnp.zeros((2, 2)), "head": jnp.zeros((2, 2)), name: jnp.zeros(shape)}
    return np.asarray(initialise(tree, key, rules=rules, **options)[name])


def _assert_std(values, std):
    assert abs(np.sqrt(np.mean(np.square(values, dtype="float64"))) / std - 1) < 5 / math.sqrt(
        2 * values.size
    )
    assert abs(values.mean()) < 5 * std / math.sqrt(values.size)


@pytest.mark.parametrize(("mode", "fan"), [("fan_in", 9 * 24), ("fan_out", 9 * 80)])
def test_he(mode, fan):
    values = _drawn(init.he, (3, 3, 24, 80), mode=mode)
    _assert_std(values, (2 / fan) ** 0.5)
    # Three quarters of N(0, s^2) beyond 0.3186 s: it is the normal distribution, not another.
    fraction = np.mean(np.abs(values) > 0.318639 * (2 / fan) ** 0.5)
    assert abs(fraction - 0.75) < 5 * math.sqrt(0.75 * 0.25 / values.size)


@pytest.mark.parametrize(("axes", "shape"), [("HWIN", (7, 7, 1, 96)), ("NIHW", (96, 1, 7, 7))])
@pytest.mark.parametrize(
    ("initialise", "variance"),
    [(init.he, 2 / 49), (partial(init.he, mode="fan_out"), 2 / 49), (init.xavier, 1 / 49),
     (init.orthogonal, 1 / 49)],
    ids=["fan_in", "fan_out", "xavier", "orthogonal"],
)  # fmt: skip
def test_a_depthwise_kernel_is_drawn_channel_by_channel(initialise, variance, axes, shape):
    """One channel gives one channel: both fans are the taps, and either keeps the variance."""
    rules = Rules(stem="^w", head="^head", branch=r"^(block)/(dw)", axes={"dw": axes})
    values = _drawn(initialise, shape, rules, "block/dw")
    assert values.shape == shape
    _assert_std(values, variance**0.5)
    # A convolution of one channel that is in no branch is that of grey images.
    stem = dataclasses.replace(rules, branch=None, axes={"^w": axes.replace("N", "O")})
    _assert_std(_drawn(init.he, shape, stem, mode="fan_out"), (2 / 49 / 96) ** 0.5)


@pytest.mark.parametrize("mode", ["fan_in", "fan_out"])
def test_the_head_that_no_relu_follows(mode):
    _assert_std(_drawn(init.he, (64, 200), name="head", mode=mode), 64**-0.5)


def test_xavier():
    values = _drawn(init.xavier, (3, 3, 24, 80))
    std = (2 / (9 * 24 + 9 * 80)) ** 0.5
    _assert_std(values, std)
    limit = (6 / (9 * 24 + 9 * 80)) ** 0.5
    # Of n even draws the largest is within limit * 2 * 14 / n of the limit, but for e^-14.
    assert limit * (1 - 28 / values.size) < values.max() <= limit
    assert -limit <= values.min() < -limit * (1 - 28 / values.size)


def _orthonormal(matrix, gain=1.0):
    """Columns, or, of a wide matrix, rows; QR in float32 is exact to some n eps = 200 * 1e-7."""
    rows, columns = matrix.shape
    gram = matrix.T @ matrix if rows >= columns else matrix @ matrix.T
    np.testing.assert_allclose(gram, gain**2 * np.eye(min(rows, columns)), atol=gain**2 * 2e-5)


@pytest.mark.parametrize(
    ("shape", "rules", "gain"),
    [((3, 3, 4, 8), HWIO, 1.0), ((3, 3, 2, 40), HWIO, 2**0.5), ((9, 9), HWIO, 1.0),
     ((40, 2, 3, 3), OIHW, 1.0), ((30, 7), OIHW, 2**0.5)],
)  # fmt: skip
def test_orthogonal(shape, rules, gain):
    weight = _drawn(init.orthogonal, shape, rules, gain=gain)
    if rules is OIHW:
        weight = weight.reshape(shape[0], -1).T
    _orthonormal(weight.reshape(-1, weight.shape[-1]), gain)


def test_orthogonal_is_uniform_over_rotations():
    """The signs of QR: without them the diagonal of Q leans to one side.

    Each diagonal entry of a uniform orthogonal matrix of size n has mean 0 and variance 1/n.
    """
    stack = np.stack([_drawn(init.orthogonal, (4, 4), key=jax.random.key(s)) for s in range(100)])
    diagonal = stack[:, range(4), range(4)]
    assert abs(diagonal.mean()) < 5 * math.sqrt(0.25 / diagonal.size)
    np.testing.assert_allclose(np.square(diagonal).mean(), 0.25, atol=5 * 0.25 / math.sqrt(400 / 2))


STACKED = Rules(branch=r"^body_(\d)$", stacked="^body", head="^head")


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("initialise", "shape"),
    [(init.he, (3, 3, 8, 16)), (init.xavier, (16, 16)), (init.orthogonal, (3, 3, 8, 16)),
     (init.orthogonal, (16, 16))],
)  # fmt: skip
def test_stacked_draws_are_those_of_one_branch_and_differ(initialise, shape):
    tree = {"body_1": jnp.zeros((6, *shape)), "head": jnp.zeros((2, 2))}
    stack = np.asarray(initialise(tree, KEY, rules=STACKED)["body_1"])
    single = _drawn(initialise, shape)
    for one, two in itertools.combinations(stack, 2):
        # Not the same, nor the one a multiple of the other.
        correlation = np.corrcoef(one.ravel(), two.ravel())[0, 1]
        assert abs(correlation) < 6 / math.sqrt(one.size)
    ratio = stack.std(dtype="float64") / single.std(dtype="float64")
    assert abs(ratio - 1) < 5 * math.sqrt(1 / (2 * single.size) + 1 / (2 * stack.size))
    if initialise is init.orthogonal:
        for one in stack:
            _orthonormal(one.reshape(-1, shape[-1]))


def test_half_precision_is_the_float32_draw_rounded_once():
    whole = _drawn(init.he, (3, 3, 8, 16))
    for dtype in (jnp.bfloat16, jnp.float16):
        tree = {"w": jnp.zeros((3, 3, 8, 16), dtype), "head": jnp.zeros((2, 2))}
        half = init.he(tree, KEY, rules=HWIO)["w"]
        np.testing.assert_array_equal(half, jnp.asarray(whole).astype(dtype))


# Few and small: it is the slow compilation of these draws that nf_resnets.random avoids.
@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "float32"), ((7,), "bfloat16"), ((3, 5), "float16"), ((2, 3, 4), "float32")],
)
def test_flat_draws_are_those_of_jax(shape, dtype):
    np.testing.assert_array_equal(
        random.normal(KEY, shape, dtype), jax.random.normal(KEY, shape, dtype), strict=True
    )
    np.testing.assert_array_equal(
        random.uniform(KEY, shape, dtype, 0.3),
        jax.random.uniform(KEY, shape, dtype, minval=-0.3, maxval=0.3),
        strict=True,
    )
