"""The recursions against what is written in closed form, and against simulations of their own."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from nf_resnets.analysis import closed_form as cf

L = 12
K = np.arange(1, L + 1)


def he(depth):
    return cf.propagate(np.ones(depth))


def batch_norm(depth, transitions=()):
    convolved = [k in transitions for k in range(1, depth + 1)]
    return cf.propagate(np.ones(depth), random_skips=convolved, normalized=True)


def rescale(depth):
    beta_squared = 1 / (np.arange(1, depth + 1) + depth)
    return cf.propagate(beta_squared, 1 - beta_squared)


def shares_of_last(form):
    """What the input and every branch contribute to the last sum."""
    kept = np.append(np.cumprod((form.skip / form.sum)[::-1])[::-1], 1.0)
    return float(kept[0]), form.share * kept[1:]


@pytest.mark.parametrize(
    ("form", "sums", "shares"),
    [
        (he(L), 2.0**K, 0.5),
        (cf.propagate(np.full(L, 1 / L)), (1 + 1 / L) ** K, 1 / (L + 1)),
        (batch_norm(L), 1 + K, 1 / (K + 1)),
        (cf.propagate(np.full(L, 0.5), np.full(L, 0.5)), 1.0, 0.5),
        (cf.propagate(np.zeros(L)), 1.0, 0.0),
        (rescale(L), 1.0, 1 / (K + L)),
    ],
)
def test_the_named_forms_are_the_papers(form, sums, shares):
    # float64 sums of 12 terms
    np.testing.assert_allclose(form.sum, np.broadcast_to(sums, L), rtol=1e-12)
    np.testing.assert_allclose(form.share, np.broadcast_to(shares, L), rtol=1e-12)
    np.testing.assert_allclose(form.skip + form.branch, form.sum, rtol=1e-12)
    np.testing.assert_allclose(form.input[1:], form.sum[:-1], rtol=1e-12)


def test_branches_of_what_does_not_train_at_1000_layers_contribute_a_half():
    """One BatchNorm before the softmax, BatchNorm in blocks times a, BatchNorm after the sum."""
    ones = np.ones(50)
    np.testing.assert_allclose(he(50).share, 0.5)
    after_sum = cf.propagate(ones, normalized=True, normalized_sum=True)
    np.testing.assert_allclose(after_sum.share, 0.5)
    # Var x_k = a^2 (Var x_{k-1} + 1): from the first blocks on the branch has 1 - a^2 of the sum.
    for squared in (1 / 2, 1 / 4, 1 / 16):
        block = cf.propagate(squared * ones, squared * ones, normalized=True)
        np.testing.assert_allclose(block.share[20:], 1 - squared, rtol=1e-4)
    assert batch_norm(50).share[-1] < 0.02


def test_the_input_of_rescalenet_keeps_a_half_and_every_branch_1_over_2L():
    for depth in (1, 5, 33):
        first, branches = shares_of_last(rescale(depth))
        assert first == pytest.approx(0.5, rel=1e-12)
        np.testing.assert_allclose(branches, 1 / (2 * depth), rtol=1e-12)
    # Counting the blocks from L - 1, as the authors' code does, gives something else.
    beta = 1 / (K + L - 1)
    first, _ = shares_of_last(cf.propagate(beta, 1 - beta))
    assert abs(first - 0.5) > 0.01


def test_a_uniform_coefficient_alone_lets_the_variance_grow():
    """RescaleNet's ``L**-0.5`` on He's branches: variance ``1/L`` in place of ``1/(k + L)``."""
    ones = np.ones(100)
    uniform = cf.propagate(ones / 100, rescale(100).skip)
    # d ln v / dt = 1 - 1 / (1 + t) from v(0) = 1 to t = 1, of which the blocks are 100 steps.
    assert uniform.sum[-1] == pytest.approx(np.e / 2, rel=0.01)
    np.testing.assert_allclose(rescale(100).sum, 1, rtol=1e-12)


def test_a_stage_begins_anew_with_batch_norm_and_goes_on_with_he():
    assert batch_norm(6, transitions=[4]).sum.tolist() == [2, 3, 4, 2, 3, 4]
    he = cf.propagate(np.ones(3), strides=[1, 2, 1], random_skips=[False, True, False])
    assert he.sum.tolist() == [2, 4, 8]


def test_centring_takes_1_over_pi_from_every_layers_input():
    centered = cf.propagate([1.0, 1.0], centered=True)
    left = (1 - 1 / np.pi) ** 2
    np.testing.assert_allclose(centered.sum, [1 + left, (1 + left) ** 2])


@pytest.mark.parametrize("batch", [2, 8, 128])
def test_the_fourth_moment_behind_batch_norm_nears_a_gaussians_with_the_batch(batch):
    """Of Gaussians BatchNorm makes coordinates on a sphere: ``E z**4 = 3 (B - 1) / (B + 1)``."""
    inputs = np.random.default_rng(0).standard_normal((batch, 2**18 // batch))
    norm = nn.BatchNorm(use_running_average=False, epsilon=0.0, use_fast_variance=False)
    outputs = norm.init_with_output(jax.random.key(0), inputs, mutable=True)[0]
    fourth = np.mean(np.asarray(outputs, np.float64) ** 4, axis=0)  # independent, one a channel
    error = np.std(fourth) / fourth.size**0.5
    # Five standard errors; two numbers become -1 and 1, but for the rounding of float32.
    assert abs(np.mean(fourth) - 3 * (batch - 1) / (batch + 1)) < 5 * error + 1e-3


def errors_of_squares(width, form, *, normalized):
    """By how many standard errors ``x_k**2`` is above the form, after dense branches of He's."""
    rng, draws, batch = np.random.default_rng(width), 100_000, 3 if normalized else 1
    x = rng.standard_normal((draws, width, batch))

    def layer(h):
        if normalized:
            h = h - h.mean(axis=-1, keepdims=True)
            h = h / np.sqrt((h**2).mean(axis=-1, keepdims=True))
        weight = rng.standard_normal((draws, width, width)) * (2 / width) ** 0.5
        return weight @ np.maximum(h, 0)

    found = []
    for expected in form.sum:
        x = x + layer(layer(x))
        squares = (x**2).mean(axis=(1, 2))
        found.append((squares.mean() - expected) / (squares.std() / draws**0.5))
    return np.array(found)


@pytest.mark.parametrize("width", [1, 2, 5])
def test_with_batch_norm_var_is_the_closed_form_at_any_width(width):
    """A layer with symmetric weights gives every ReLU but a branch's first a symmetric input."""
    assert np.abs(errors_of_squares(width, batch_norm(3), normalized=True)).max() < 4
    wrong = cf.propagate(1.03 * np.ones(3), normalized=True)
    assert np.abs(errors_of_squares(width, wrong, normalized=True)).max() > 4


@pytest.mark.parametrize("width", [4, 8])
def test_at_small_width_var_more_than_doubles_after_the_first_block(width):
    """A sum is skewed: the branch is large where its input is positive. The form has no skew."""
    first, _, third = errors_of_squares(width, he(3), normalized=False)
    assert abs(first) < 4 < third


def test_padding_is_that_of_a_convolution_of_ones():
    # One He layer on ones, with the mean over the 3x3 window; by hand for 2 x 3 positions.
    form = cf.propagate([1.0], first=np.ones((2, 3)), kernels=(3,))
    assert form.branch[0] == pytest.approx(np.mean([4, 6, 4, 4, 6, 4]) / 9)
    form = cf.propagate([1.0], first=np.ones((9, 9)), strides=[2], kernels=(3,))
    assert form.branch[0] == pytest.approx((4 / 9 * 4 + 6 / 9 * 12 + 9) / 25)


NOWHERE = np.zeros(L)


def simulated(
    b, a, *, new_channels=NOWHERE, random_skips=NOWHERE, centered=False, normalized=False
):
    """The Markov chain of a unit, by 400,000 of its paths."""
    rng, count = np.random.default_rng(0), 400_000
    x = np.maximum(rng.normal(size=count), 0) * 2**0.5
    seconds = []
    for b_k, a_k, new, random in zip(b, a, new_channels, random_skips, strict=True):
        second = np.mean(x**2)
        seen = x.var() * cf.CENTERED_RELU if centered else 1.0 if normalized else second
        skip = np.sqrt(a_k) * x * (rng.random(count) >= new)
        if random:
            skip = np.sqrt(a_k * second) * rng.normal(size=count)
        z = skip + np.sqrt(b_k * seen) * rng.normal(size=count)
        seconds.append(second)
        x = np.maximum(z, 0)
    return np.array(seconds)


RESCALE, AT_5 = 1 / (K + L), K == 5
CASES = {
    "he": (np.full(L, 2.0), np.ones(L), {}),
    "alpha": (np.full(L, 2 / L), np.ones(L), {}),
    "rescale": (2 * RESCALE, 1 - RESCALE, {"centered": True}),
    "projection": (2 * RESCALE, 1 - RESCALE, {"random_skips": AT_5}),
    "channels": (np.full(L, 2 / L), np.ones(L), {"new_channels": 0.5 * AT_5}),
    "batch_norm": (np.ones(L), np.ones(L), {"normalized": True}),
}


@pytest.mark.every(2)
@pytest.mark.parametrize("case", CASES)
def test_the_recursion_with_a_relu_after_the_sum_is_the_chain_simulated(case):
    b, a, options = CASES[case]
    simulation = simulated(b, a, **options)
    form = cf.propagate_rectified(b, a, **options)
    # Of 400,000 paths the second moment of a rectified Gaussian, of relative variance 5, is known
    # to 0.35%, and every step adds to its error; over 4 steps three of these errors.
    np.testing.assert_allclose(form.input, simulation, rtol=3 * 0.0035 * L**0.5)
    # With the ReLU the moments are not those without it.
    plain = form.sum[0] * np.cumprod(np.append(1, (form.sum / form.input)[1:]))
    assert abs(form.sum[-1] / plain[-1] - 1) > 0.05 or case in ("batch_norm", "rescale")
