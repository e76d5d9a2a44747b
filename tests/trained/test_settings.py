"""Settings as JSON and back: every class, every field."""

import dataclasses
import json

import jax.numpy as jnp
import pytest

from nf_resnets import models
from nf_resnets.models.architectures import CLASSES
from nf_resnets.trained.settings import from_json, to_json

MODELS = (
    models.CifarResNet(depth=14, scheme="rescalenet", num_classes=7),
    models.ResNet(depth=26, version=2, scheme="skipinit", stem_channels=8),
    models.VGG(depth=11, scheme="plain", classifier=(12, 8), pool_size=2),
    models.VGG(depth=11, scheme="plain", classifier=()),
    models.Transformer(vocab_size=9, source_vocab_size=11, d_model=4, num_heads=2, dropout=0.5),
    models.WideResNet(depth=10, scheme="alpha_one", dtype=jnp.bfloat16),
)


def test_every_network_of_the_library_has_a_name():
    assert {type(model).__name__ for model in MODELS} == set(CLASSES)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_there_and_back(model):
    found = from_json(json.loads(json.dumps(to_json(model))))
    for field in dataclasses.fields(model):
        if field.name not in ("parent", "name"):
            one, other = getattr(found, field.name), getattr(model, field.name)
            assert one == other and type(one) is type(other), field.name
    assert found == model


def test_a_field_that_was_left_out_has_its_default():
    """As of a file of an older version."""
    settings = to_json(models.WideResNet(depth=10))
    del settings["fields"]["remat"]
    assert from_json(settings) == models.WideResNet(depth=10)


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(ValueError, match=r"WideResNet.unroll=1j found; expected numbers, text"):
        to_json(models.WideResNet(depth=10, unroll=1j))
