"""What the analyses and the training say to networks and arguments that are not what they take."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nf_resnets import analysis, data, models, optim, training
from nf_resnets.init import Rules
from nf_resnets.taps import TAPS, merge, tap
from tests.models.trees import quick_jit

IMAGES = jnp.ones((4, 8, 8, 3))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        x = tap(self, "input", x)
        return merge(self, x, nn.Dense(3)(nn.relu(x))), None


class Network(nn.Module):
    """Blocks that another library would make, without ``train``, and its own form of a head."""

    blocks: Callable[[jax.Array], jax.Array]

    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(self.blocks(x).mean((1, 2)))


def scanned(length):
    axes = {"params": 0, TAPS: 0}
    blocks = nn.scan(Block, variable_axes=axes, split_rngs={"params": True}, length=length)
    return lambda x: blocks(name="blocks")(x, None)[0]


def shared(x):
    block = Block(name="block")
    return block(block(x)[0])[0]


def lettered(x):
    return Block(name="deep")(Block(name="early")(x)[0])[0]


class Untapped(nn.Module):
    @nn.compact
    def __call__(self, x):
        return merge(self, x, x)


REFUSED = {
    "scan of more": (scanned(6), r"tap blocks/\w+ has shape \[6, 4, 8, 8, 3\] for 4 images"),
    "scan of as many": (scanned(4), r"tap blocks/\w+ has shape \[4, 4, 8, 8, 3\] for 4 images"),
    "shared": (shared, "tap 'block/input' is recorded twice .* expected a module for each"),
    "letters": (lettered, "block 'deep' is computed after 'early', and stands before it"),
    "without an input": (
        lambda x: Untapped(name="block")(x), "block 'block' has the taps .* and no 'input'; exp",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("blocks", "message"), REFUSED.values(), ids=REFUSED)
def test_taps_that_are_not_each_of_one_block_in_order_are_refused(blocks, message):
    model = Network(blocks)
    params = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
    for measure in (
        lambda params: analysis.signal(analysis.observe(model), params, IMAGES),
        lambda params: analysis.gradient_norms(
            analysis.observe(model), params, IMAGES, labels=jnp.arange(4)
        ),
    ):
        with pytest.raises(ValueError, match=message):
            jax.eval_shape(measure, params)


class Dropping(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=False):
        return nn.Dropout(0.5, deterministic=deterministic)(Block(name="block")(x)[0])


def test_other_options_of_a_network_are_handed_on():
    model = Dropping()
    init = functools.partial(model.init, deterministic=True)
    params = jax.eval_shape(init, jax.random.key(0), IMAGES)["params"]
    for options in ({"deterministic": True}, {"rngs": {"dropout": jax.random.key(1)}}):
        observed = analysis.observe(model, **options)
        assert jax.eval_shape(analysis.signal_of, jax.eval_shape(observed, params, IMAGES)[1])
    for other in ({}, nnx.Dropout(0.5)):
        with pytest.raises(TypeError, match="expected a Flax module .*For another library"):
            analysis.observe(other)


def test_a_network_is_not_observed_by_itself():
    model = models.WideResNet(10, scheme="fixup")
    for observed in (model, model.apply):
        with pytest.raises(TypeError, match=r"observed is a WideResNet.*analysis.observe\(model\)"):
            analysis.signal(observed, {}, IMAGES)


def test_the_share_of_what_is_nan_is_nan():
    moments = analysis.Moments(*(jnp.array([1.0, jnp.nan, 0.0]),) * 3)
    share = analysis.Signal(moments, moments, moments, moments).share
    np.testing.assert_array_equal(share, [1.0, np.nan, 0.0])


@pytest.mark.parametrize("name", ["wrn-10-1", "cifar-resnet-8", "resnet-18", "vgg-11"])
def test_images_of_another_shape_are_refused(name):
    model = models.make(name, "plain")
    for shape, message in (((2, 3, 32, 32), r"which look like \[B, C"), ((32, 32, 3), "expected")):
        with pytest.raises(
            ValueError, match=rf"of shape .{str(list(shape))[1:-1]}. found.*{message}"
        ):
            jax.eval_shape(model.init, jax.random.key(0), jnp.ones(shape))


def test_a_program_refuses_the_parameters_of_another_network():
    model, deeper = (
        models.WideResNet(depth, scheme="fixup", stem_channels=4) for depth in (10, 16)
    )
    shapes = jax.eval_shape(deeper.init, jax.random.key(0), jnp.ones((1, 8, 8, 1)))["params"]
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    state = training.create_state(params, lambda hyper: optax.sgd(0.1), {})
    message = r"leaf 'stage_1/rest/bias_1' \[1\] is in the params and not in the network"
    with pytest.raises(ValueError, match=message):
        training.image_program(
            model, data.load("digits"), lambda hyper: optax.sgd(0.1),
            training.make_mesh(devices=jax.devices()[:1]), training.ImageTraining(8, 2), state,
        )  # fmt: skip


@pytest.mark.parametrize("field", [{"flip": "no"}, {"cutout": 0.5}, {"padding": 1.0}])
def test_an_augmentation_of_another_type_is_refused(field):
    with pytest.raises(ValueError, match=rf"{next(iter(field))}=.* found; expected (bool|int)"):
        data.Augmentation(**field)


def _linear(params, images):
    return images.reshape(len(images), -1) @ params


LABELS = {
    "above": (jnp.array([0, 1, 2, 4]), "labels has the value 4; expected .* from 0 to 3"),
    "below": ([0, -1, 2, 3], "labels has the value -1"),
    "one-hot": (jnp.eye(4), r"labels of shape \[4, 4\] and dtype float32 found"),
    "one": (jnp.array([1]), r"labels of shape \[1\] .* for each example, of shape \[4\]"),
    "floats": (np.arange(4.0), "dtype float64"),
}


@pytest.mark.parametrize(("labels", "message"), LABELS.values(), ids=LABELS)
def test_labels_that_are_no_classes_are_refused(labels, message):
    images, params = jnp.ones((4, 2)), jnp.ones((2, 4))
    taps = {"block_1": {"input": images}}
    for measure in (
        lambda: analysis.loss_gradient(_linear, params, images, labels),
        lambda: analysis.first_order_update(_linear, params, images, labels),
        lambda: analysis.gradient_noise(_linear, params, images, labels, parts=2),
        lambda: analysis.excess_loss(_linear(params, images), labels),
        lambda: analysis.gradient_norms(
            lambda params, x, _=None: (_linear(params, x), taps), params, images, labels=labels
        ),
    ):
        with pytest.raises(ValueError, match=message):
            measure()


def test_labels_may_be_a_list():
    """The gradient of a uniform softmax: a quarter of every example's less its own class."""
    found = analysis.loss_gradient(_linear, jnp.ones((2, 4)), jnp.ones((4, 2)), [0, 1, 2, 2])
    np.testing.assert_allclose(found, [[0, 0, -0.25, 0.25]] * 2, atol=1e-6)


@pytest.mark.parametrize("key", [0, None, "0", jax.random.split(jax.random.key(0))], ids=str)
def test_what_is_no_key_is_refused(key):
    for measure in (
        lambda: analysis.largest_curvature(jnp.sum, jnp.ones(2), key=key),
        lambda: analysis.draw_heads(_linear, {}, IMAGES, [0] * 4, key=key, draws=1),
        lambda: analysis.draw_network(
            key, width=2, num_branches=1, num_classes=2, layer_scales=(1, 0)
        ),
    ):
        with pytest.raises(TypeError, match="key.* found; expected one PRNG key"):
            measure()


@pytest.mark.parametrize(
    ("sizes", "values", "message"),
    [([1, 2], [0.0, 1.0], "values has 0; expected finite numbers above 0"),
     ([1, 2], [1.0, np.nan], "values has nan"), ([0, 2], [1.0, 1.0], "sizes has 0"),
     ([2, 2], [1.0, 2.0], "1 sizes and 2 values"), ([1, 2, 4], [1.0, 2.0], "3 sizes and 2 values")],
    ids=["zero", "nan", "size of zero", "one size", "other lengths"],
)  # fmt: skip
def test_a_growth_that_is_no_number_is_refused(sizes, values, message):
    with pytest.raises(ValueError, match=message):
        analysis.growth(sizes, values)


def test_several_heads_are_told_of():
    images, labels = jnp.ones((4, 2)), jnp.arange(4)

    def heads(params, images, perturbations=None):
        return {"a": images @ params}, {"block_1": {"input": images}}

    for measure in (
        lambda params: analysis.loss_gradient(heads, params, images, labels),
        lambda params: analysis.first_order_update(heads, params, images, labels),
        lambda params: analysis.small_rate(heads, params, images, labels),
        lambda params: analysis.gradient_noise(heads, params, images, labels, parts=2),
        lambda params: analysis.gradient_norms(
            lambda *of: (heads(*of)[0], heads(*of)[1]), params, images, key=jax.random.key(0)
        ),
    ):
        with pytest.raises(TypeError, match="the network gives a (dict|tuple); expected one array"):
            jax.eval_shape(measure, jnp.ones((2, 4)))


def _everything(params):
    """All measures of a linear network of dicts that move its parameters."""
    inputs = {"x": jnp.array([[1.0, 2.0], [3.0, -1.0], [0.5, 1.0], [2.0, 2.0]])}
    labels = jnp.array([0, 1, 2, 1])

    def logits_fn(params, inputs):
        return inputs["x"].astype(params["w"].dtype) @ params["w"]

    def loss(params, _=None):
        return optax.softmax_cross_entropy_with_integer_labels(
            logits_fn(params, inputs).astype(jnp.float32), labels
        ).mean()

    of = (logits_fn, params, inputs, labels)
    rules = Rules(head="^w$")
    return {
        "gradient": analysis.loss_gradient(*of)["w"],
        "update": analysis.update(*of, 0.01),
        "first order": analysis.first_order_update(*of),
        "rate": analysis.small_rate(*of),
        "size": analysis.update_size(*of, analysis.small_rate(*of)),
        "noise": analysis.gradient_noise(*of, parts=2),
        "bounds": analysis.parameter_bounds(*of, rules=rules),
        "curvature": analysis.largest_curvature(loss, params, key=jax.random.key(0), steps=3),
        "descent": analysis.descend(loss, params, jnp.float32(0.1), steps=2, momentum=0.9),
    }


def test_integers_functions_and_half_precision_change_nothing():
    """As an Equinox module holds them; each weight is a number of bfloat16."""
    w = jnp.array([[0.5, -1.0, 0.25], [1.5, 0.75, -0.5]])
    other = {"act": jax.nn.relu, "w": w.astype(jnp.bfloat16), "steps": jnp.array(3)}
    found, expected = quick_jit(lambda: [_everything(of) for of in (other, {"w": w})])()
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    gradient = analysis.loss_gradient(
        lambda params, x: x @ params["w"], other, jnp.ones((1, 2)), [0]
    )
    assert gradient["steps"] is None is gradient["act"]
    with pytest.raises(TypeError, match="params is a dict without a floating-point array"):
        analysis.loss_gradient(_linear, {"steps": jnp.array(3)}, jnp.ones((1, 2)), [0])


def test_coordinates_of_what_is_no_float_array_too():
    """As an Equinox module holds it; each weight is a number of bfloat16."""
    images = jnp.array([[1.0, 2.0], [3.0, -1.0]])

    def observed(params, images, perturbations=None):
        logits = images @ params["w"]
        return logits, {"block_1": {"input": images, "sum": logits}}

    w = jnp.array([[0.5, -1.0], [1.5, 0.75]])
    trees = {"act": jax.nn.relu, "w": w.astype(jnp.bfloat16), "steps": jnp.array(3)}, {"w": w}
    optimizer = optim.sgd(0.1, rules=Rules(head="^w$"))
    found, expected = (
        analysis.coordinates(observed, tree, images, [0, 1], optimizer, steps=1) for tree in trees
    )
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert found.change[1].any()


def test_numbers_of_steps_and_parts_are_whole():
    images, params, key = jnp.ones((4, 2)), jnp.ones((2, 4)), jax.random.key(0)
    for measure in (
        lambda: analysis.coordinates(_linear, params, images, [0] * 4, None, steps=2.0),
        lambda: analysis.descend(lambda p, t: p.sum(), params, jnp.float32(1), steps=2.5),
        lambda: analysis.largest_curvature(jnp.sum, params, key=key, steps=2.0),
        lambda: analysis.gradient_noise(_linear, params, images, [0] * 4, parts=2.0),
    ):
        with pytest.raises(TypeError, match=r"^(steps|parts)=2\.\d found; expected a whole number"):
            measure()


def test_the_update_of_a_token_is_a_norm_over_the_classes():
    tokens, labels = jnp.ones((2, 5, 3)), jnp.zeros((2, 5), int)
    matrix = jnp.arange(12.0).reshape(3, 4) / 10
    measure = functools.partial(analysis.update_size, lambda params, x: x @ params, matrix)
    found, one = quick_jit(
        lambda: (measure(tokens, labels), measure(tokens[0, :1], labels[0, :1]))
    )()
    assert found.shape == (2, 5)
    # All tokens are alike, so each moves as one of a batch of one would; float32, sums of 10.
    np.testing.assert_allclose(found, np.broadcast_to(one, (2, 5)), rtol=1e-5)


def test_a_bias_that_no_rule_names_is_no_homogeneous_one():
    block = {"fc_1": {"w": np.ones((2, 2)), "b": np.ones(2)}}
    tree = {"block_1": block, "head": np.ones((2, 4))}
    rules = Rules(branch=r"block_(\d)/fc_(\d)/w", head="^head")
    with pytest.raises(ValueError, match="'block_1/fc_1/b' is a bias that is not 0"):
        analysis.parameter_bounds(_linear, tree, jnp.ones((4, 2)), jnp.arange(4), rules=rules)


def test_two_multipliers_of_a_branch_are_multiplied():
    block = {"fc_1": np.ones((2, 2)), "alpha": np.array([0.5]), "gain": np.array([3.0])}
    rules = Rules(branch=r"block_(\d)/fc_(\d)", alpha="alpha", multiplier="gain")
    assert analysis.multipliers({"block_1": block}, rules=rules).tolist() == [1.5]
