"""Looking into networks of any library: the branches in order, scanned or not, and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.untrained import forward
from nf_resnets import analysis, schemes
from nf_resnets.models import architectures
from tests.models.smallest import example, smallest
from tests.models.trees import images, quick_jit, random_like, random_variables, shapes

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)


def dense_block(x, layers):
    a, b, c, d = layers
    return x + (jax.nn.relu(x @ a + b) @ c + d), None


@pytest.mark.parametrize("form", ["list", "scan", "remat", "reverse"])
def test_a_strangers_network_is_looked_into_without_a_change(form):
    """Three blocks of two layers, whose weights' names have no meaning."""
    rng = np.random.default_rng(1)

    def draw(*shape):
        return rng.normal(size=shape).astype("f4")

    layers = [tuple(draw(*shape) for shape in ((4, 5), (1, 5), (5, 4), (1, 4))) for _ in range(3)]
    kernel, bias, u = draw(4, 2), draw(1, 2), np.array([1.0, -2.0], np.float32)
    blocks = layers if form == "list" else jax.tree.map(lambda *each: np.stack(each), *layers)

    def network(params, x):
        blocks, kernel, bias = params
        if form == "list":
            for each in blocks:
                x, _ = jax.jit(dense_block)(x, each)
        else:
            one = jax.checkpoint(dense_block) if form == "remat" else dense_block
            x, _ = jax.lax.scan(one, x, blocks, reverse=form == "reverse")
        return x @ kernel + bias

    outputs, found, gradients = quick_jit(
        lambda params: analysis.slopes(lambda z: (z @ u).sum(), network, params, X)
    )((blocks, kernel, bias))
    # The same by hand, and backwards by the transposes.
    layers = layers[::-1] if form == "reverse" else layers
    x, hidden = np.asarray(X), []
    assert len(found) == 3
    for (a, b, c, d), at in zip(layers, found, strict=True):
        hidden.append(x @ a + b > 0)
        branch = np.where(hidden[-1], x @ a + b, 0) @ c + d
        expected = analysis.Activations(x, x, branch, x + branch)
        # Float32 sums of five products.
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5),
                     at, expected)  # fmt: skip
        x = x + branch
    np.testing.assert_allclose(outputs, x @ kernel + bias, rtol=1e-5, atol=1e-5)
    slope = np.broadcast_to(kernel @ u, x.shape)
    for (a, _, c, _), active, gradient in zip(
        layers[::-1], hidden[::-1], gradients[::-1], strict=True
    ):
        np.testing.assert_allclose(gradient.sum, slope, rtol=1e-5, atol=1e-5)
        slope = slope + np.where(active, slope @ c.T, 0) @ a.T
        np.testing.assert_allclose(gradient.input, slope, rtol=1e-5, atol=1e-5)


SIDE = 16
PAIRS = [
    ("wrn", "fixup"), ("wrn", "batchnorm_merge"), ("cifar-resnet", "rescalenet"),
    ("wrn", "batchnorm"), ("cifar-resnet", "batchnorm"), ("resnet", "plain"),
]  # fmt: skip


@pytest.mark.every(3)
@pytest.mark.parametrize(("name", "scheme"), PAIRS)
def test_each_block_begins_where_the_one_before_ends(name, scheme):
    """Also where a shortcut's layer stands behind the block's first norm, bias or activation."""
    x, model = images(0, 2, SIDE, SIDE, 3), smallest(name, scheme)
    variables = random_variables(model, 0, (SIDE, SIDE, 3), branch=1.0)
    stats = {name: tree for name, tree in variables.items() if name == "batch_stats"}
    network = forward(model, stats)
    _, blocks = quick_jit(lambda params: analysis.observe(network, params, x))(variables["params"])
    assert len(blocks) == model.num_branches
    merged = schemes.get(scheme).anatomy.norm_place == "merge"
    for before, block in zip(blocks, blocks[1:], strict=False):
        expected = before.sum
        if merged:
            # A norm is affine in each channel: perfectly correlated with the sum.
            for channel in range(expected.shape[-1]):
                pair = (np.ravel(of[..., channel]) for of in (block.input, expected))
                assert abs(np.corrcoef(*pair)[0, 1]) > 0.999
            continue
        if architectures.ARCHITECTURES[name].family == "post_activation":
            expected = jax.nn.relu(expected)
        np.testing.assert_array_equal(block.input, expected)
    for block in blocks:
        np.testing.assert_allclose(block.skip + block.branch, block.sum, rtol=1e-6, atol=1e-6)


def test_a_transformers_branches_are_the_encoders_then_the_decoders():
    source, target = example("transformer", 2)
    model = smallest("transformer", "plain")
    params = random_like(shapes(model)["params"], 0)
    network = forward(model)
    look = functools.partial(analysis.observe, network)
    _, blocks = quick_jit(look)(params, source, target)
    assert len(blocks) == model.num_branches == 15
    for at in (at for at in range(14) if at != 5):  # the encoder ends, the decoder begins
        np.testing.assert_array_equal(blocks[at + 1].input, blocks[at].sum, err_msg=str(at))
    look = functools.partial(analysis.slopes, lambda logits: jnp.square(logits).sum(), network)
    _, _, gradients = quick_jit(look)(params, source, target)
    assert len(gradients) == 15 and all(bool(of.input.any()) for of in gradients)


def test_a_block_of_shared_weights_is_as_many_blocks_as_it_is_called():
    w = jnp.eye(4)
    _, blocks = analysis.observe(lambda w, x: (x := x + jnp.sin(x @ w)) + jnp.sin(x @ w), w, X)
    np.testing.assert_array_equal(blocks[1].input, blocks[0].sum)


def test_a_block_of_a_loop_with_a_layer_on_its_skip_path_begins_in_its_turn():
    w = jnp.asarray(np.random.default_rng(4).normal(size=(3, 3, 4, 4)), jnp.float32)

    def block(x, w):
        h = jnp.tanh(x)
        return h @ w[0] + jnp.sin(h @ w[1]) @ w[2], None

    network = lambda w, x: jax.lax.scan(block, x, w)[0]  # noqa: E731
    _, blocks = analysis.observe(network, w, X, projections=True)
    x = X
    for at, own in zip(blocks, w, strict=True):
        np.testing.assert_allclose(at.input, x, rtol=1e-5)  # float32 sums
        x = block(x, own)[0]


def test_the_gradient_at_parallel_branches_is_that_through_all_of_them():
    rng = np.random.default_rng(3)
    params = [jnp.asarray(rng.normal(size=(4, 4)), jnp.float32) for _ in range(4)]

    def block(params, h):
        a, b, c, d = params
        return h + jax.nn.relu(h @ a) @ b + jax.nn.relu(h @ c) @ d

    def readout(outputs):
        return jnp.sin(outputs).sum()

    network = lambda params, x: 3.0 * block(params, 2.0 * x)  # noqa: E731
    _, values, slopes = analysis.slopes(readout, network, params, X)
    expected = jax.grad(lambda h: readout(3.0 * block(params, h)))(2.0 * X)
    for at, slope in zip(values, slopes, strict=True):
        np.testing.assert_allclose(at.input, 2.0 * X)
        np.testing.assert_allclose(slope.input, expected, rtol=1e-5)  # float32 sums
    total = values[0].skip + values[0].branch + values[1].branch
    np.testing.assert_allclose(values[0].sum, total, rtol=1e-5)


def test_what_is_no_residual_network_is_refused():
    with pytest.raises(ValueError, match="no residual branch found"):
        analysis.observe(lambda w, x: jnp.sin(x @ w), jnp.eye(4), X)

    def gated(w, x):
        return jax.lax.cond(x.sum() > 0, lambda: x + jnp.sin(x @ w), lambda: x)

    with pytest.raises(ValueError, match="is in a cond; expected it in plain code"):
        analysis.observe(gated, jnp.eye(4), X)
