"""Looking into networks of any library: the branches in order, scanned or not, and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from experiments.untrained import forward
from nf_resnets import analysis, schemes
from nf_resnets.models import architectures
from tests.models.smallest import example, smallest
from tests.models.trees import quick_jit, random_like

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)


def started(model, *inputs):
    """Variables with random weights; nothing is compiled."""
    return random_like(jax.eval_shape(model.init, jax.random.key(0), *inputs), 0, 2**0.5)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        h = nn.relu(nn.Dense(5)(x))
        return x + nn.Dense(4)(h), None


class Scanned(nn.Module):
    remat: bool = False
    reverse: bool = False

    @nn.compact
    def __call__(self, x):
        blocks = nn.scan(
            nn.remat(Block) if self.remat else Block, variable_axes={"params": 0},
            split_rngs={"params": True}, length=3, reverse=self.reverse,
        )  # fmt: skip
        return nn.Dense(2)(blocks(name="blocks")(x, None)[0])


def linen(**options):
    model = Scanned(**options)
    params = started(model, X)["params"]
    dense, order = params["blocks"], slice(None, None, -1) if options.get("reverse") else slice(3)
    stacks = [dense[f"Dense_{n}"][name] for n in (0, 1) for name in ("kernel", "bias")]
    layers = list(zip(*(stack[order] for stack in stacks), strict=True))
    return lambda params, x: model.apply({"params": params}, x), params, layers, params["Dense_0"]


def plain():
    """A list of blocks, and a name of no meaning for each weight."""
    rng = np.random.default_rng(1)
    layers = [
        tuple(
            jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 5), (1, 5), (5, 4), (1, 4))
        )
        for _ in range(3)
    ]
    head = {"kernel": jnp.asarray(rng.normal(size=(4, 2)), jnp.float32), "bias": jnp.zeros((1, 2))}

    def network(params, x):
        for a, b, c, d in params["blocks"]:
            x = x + jax.jit(lambda h, a=a, b=b, c=c, d=d: jax.nn.relu(h @ a + b) @ c + d)(x)
        return x @ params["head"]["kernel"] + params["head"]["bias"]

    return network, {"blocks": layers, "head": head}, layers, head


STRANGERS = {
    "plain": plain, "scan": linen,
    "remat": functools.partial(linen, remat=True),
    "reverse": functools.partial(linen, reverse=True),
}  # fmt: skip


@pytest.mark.parametrize("make", STRANGERS.values(), ids=STRANGERS)
def test_a_strangers_network_is_looked_into_without_a_change(make):
    network, params, *by_hand = make()
    layers, head = jax.tree.map(np.asarray, by_hand)
    u = np.array([1.0, -2.0], np.float32)
    outputs, blocks, gradients = quick_jit(
        lambda params: analysis.slopes(lambda z: (z @ u).sum(), network, params, X)
    )(params)
    # The same by hand, and backwards by the transposes.
    x, hidden = np.asarray(X), []
    assert len(blocks) == 3
    for (a, b, c, d), block in zip(layers, blocks, strict=True):
        hidden.append(x @ a + b > 0)
        branch = np.where(hidden[-1], x @ a + b, 0) @ c + d
        expected = analysis.Activations(x, x, branch, x + branch)
        # Float32 sums of five products.
        jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5),
                     block, expected)  # fmt: skip
        x = x + branch
    np.testing.assert_allclose(outputs, x @ head["kernel"] + head["bias"], rtol=1e-5, atol=1e-5)
    slope = np.broadcast_to(head["kernel"] @ u, x.shape)
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
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, SIDE, SIDE, 3)), jnp.float32)
    model = smallest(name, scheme)
    variables = started(model, images)
    stats = {name: tree for name, tree in variables.items() if name == "batch_stats"}
    network = forward(model, stats)
    _, blocks = quick_jit(lambda params: analysis.observe(network, params, images))(
        variables["params"]
    )
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
    params = started(model, source, target)["params"]
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
        return h + nn.relu(h @ a) @ b + nn.relu(h @ c) @ d

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
