"""What the analyses and the training say to networks and arguments that are not what they take."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nf_resnets import analysis, data, models, schemes, training
from nf_resnets.taps import TAPS, merge, tap

IMAGES = jnp.ones((4, 8, 8, 3))


class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        x = tap(self, "input", x)
        return merge(self, x, nn.Dense(3)(nn.relu(x))), None


class Scanned(nn.Module):
    """Six blocks under a scan, which this library does not know by its name."""

    @nn.compact
    def __call__(self, x, train=False):
        axes = {"params": 0, TAPS: 0}
        blocks = nn.scan(Block, variable_axes=axes, split_rngs={"params": True}, length=6)
        return nn.Dense(4)(blocks(name="blocks")(x, None)[0].mean((1, 2)))


def test_a_scan_of_another_library_is_no_single_block():
    model = Scanned()
    params = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
    for measure in (
        lambda params: analysis.signal(analysis.observe(model), params, IMAGES),
        lambda params: analysis.gradient_norms(
            analysis.observe(model), params, IMAGES, labels=jnp.arange(4)
        ),
    ):
        with pytest.raises(
            ValueError, match=r"tap blocks/\w+ has shape \[6, 4, 8, 8, 3\] for 4 im"
        ):
            jax.eval_shape(measure, params)


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


def test_a_program_says_what_it_takes():
    model = models.WideResNet(10, scheme="fixup", stem_channels=4)
    start = training.Start("fixup", 0, {"learning_rate": 0.1})
    assert start.scheme == schemes.get("fixup")
    settings = training.ImageTraining(8, 2)
    mesh = training.make_mesh(devices=jax.devices()[:1])
    digits = data.load("digits")

    def make(dataset=digits, optimizer=lambda hyper: optax.sgd(0.1), example=start):
        return training.image_program(model, dataset, optimizer, mesh, settings, example)

    with pytest.raises(TypeError, match=r"optimizer is a Gradient\w+; expected a function of the"):
        training.create_state({}, optax.sgd(0.1), {})
    with pytest.raises(TypeError, match=r"dataset is a tuple; expected a data.Dataset"):
        make(dataset=(1, 2), example=start)
    with pytest.raises(TypeError, match=r"example is a dict; expected a training.Start, or a st"):
        make(example={})
    deeper = models.WideResNet(16, scheme="fixup", stem_channels=4)
    shapes = jax.eval_shape(deeper.init, jax.random.key(0), jnp.ones((1, 8, 8, 1)))["params"]
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), shapes)
    state = training.create_state(params, lambda hyper: optax.sgd(0.1), {})
    message = r"leaf 'stage_1/rest/bias_1' \[1\] is in the params and not in the network"
    with pytest.raises(ValueError, match=message):
        make(example=state)
    with pytest.raises(TypeError, match=r"program is a WideResNet; expected a training.Program"):
        training.train(model, start)
    with pytest.raises(TypeError, match=r"model is a dict; expected a Flax module or a function"):
        training.train_apply({})


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
