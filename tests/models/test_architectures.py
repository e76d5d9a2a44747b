"""The registry of architectures: names, and one small network of each family."""

import numpy as np
import pytest

from nf_resnets import models, schemes
from nf_resnets.models import ARCHITECTURES, make

PAIRS = [(name, scheme) for name, each in ARCHITECTURES.items() for scheme in each.schemes()]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_examples_are_the_same_each_time_and_differ_within(name):
    one, other = (ARCHITECTURES[name].example(4) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert len(np.unique(a, axis=0)) == 4


@pytest.mark.parametrize(
    ("name", "kind", "attributes"),
    [
        ("cifar-resnet-110", models.CifarResNet, {"depth": 110, "num_branches": 54}),
        ("wrn-28-10", models.WideResNet, {"depth": 28, "width": 10}),
        ("resnet-18", models.ResNet, {"depth": 18, "version": 1, "num_classes": 1000}),
        ("resnet-50", models.ResNet, {"depth": 50, "version": 1, "num_branches": 16}),
        ("resnet-101-v2", models.ResNet, {"depth": 101, "version": 2, "num_branches": 33}),
        ("vgg-19", models.VGG, {"depth": 19}),
        ("transformer-6", models.Transformer, {"num_layers": 6, "num_branches": 30}),
    ],
)
def test_makes_networks_by_name(name, kind, attributes):
    family = next(a.family for a in ARCHITECTURES.values() if name in a.names)
    model = make(name, schemes.names(family)[0])
    assert type(model) is kind
    assert {key: getattr(model, key) for key in attributes} == attributes


def test_every_published_name_is_of_its_family_alone():
    for architecture in ARCHITECTURES.values():
        for name in architecture.names:
            model = make(name, architecture.schemes()[0])
            assert type(model) is type(architecture.smallest(architecture.schemes()[0]))
            assert getattr(model, "version", 2) == (1 if architecture.name == "resnet" else 2)


def test_options_reach_the_network():
    model = make("resnet-50-v2", "nf_resnet", num_classes=7, stem_channels=8)
    assert (model.num_classes, model.stem_channels) == (7, 8)
    assert make("transformer-2", "fixup", vocab_size=5).vocab_size == 5
    assert ARCHITECTURES["wrn"].smallest("fixup", num_classes=3).num_classes == 3


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("resnet-110", "cifar-resnet-110"),
        ("resnet110", "cifar-resnet-110"),
        ("resnet_20", "cifar-resnet-20"),
        ("ResNet-50", "resnet-50"),
        ("resnet50", "resnet-50"),
        ("resnet50-v2", "resnet-50-v2"),
        ("wrn28-10", "wrn-28-10"),
        ("vgg16", "vgg-16"),
        ("vgg-17", "vgg-1"),
        ("transformer", "transformer-6"),
        ("wrn-010-01", "wrn-10-1'"),
        ("cifar-resnet-020", "cifar-resnet-20'"),
        ("resnet-050-v2", "resnet-50-v2'"),
        ("vgg-019", "vgg-19'"),
        ("transformer-06", "transformer-6'"),
    ],
)
def test_unknown_names_get_the_closest(name, closest):
    with pytest.raises(ValueError, match=f"did you mean '{closest}") as error:
        make(name, "fixup")
    assert str(error.value).startswith(f"name={name!r} found; expected cifar-resnet-(6n+2), wrn-")


@pytest.mark.parametrize(
    "name", ["", "???", "lenet", "50", None, "resnet-50-v3x", "\nvgg-16", "wrn-١٠-1", "wrn-10-１"]
)
def test_other_names_are_refused_in_one_sentence(name):
    with pytest.raises(ValueError, match="found; expected cifar-resnet") as error:
        make(name, "fixup")
    assert "\n" not in str(error.value)


def test_a_depth_or_a_scheme_that_does_not_fit_is_refused_by_the_network():
    with pytest.raises(ValueError, match="depth=21 found; a CIFAR ResNet has 6n"):
        make("cifar-resnet-21", "fixup")
    with pytest.raises(ValueError, match="'fixup' is for .*; expected one for plain networks"):
        make("vgg-16", "fixup")
