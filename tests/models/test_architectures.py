"""The registry of architectures: names, and one small network of each family."""

import pytest

from nf_resnets import models
from nf_resnets.models import make
from nf_resnets.models.architectures import architecture_of, find


@pytest.mark.parametrize(
    ("name", "network", "attributes"),
    [
        ("cifar-resnet-110", models.CifarResNet, {"depth": 110, "num_branches": 54}),
        ("wrn-28-10", models.WideResNet, {"depth": 28, "width": 10}),
        ("resnet-50", models.ResNet, {"depth": 50, "version": 1, "num_classes": 1000}),
        ("resnet-101-v2", models.ResNet, {"depth": 101, "version": 2, "num_branches": 33}),
        ("vgg-19", models.VGG, {"depth": 19}),
        ("transformer-6", models.Transformer, {"num_layers": 6, "num_branches": 30}),
    ],
)
def test_makes_networks_by_name(name, network, attributes):
    model = make(name, find(name).schemes()[0])
    assert type(model) is network and architecture_of(model) is find(name)
    assert {key: getattr(model, key) for key in attributes} == attributes


@pytest.mark.parametrize("name", ["resnet-110", "", "wrn-010-01", "\nvgg-16", "wrn-١٠-1", None])
def test_other_names_are_refused_in_one_sentence(name):
    with pytest.raises(ValueError, match="found; expected cifar-resnet") as error:
        make(name, "fixup")
    assert "\n" not in str(error.value)


def test_options_that_a_network_does_not_have_are_refused():
    with pytest.raises(ValueError, match="remat=True found; vgg-16 has no such option"):
        make("vgg-16", "plain", num_classes=10, remat=True)
