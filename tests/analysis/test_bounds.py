"""Theorems 1 and 2 on random networks and real digits: the inequality, and what makes it hold.

30 draws of a network for each of eight settings (two architectures, four initialisations), 240 in
all, each on its own batch of eight digits. The identity ``<dl/du, u> = l - H`` is the sharper
check: the inequality alone would hold for a lower bound that is too small.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from experiments.untrained import digits_batch, forward
from nf_resnets import init, models, roles
from nf_resnets.analysis import bounds, random_head
from tests.models.trees import filled_with, quick_jit
from tests.trees import by_path, replaced

DRAWS, BATCH = 30, 8

# Float32 through some fifteen layers of at most a few hundred products: 1e-7 each, growing like the
# square root of their number. It is relative to ||dl/du|| ||u||, in which <dl/du, u> is a sum. The
# loss's own gradient p - y is off by a float32 rounding of 1, which counts times the logits.
RELATIVE, OF_LOGITS = 1e-5, 1e-6

MODELS = {
    "wide": models.WideResNet(depth=10, stem_channels=4, scheme="fixup"),
    "cifar": models.CifarResNet(depth=8, stem_channels=4, scheme="fixup"),
}
QUICK = [("wide", "fixup")]
ON_DRAWS = pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(kind, name, marks=[] if (kind, name) in QUICK else pytest.mark.slow)
        for kind in MODELS
        for name in ("he", "xavier", "lsuv", "fixup")
    ],
)


def undrawn(model):
    """Parameters for images of 8x8 digits: multipliers 1, all else 0."""
    params = filled_with(0.0, model, (8, 8, 1))
    return replaced(
        params, {p: leaf + 1 for p, leaf in by_path(params).items() if p.endswith("multiplier")}
    )


def initialised(kind, name, params, key, images):
    if name == "he":
        return init.he(params, key)
    if name == "xavier":
        return init.xavier(params, key)
    if name == "lsuv":
        start = init.orthogonal(params, key)
        return init.lsuv(start, network=forward(MODELS[kind]), inputs=(images,))
    return random_head(init.fixup(params, 3, key=key), jax.random.fold_in(key, 1))


@functools.cache
def drawn_params(kind):
    """One network of He's."""
    return quick_jit(init.he)(undrawn(MODELS[kind]), jax.random.key(0))


@functools.cache
def both_bounds(kind):
    """Both theorems' bounds, and the logits, of parameters, images and labels; compiled."""
    network = forward(MODELS[kind])

    def both(*args):
        of_blocks = bounds.block_bounds(network, *args)
        return of_blocks, bounds.parameter_bounds(network, *args), network(*args[:2])

    return quick_jit(both)


@functools.cache
def drawn(kind, name):
    """Both theorems' bounds for every draw, the logits, and the labels."""
    images, labels = digits_batch(DRAWS * BATCH)
    batches = images.reshape(DRAWS, BATCH, 8, 8, 1), labels.reshape(DRAWS, BATCH)
    keys = jax.random.split(jax.random.key(7), DRAWS)
    draw = quick_jit(functools.partial(initialised, kind, name, undrawn(MODELS[kind])))
    found = [
        both_bounds(kind)(draw(key, images), images, labels)
        for key, images, labels in zip(keys, *batches, strict=True)
    ]
    stacked = jax.tree.map(lambda *each: np.stack(each), *jax.device_get(found))
    return stacked, np.asarray(batches[1])


@ON_DRAWS
def test_theorem_1_holds_at_every_block_of_every_draw(kind, name):
    (bound, _, logits), _ = drawn(kind, name)
    assert bound.gradient_norm.shape == (DRAWS, 3, BATCH)
    size = np.abs(logits).max(axis=-1)[:, None, :]
    slack = RELATIVE * bound.gradient_norm * bound.norm + OF_LOGITS * size
    assert (bound.norm > 0).all() and (bound.gradient_norm > 0).all()
    assert (bound.lower_bound <= bound.gradient_norm + slack / bound.norm).all()
    # It is not held by zeros: for many examples the loss exceeds the entropy.
    assert (bound.lower_bound > 0.05 * bound.gradient_norm).mean() > 0.2


@ON_DRAWS
def test_theorem_2_holds_for_every_set_of_every_draw(kind, name):
    (_, of_sets, logits), _ = drawn(kind, name)
    assert len(of_sets) == (6 if kind == "wide" else 2)
    size = np.abs(logits).max(axis=(1, 2))
    for where, bound in of_sets.items():
        slack = RELATIVE * bound.gradient_norm * bound.norm + OF_LOGITS * size
        assert (bound.lower_bound <= bound.gradient_norm + slack / bound.norm).all(), where


def loss_and_entropy(logits, labels):
    """By their definitions in float64, independently of the library."""
    z = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    loss = -np.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    return loss, -(np.exp(log_p) * log_p).sum(axis=-1)


def identity_error(bound, excess, size):
    """How far ``<dl/du, u>`` is from ``l - H``, in units of what float32 allows."""
    allowed = RELATIVE * bound.gradient_norm * bound.norm + OF_LOGITS * size
    return (np.abs(bound.directional - excess) / allowed).max()


@ON_DRAWS
def test_the_directional_derivative_is_the_loss_less_the_entropy(kind, name):
    (of_blocks, of_sets, logits), labels = drawn(kind, name)
    loss, entropy = loss_and_entropy(logits, labels)
    excess = loss - entropy
    sizes = np.abs(logits).max(axis=-1)
    size, of_batch = sizes[:, None, :], sizes.max(axis=-1)
    assert identity_error(of_blocks, excess[:, None, :], size) < 1
    product = of_blocks._replace(directional=of_blocks.lower_bound * of_blocks.norm)
    assert identity_error(product, excess[:, None, :], size) < 1
    for where, bound in of_sets.items():
        assert identity_error(bound, excess.mean(axis=-1), of_batch) < 1, where
    # With the sign turned, or the entropy left out, it does not hold.
    assert identity_error(of_blocks, -excess[:, None, :], size) > 1e3
    assert identity_error(of_blocks, loss[:, None, :], size) > 1e3
    for where, bound in of_sets.items():
        assert identity_error(bound, -excess.mean(axis=-1), of_batch) > 1e3, where


@pytest.mark.parametrize("path", ["head/bias", "bias_relu", "stage_2/first/bias_3"])
def test_a_bias_breaks_the_identity(path):
    images, labels = digits_batch(BATCH)
    params = drawn_params("wide")
    shape = by_path(params)[path].shape
    bias = jnp.linspace(0.5, 1.0, math.prod(shape)).reshape(shape)
    params = replaced(params, {path: bias})
    with pytest.raises(ValueError, match="is a bias that is not 0"):
        bounds.block_bounds(forward(MODELS["wide"]), params, images, labels)
    # Compiled, the values cannot be looked at; the numbers tell.
    of_blocks, of_sets, logits = both_bounds("wide")(params, images, labels)
    size = np.abs(logits).max(axis=-1).reshape(1, -1)
    assert identity_error(of_blocks, of_blocks.lower_bound * of_blocks.norm, size) > 10
    stem = of_sets["stem/kernel"]
    assert identity_error(stem, stem.lower_bound * stem.norm, size.max()) > 10


def test_a_network_that_normalizes_is_refused():
    def network(params, x):
        for up, down in params:
            h = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True))
            x = x + jax.nn.relu(h @ up) @ down
        return x

    blocks = [(jnp.ones((4, 5)), jnp.ones((5, 4)))] * 2
    x, y = jnp.ones((2, 4)), jnp.array([0, 1])
    role_map = roles.read(network, blocks, x)
    with pytest.raises(ValueError, match="positively homogeneous, without normalization"):
        bounds.block_bounds(network, blocks, x, y, rules=role_map)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_the_excess_loss_is_exact_for_small_and_large_logits(scale):
    rng = np.random.default_rng(0)
    logits = (scale * rng.standard_normal((50, 10))).astype(np.float32)
    labels = rng.integers(0, 10, 50)
    loss, entropy = loss_and_entropy(logits, labels)
    found = bounds.excess_loss(jnp.asarray(logits), jnp.asarray(labels))
    # A sum of ten float32 products of numbers up to the logits' range, about 6 scale.
    np.testing.assert_allclose(found, loss - entropy, rtol=1e-5, atol=3e-6 * scale)


def test_in_the_maximum_norm_theorem_1_is_false():
    """ "Any valid norm": of z = W x with four equal columns, at x = (1, 1, 1, 1)."""
    weight, x, label = np.outer([3.0, -1.0, 0.5], np.ones(4)), np.ones(4), 1
    logits = weight @ x
    p = np.exp(logits) / np.exp(logits).sum()
    gradient = (p - np.eye(3)[label]) @ weight
    excess = float(bounds.excess_loss(jnp.asarray(logits)[None], jnp.array([label]))[0])
    assert excess > 1
    # Gradient and input are parallel: in L2 equality holds, in the maximum norm a fourth is left.
    of_l2 = np.linalg.norm(gradient) * np.linalg.norm(x)
    assert of_l2 == pytest.approx(excess, rel=1e-5)  # float32
    assert np.abs(gradient).max() * np.abs(x).max() == pytest.approx(excess / 4, rel=1e-5)


@pytest.mark.parametrize("scale", [1.0, 10.0])
def test_equation_4_holds_on_the_average_over_heads(scale):
    images, labels = digits_batch(BATCH)
    params = drawn_params("wide")
    # Which scales all logits.
    params = replaced(params, {"stem/kernel": scale * params["stem"]["kernel"]})

    def one(key):
        logits = MODELS["wide"].apply({"params": random_head(params, key)}, images)
        return bounds.excess_loss(logits, labels).mean() - logits.max(axis=-1).mean()

    many = quick_jit(lambda key: jax.lax.map(one, jax.random.split(key, 2000)))
    margin = np.asarray(many(jax.random.key(11))) + np.log(10)
    # Its mean is positive by more than four standard errors of 2,000 draws.
    assert margin.mean() > 4 * margin.std() / len(margin) ** 0.5
    # Without the expectation it does not hold: some heads happen to fit the labels.
    assert (margin < 0).any() or scale == 1.0


def doubled(params, members):
    leaves, treedef = jax.tree.flatten(params)
    return treedef.unflatten([leaf * (2 if at in members else 1) for at, leaf in enumerate(leaves)])


TRANSITIONS = [
    (f"stage_{stage}/first/shortcut/kernel", f"stage_{stage}/first/conv_{layer}/kernel")
    for stage in (2, 3)
    for layer in (1, 2)
]
EXPECTED = {
    "wide": ["stem/kernel", "head/kernel", *(" + ".join(pair) for pair in TRANSITIONS)],
    "cifar": ["stem/kernel", "head/kernel"],  # its shortcuts are every second pixel
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_sets_are_those_of_figure_2_and_scale_the_logits(kind):
    params, images = drawn_params(kind), digits_batch(BATCH)[0]
    logits = quick_jit(lambda params: forward(MODELS[kind])(params, images))
    sets = bounds.homogeneous_sets(roles.assign(params))
    assert list(sets) == EXPECTED[kind]
    before = np.asarray(logits(params))
    assert np.abs(before).max() > 0.1
    for members in sets.values():
        # A factor of 2 changes exponents only, so that nothing is rounded differently.
        np.testing.assert_array_equal(logits(doubled(params, members)), 2 * before)


def test_the_papers_examples_and_their_composition_are_homogeneous_functions():
    """Definition 1, proposition 1; a bias, a sigmoid and a normalization are not."""
    kernel = jnp.linspace(-1, 1, 18).reshape(3, 3, 1, 2)

    def convolution(at):
        return jax.lax.conv_general_dilated(
            at, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def dropout(at):
        drop = nn.Dropout(0.5, deterministic=False)
        return drop.apply({}, at, rngs={"dropout": jax.random.key(0)})

    homogeneous = [
        convolution, dropout, nn.relu,
        lambda at: nn.max_pool(at, (2, 2), (2, 2)),
        lambda at: nn.avg_pool(at, (2, 2), (2, 2)),
        lambda at: jnp.concatenate([at, convolution(at)], axis=-1),
        lambda at: nn.max_pool(nn.relu(convolution(at) + at), (2, 2)),
    ]  # fmt: skip
    normalized = functools.partial(nn.standardize, axis=(1, 2, 3))
    others = [lambda at: convolution(at) + 1, nn.sigmoid, normalized]
    images = jax.random.normal(jax.random.key(0), (3, 8, 8, 1))
    for function in homogeneous + others:
        once, twice = (quick_jit(function)(at) for at in (images, 2 * images))
        assert np.array_equal(twice, 2 * once) == (function in homogeneous)
