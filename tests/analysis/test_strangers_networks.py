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


@pytest.mark.parametrize("field", [{"flip": "no"}, {"cutout": 0.5}, {"padding": 1.0}])
def test_an_augmentation_of_another_type_is_refused(field):
    with pytest.raises(ValueError, match=rf"{next(iter(field))}=.* found; expected (bool|int)"):
        data.Augmentation(**field)
