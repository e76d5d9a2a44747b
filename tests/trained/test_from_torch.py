"""Published checkpoints: every tensor in its leaf, the same logits, and what is refused."""

import functools
import re
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from nf_resnets import models, training
from nf_resnets.trained import TrainedError, from_torch
from tests.models.reference import torch_names
from tests.models.trees import assert_close, images, quick_jit, random_variables
from tests.trained.networks import assert_same

VALUES = 1e-5  # of the largest logit; seen: 8e-7, float32 in ours and float64 in PyTorch

CLASSES = 7
NARROW = {"stem_channels": 4, "num_classes": CLASSES}

TIMM_NF = {
    r"^layer1": "stages.0", r"^layer2": "stages.1", r"^layer3": "stages.2", r"^layer4": "stages.3",
    r"^stem": "stem.conv", "conv_": "conv", "shortcut": "downsample.conv", r"\.kernel$": ".weight",
    r"^head": "head.fc",
}  # fmt: skip
NORM = {  # of a layer with BatchNorm, in torch_names' spelling of our tree
    r"\.scale$": ".weight", r"\.mean$": ".running_mean", r"\.var$": ".running_var",
}  # fmt: skip
KERNEL = {r"\.kernel$": ".weight", r"^head\.": "fc."}
FIXUP = {
    r"^stem": "conv1", r"^bias_stem": "bias1", r"^bias_head": "bias2", "conv_": "conv",
    r"bias_(\d)": r"bias\1", "multiplier": "scale", "shortcut": "downsample", **KERNEL,
}  # fmt: skip
BATCH_NORM = {
    "norm_shortcut": "downsample.1", "shortcut": "downsample.0", r"^stem": "conv1",
    r"^norm_stem": "bn1", "conv_": "conv", "norm_": "bn", **KERNEL, **NORM,
}  # fmt: skip
RESCALE = {
    "bias_shortcut": "downsample.1", "shortcut": "downsample.2", r"bias_(\d)a": r"addbias\1",
    r"^bias_stem": "addbias1", r"^bias_head": "addbias2", r"^stem": "conv1", "conv_": "conv",
    "multiplier": "_scale", r"\.vector$": "._bias", **KERNEL,
}  # fmt: skip
CHECKPOINTS = {  # the network's name, its scheme, and the names of its tensors
    "fixup-cifar": ("cifar-resnet-20", "fixup", FIXUP),
    "fixup-imagenet": ("resnet-26", "fixup", FIXUP),
    "torchvision-resnet": ("resnet-34", "batchnorm", BATCH_NORM),
    "rescalenet": ("resnet-26", "rescalenet_published", RESCALE),
    "timm-nf-resnet": ("resnet-26-v2", "nf_resnet_timm", TIMM_NF),
}


@functools.cache
def drawn(name):
    *network, names = CHECKPOINTS[name]
    model = models.make(*network, **NARROW)
    variables = random_variables(model, 5, image_shape=(32, 32, 3))
    state_dict = torch_names(variables, names)
    for key, array in list(state_dict.items()):
        if key.endswith(".gain"):
            state_dict[key] = array.reshape(-1, 1, 1, 1)
        if key.endswith("._bias"):
            state_dict[key.replace("_bias", "init_mean")] = np.zeros_like(array)
            state_dict[key.replace("_bias", "count")] = np.array(8)
    return model, variables, state_dict


def checkpoint(name="fixup-cifar", **changes):
    """A network of ours, its variables, and those as a published checkpoint has them."""
    model, variables, state_dict = drawn(name)
    state_dict = {key: array.astype(np.float32) for key, array in state_dict.items()} | changes
    return model, variables, {key: a for key, a in state_dict.items() if a is not None}


def load(source, name="fixup-cifar", **options):
    return from_torch(source, *CHECKPOINTS[name][:2], **{"stem_channels": 4, **options})


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_tensor_finds_its_leaf(name):
    """Against an independent naming and permutation of the tree, bit for bit."""
    model, variables, state_dict = checkpoint(name)
    made = load(state_dict, name)
    # The classes are counted in the checkpoint.
    assert made.model == model and made.inputs.class_names == tuple("0123456")
    assert made.notes["from_torch"] == name
    assert_same(made.variables, variables)
    # A square kernel has been turned, too: it would pass for its own transpose by its shape.
    kernel = made.variables["params"]["stage_1"]["rest"]["conv_1"]["kernel"]
    assert not np.array_equal(kernel, kernel.swapaxes(-1, -2))


def test_the_names_are_the_published_ones():
    """Some typed from the published code: the tests' naming and ours could be wrong alike."""
    published = {
        "fixup-cifar": "conv1.weight bias1 layer2.0.bias1a layer3.2.conv2.weight layer1.0.scale "
        "layer1.1.bias2b bias2 fc.weight fc.bias",
        "fixup-imagenet": "conv1.weight bias1 layer1.0.bias3b layer4.0.downsample.weight "
        "layer2.1.conv3.weight layer4.1.scale bias2 fc.bias",
        "torchvision-resnet": "conv1.weight bn1.running_var layer1.2.bn2.bias layer4.0.downsample"
        ".1.running_mean layer2.0.downsample.0.weight layer3.5.conv2.weight fc.bias",
        "rescalenet": "conv1.weight addbias1._bias layer1.0.addbias3.init_mean layer2.1._scale "
        "layer1.0.downsample.1.count layer4.0.downsample.2.weight addbias2.init_mean fc.weight",
        "timm-nf-resnet": "stem.conv.gain stages.0.0.downsample.conv.bias stages.3.1.conv3.gain "
        "stages.1.1.conv2.weight head.fc.weight",
    }
    for name, keys in published.items():
        _, _, state_dict = checkpoint(name)
        assert set(keys.split()) <= set(state_dict), name


def test_blocks_are_stacked_in_the_order_of_their_numbers():
    variables = random_variables(models.make("cifar-resnet-74", "fixup", **NARROW), 1)
    state_dict = torch_names(variables, FIXUP)
    assert "layer1.10.scale" in state_dict
    # In the order of their names, block 10 stands before block 2.
    made = from_torch(dict(sorted(state_dict.items())), "cifar-resnet-74", "fixup", stem_channels=4)
    assert_same(made.variables, variables)


def test_wrappers_are_peeled_and_nothing_else():
    """Of the whole network, and of some modules, as in PyTorch's example for VGG."""
    _, variables, own = checkpoint()
    wrapped = {key.replace("layer1.", "layer1.module."): array for key, array in own.items()}
    wrapped = {f"module._orig_mod.{key}": array for key, array in wrapped.items()}
    wrapped["n_averaged"] = np.array(3)  # of AveragedModel
    assert_same(load(wrapped).variables, variables)
    for content, message in (
        ({"epoch": np.array(9), "state_dict": own}, "'state_dict' is of dict"),
        (own | {"module.conv1.weight": np.array(3)}, r"'module\.conv1\.weight' is there a second"),
    ):
        with pytest.raises(TrainedError, match=message):
            load(content)


# --- PyTorch: the published modules' logits -----------------------------------------------------

MODULES = {  # the module, our network, what it is called there, and the sides of the images
    "fixup-cifar": (
        lambda m: m.FixupResNet((3, 3, 3)), ("cifar-resnet-20", "fixup"), FIXUP, (9, 12)
    ),
    "fixup-imagenet": (
        lambda m: m.FixupResNet((3, 4, 6, 3), 4), ("resnet-50", "fixup"), FIXUP, (64, 64)
    ),
    "torchvision-resnet": (
        lambda m: m.BatchNormResNet((3, 4, 6, 3), 4), ("resnet-50", "batchnorm"), BATCH_NORM,
        (64, 64),
    ),
    "torchvision-wide-resnet": (
        lambda m: m.BatchNormResNet((2, 2, 2, 2), 4, wide=2), ("resnet-26", "batchnorm"),
        BATCH_NORM, (33, 47),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_the_logits_are_the_published_modules(name):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from tests.trained import torch_modules

    build, network, names, sides = MODULES[name]
    module, options = build(torch_modules), {"width": 2} if "wide" in name else {}
    drawn = torch_names(random_variables(models.make(*network, **NARROW, **options), 5), names)
    drawn = {key: torch.tensor(array) for key, array in drawn.items()}
    left = module.load_state_dict(drawn, strict=False)
    assert not left.unexpected_keys
    assert all(key.endswith("num_batches_tracked") for key in left.missing_keys)
    made = from_torch(module.state_dict(), *network, stem_channels=4, **options)
    x = images(4, 2, *sides, 3)
    expected = torch_modules.logits_of(module, x)
    apply = training.eval_apply(made.model)
    logits, _ = quick_jit(lambda v, x: apply(v["params"], v.get("batch_stats"), x, None))(
        made.variables, x
    )
    assert_close(logits, expected, VALUES)


# --- What is refused ----------------------------------------------------------------------------


def test_what_matches_nothing_is_listed():
    zeros = np.zeros((4, 4, 3, 3), np.float32)
    changes = {"layer1.0.conv9.weight": zeros, "ema": zeros, "layer1.2.scale": None,
               "layer2.0.bias1a": None}  # fmt: skip
    with pytest.raises(
        TrainedError,
        match=r"fit the CifarResNet: 2 tensors without a leaf, layer1\.0\.conv9\.weight, ema; "
        r"2 leaves without a tensor, stage_1/2/multiplier \(layer1\.2\.scale\), "
        r"stage_2/0/bias_1a \(layer2\.0\.bias1a\)",
    ):
        load(checkpoint(**changes)[2])


@pytest.mark.parametrize(
    ("key", "array", "fault"),
    [
        ("fc.weight", np.zeros((16, 7)), r"has shape \[16, 7\]; expected \[7, 16\]"),
        ("layer2.1.scale", np.zeros(2), r"has shape \[2\]; expected \[\]"),
        ("bias1", np.array([1e300]), "has NaN or infinite"),
        ("bias1", np.array([1j]), "is of complex128"),
        ("bias1", np.array([1]), "has dtype int64"),
    ],
)
def test_another_shape_and_what_is_no_weight_are_refused(key, array, fault):
    with pytest.raises(TrainedError, match=rf"'{re.escape(key)}' {fault}"):
        load(checkpoint(**{key: array})[2])


@pytest.mark.parametrize(
    ("name", "network", "scheme", "fault"),
    [
        ("torchvision-resnet", "resnet-34", "batchnorm_sqrt_half", "what no published"),
        ("torchvision-resnet", "resnet-34-v2", "batchnorm", r"a ResNet\(version=2\) with scheme="),
        ("fixup-imagenet", "cifar-resnet-20", "fixup", "tensors without a leaf, layer1.0.bias3a"),
        ("rescalenet", "resnet-26", "rescalenet", r"expected .* rescalenet_published \("),
        ("timm-nf-resnet", "resnet-26-v2", "nf_resnet", "scheme='nf_resnet' found.*nf_resnet_timm"),
    ],
)
def test_what_no_weight_says_is_refused_by_its_name(name, network, scheme, fault):
    _, _, state_dict = checkpoint(name)
    with pytest.raises(TrainedError, match=fault):
        from_torch(state_dict, network, scheme, stem_channels=4)


def test_a_bias_that_still_follows_its_batches_is_refused():
    _, _, state_dict = checkpoint("rescalenet", **{"addbias1.count": np.array(3)})
    state_dict["addbias1.init_mean"] += 0.5
    with pytest.raises(TrainedError, match=r"addbias1\.count=3 found.*expected 8"):
        load(state_dict, "rescalenet")
    made = load(state_dict | {"addbias1.count": np.array(8)}, "rescalenet")
    np.testing.assert_array_equal(
        made.variables["params"]["bias_stem"]["vector"],
        (state_dict["addbias1._bias"] - np.float32(0.5)).ravel(),
    )


# --- Files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_a_safetensors_file_needs_no_torch(tmp_path, monkeypatch, dtype):
    monkeypatch.setitem(sys.modules, "torch", None)
    _, variables, state_dict = checkpoint()
    path = tmp_path / "net.safetensors"
    state_dict = {key: np.asarray(a, dtype) for key, a in state_dict.items()}
    safetensors.numpy.save_file(state_dict, path)
    made = load(path)
    assert_same(made.variables, load(state_dict).variables)
    if dtype == np.float32:
        assert_same(made.variables, variables)
    for name, content, fault in (
        ("cut.safetensors", path.read_bytes()[:100], "safetensors cannot be read"),
        ("net.pt", b"PK\x03\x04", "net.pt cannot be read: it was written by torch.save"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(TrainedError, match=fault):
            load(tmp_path / name)


def test_tensors_of_torch_become_float32():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    _, variables, state_dict = checkpoint()
    tensors = {key: torch.from_numpy(np.array(a)) for key, a in state_dict.items()}
    assert_same(load(tensors).variables, variables)
    half = {key: tensor.bfloat16().requires_grad_() for key, tensor in tensors.items()}
    assert load(half).variables["params"]["bias_head"].dtype == np.float32
