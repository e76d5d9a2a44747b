"""Small networks with drawn weights, and the file format taken apart by hand."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from nf_resnets import models, trained
from tests.models.trees import random_like, random_variables, shapes


def drawn(model, image=(8, 8, 1), seed=0):
    """Variables of the network's shapes, all leaves different; variances positive."""
    if isinstance(model, models.Transformer):
        return random_like(shapes(model), seed)
    return random_variables(model, seed, image)


def takes(image=(8, 8, 1), classes=10, **changes):
    channels = image[-1]
    return trained.Images(
        **{
            "shape": image,
            "mean": (4.9,) * channels,
            "std": (6.0,) * channels,
            "max_value": 16.0,
            "class_names": tuple(f"class {i}" for i in range(classes)),
            **changes,
        }
    )


def wide_resnet(scheme="fixup", **options):
    return models.WideResNet(**{"depth": 10, "scheme": scheme, "stem_channels": 4, **options})


def network(scheme="fixup", image=(8, 8, 1), **options):
    model = wide_resnet(scheme, **options)
    inputs = takes(image, model.num_classes)
    return trained.Trained(model, drawn(model, image), inputs)


def saved(path, scheme="fixup", **options):
    made = network(scheme, **options)
    return trained.save(path, made.model, made.variables, inputs=made.inputs), made


def assert_same(found, expected):
    """The same structure, dtypes, shapes and bits."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(one), np.asarray(other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()


def taken_apart(path):
    """Header and tensors of a safetensors file, by its documented format alone."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, data[8 + length :]


def forge(path, change):
    """Writes the file again with another manifest, which ``change`` edits."""
    header, body = taken_apart(path)
    manifest = json.loads(header["__metadata__"]["nf_resnets"])
    change(manifest)
    header["__metadata__"]["nf_resnets"] = json.dumps(manifest)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def set_at(*keys, value):
    """A change of a manifest, for :func:`forge`."""

    def change(manifest):
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return change


def refused(path):
    """The one sentence with which a file is refused; it names the file."""
    with pytest.raises(trained.TrainedError) as found:
        trained.load(path)
    text = str(found.value)
    assert str(path) in text and "\n" not in text, text
    assert len(text) < 1_000
    return text
