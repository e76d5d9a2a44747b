"""RescaleNet's rows on ImageNet: which parts their schemes have, and what decays."""

import jax
import numpy as np
import pytest

from experiments import rescale_imagenet as rescale
from nf_resnets import init, models, optim
from tests.models.trees import filled_with

SCRIPTS = rescale.SCRIPTS


def test_branches_before_dropout_are_drawn_for_it():
    for scheme in SCRIPTS["resnet-50"][:2]:
        # The last two stages of ResNet-50 have 6 and 3 of its 16 blocks.
        assert scheme.init.func is init.rescalenet
        assert scheme.init.keywords == {"dropout": (0.0,) * 7 + (0.03,) * 9}
    assert SCRIPTS["resnet-50"][1].calibrate is None
    # VGG-19's weights are He (fan_out), the head's too (tests/init/test_rescalenet.py).
    assert SCRIPTS["vgg-19"][0].init.keywords == {"published": True}


@pytest.mark.parametrize(
    ("scheme", "decays"), [(SCRIPTS["resnet-50"][2], True), (rescale.ONE_RECIPE[2], False)]
)
def test_only_the_scripts_decay_all_of_batch_norms_parameters(scheme, decays):
    model = models.make("resnet-50", scheme, num_classes=10, stem_channels=4)
    ones = filled_with(1.0, model)
    params = {name: ones[name] for name in ("stem", "norm_stem", "head")}
    optimizer = optim.sgd(0.1, weight_decay=1e-4, scheme=scheme)
    zeros = jax.tree.map(np.zeros_like, params)
    updates, _ = optimizer.update(zeros, optimizer.init(params), params)
    moved = {
        path[-1].key: bool(np.abs(update).max() > 0)
        for path, update in jax.tree_util.tree_flatten_with_path(updates)[0]
    }
    assert moved == {"kernel": True, "bias": decays, "scale": decays}


def test_dropout_is_that_of_the_row_and_the_network():
    def of(network, scheme, dataset):
        point = {"model": network, "scheme": scheme, "dataset": dataset}
        return rescale.options(point)

    regular, plain = rescale.ONE_RECIPE[0], rescale.ONE_RECIPE[3]
    assert of("resnet-50", regular, "digits_jpeg") == {"conv_dropout": 0.03, "dropout": 0.3}
    assert of("resnet-50", plain, "digits_jpeg") == {}
    assert of("vgg-19", regular, "digits_jpeg")["dropout"] == 0.3
    for scheme in SCRIPTS["vgg-19"]:
        found = of("vgg-19", scheme, "imagenet2012")
        assert found == {"classifier": (4096, 4096), "dropout": 0.5}
