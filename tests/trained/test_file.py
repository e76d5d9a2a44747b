"""One file for a network: what goes in comes back, and whatever is wrong is said in a sentence."""

import dataclasses
from types import SimpleNamespace

import jax
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from nf_resnets import schemes, trained
from nf_resnets.models import ARCHITECTURES
from nf_resnets.trained.file import from_json, to_json
from tests.models.smallest import smallest
from tests.trained.networks import (
    assert_same,
    drawn,
    forge,
    network,
    refused,
    saved,
    taken_apart,
    takes,
    wide_resnet,
)

SCHEMES = ("fixup", "batchnorm", "rescalenet", "nf_resnet")
"""One of each kind of tree."""


def image_of(architecture):
    return {"wrn": (8, 8, 3), "cifar-resnet": (8, 8, 3)}.get(architecture, (32, 32, 3))


@pytest.mark.parametrize(
    ("architecture", "scheme"),
    [*((name, "plain") for name in ARCHITECTURES), *(("wrn", scheme) for scheme in SCHEMES)],
)
def test_every_network_comes_back_as_it_was(tmp_path, architecture, scheme):
    model = smallest(architecture, scheme)
    if architecture == "transformer":
        inputs = trained.Sentences("de", "en", b"model of de", b"model of en")
    else:
        inputs = takes(image_of(architecture), model.num_classes)
    variables = drawn(model, image_of(architecture))
    path = trained.save(tmp_path / "net.safetensors", model, variables, inputs=inputs)
    found = trained.load(path)
    assert found.model == model and type(found.model) is type(model)
    assert found.inputs == inputs
    assert_same(found.variables, variables)


def test_every_setting_comes_back(tmp_path):
    model = wide_resnet("batchnorm", width=2, num_classes=3, bn_groups=4, remat=True,
                        dtype=jax.numpy.bfloat16)  # fmt: skip
    inputs = takes((8, 10, 3), classes=3, crop=0.875)
    notes = {"accuracy": 0.5, "steps": 3, "tags": ["a", None], "ü": {"x": True}}
    variables = jax.tree.map(lambda leaf: leaf.astype(jax.numpy.bfloat16), drawn(model, (8, 10, 3)))
    path = tmp_path / "a" / "net.safetensors"
    found = trained.load(trained.save(path, model, variables, inputs=inputs, notes=notes))
    assert_same(found.variables, variables)
    assert found.model == model
    assert (found.model.bn_groups, found.model.dtype) == (4, jax.numpy.bfloat16)
    assert (found.inputs, found.notes) == (inputs, notes)
    assert found.versions["jax"] == jax.__version__


def test_fields_that_networks_had_once_are_left_out_where_they_change_nothing():
    settings = to_json(wide_resnet("fixup"))
    settings["fields"] |= {"survival": 0.5, "unroll": 2, "shared": "none"}
    assert from_json(settings) == wide_resnet("fixup")
    settings["fields"] |= {"shared": "all"}
    with pytest.raises(TypeError, match="shared"):
        from_json(settings)


def test_the_file_is_what_the_format_says(tmp_path):
    """Read by hand, and the same bytes for the same network."""
    path, made = saved(tmp_path / "one")
    header, body = taken_apart(path)
    kernel = made.variables["params"]["stage_1"]["first"]["conv_1"]["kernel"]
    entry = header["params/stage_1/first/conv_1/kernel"]
    start, end = entry["data_offsets"]
    assert (entry["dtype"], entry["shape"]) == ("F32", list(kernel.shape))
    assert np.array_equal(np.frombuffer(body[start:end], "<f4").reshape(kernel.shape), kernel)
    assert saved(tmp_path / "two")[0].read_bytes() == path.read_bytes()


def test_one_vocabulary_for_both_languages_is_kept_once(tmp_path):
    model = smallest("transformer", "fixup")
    variables = drawn(model)
    names = set()
    for target in (b"one", b"another"):
        inputs = trained.Sentences("de", "en", b"one", target)
        path = trained.save(tmp_path / target.decode(), model, variables, inputs=inputs)
        assert trained.load(path).inputs == inputs
        names ^= {name for name in taken_apart(path)[0] if name.startswith("inputs/")}
    assert names == {"inputs/target_vocabulary"}


def test_what_a_file_cannot_hold_is_refused(tmp_path):
    model = wide_resnet(dataclasses.replace(schemes.get("plain"), name="mine"))
    with pytest.raises(ValueError, match="scheme='.*' is no registered scheme; expected"):
        trained.save(tmp_path / "net", model, drawn(model), inputs=takes())
    with pytest.raises(ValueError, match="of class SimpleNamespace found"):
        trained.save(tmp_path / "net", SimpleNamespace(num_classes=10), {}, inputs=takes())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bias", np.zeros(9, np.float32), r"shape \[9\]; expected \[10\]"),
        ("more", np.zeros(1), r"shape \[1\]; expected None"),
        ("bias", np.zeros(10, complex), "complex128"),
        ("bias", np.full(10, np.inf).astype(ml_dtypes.bfloat16), "NaN or infinite"),
    ],
)
def test_wrong_variables_are_refused_by_leaf(tmp_path, name, value, message):
    made = network()
    params = made.variables["params"]
    variables = {"params": {**params, "head": {**params["head"], name: value}}}
    with pytest.raises(ValueError, match=f"leaf 'params/head/{name}' .*{message}"):
        trained.save(tmp_path / "net", made.model, variables, inputs=made.inputs)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_left_alone(tmp_path):
    path, made = saved(tmp_path / "net")
    before = path.read_bytes()
    other = jax.tree.map(lambda leaf: leaf + 1, made.variables)
    with pytest.raises(FileExistsError, match="is there already; expected a new name"):
        trained.save(path, made.model, other, inputs=made.inputs)
    assert path.read_bytes() == before
    trained.save(path, made.model, other, inputs=made.inputs, overwrite=True)
    assert_same(trained.load(path).variables, other)


def test_what_is_no_network_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="gone"):
        trained.load(tmp_path / "gone")
    (tmp_path / "text").write_bytes(b"hello\n" * 100)
    assert "SafetensorError" in refused(tmp_path / "text")
    foreign = tmp_path / "foreign"
    foreign.write_bytes(safetensors.numpy.save({"w": np.zeros(3, np.float32)}))
    assert "its metadata 'nf_resnets' is missing" in refused(foreign)


def test_a_file_that_is_cut_off_is_refused_wherever(tmp_path):
    path, _ = saved(tmp_path / "net")
    data = path.read_bytes()
    for part in (*(data[:n] for n in (0, 7, 8, 100, len(data) // 2, len(data) - 1)), data + b"\0"):
        path.write_bytes(part)
        assert "SafetensorError" in refused(path)


def test_a_file_of_an_earlier_version_is_read(tmp_path):
    """Its manifest stood in an object beside a digest."""
    path, made = saved(tmp_path / "net")

    def wrap(manifest):
        whole = dict(manifest)
        manifest.clear()
        manifest |= {"sha256": "0", "manifest": whole | {"leaves": {}}}

    forge(path, wrap)
    assert_same(trained.load(path).variables, made.variables)
