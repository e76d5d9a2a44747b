"""ImageNet's ResNets against independent references: loops in NumPy, and PyTorch modules.

As in ``test_published.py`` every parameter is random, and the references compute in float64: the
differences are our float32's rounding, and in gradients the rare activation whose sign, or maximum
of a pool whose place, the rounding changes. What was seen is stated beside each tolerance.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models import ResNet
from tests.models.reference import (
    logits_and_grads,
    numpy_average_pool,
    numpy_conv,
    numpy_max_pool,
    numpy_norm,
    torch_names,
)
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

VALUES = {
    "batchnorm": 3e-4,  # statistics of few values, in 30 to 50 norms, magnify the rounding
    **dict.fromkeys(("fixup", "rescalenet", "skipinit", "nf_resnet", "groupnorm"), 1e-5),
    "rescalenet_published": 1e-5,
}
"""Of the largest logit; seen: 6e-5 with BatchNorm, 8e-7 in the others."""
GRADIENTS = 3e-4  # of a leaf's largest entry; seen: 4e-5
ROUNDING = 5e-5  # the same operations, fused differently: of a leaf's largest entry

BLOCKS = {18: (2, 2, 2, 2), 26: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def small(depth, scheme, **options):
    return ResNet(depth, scheme, stem_channels=4, num_classes=10, **options)


# --- NumPy -------------------------------------------------------------------------------------


def constants(scheme, transitions):
    """``(residual, identity, beta)`` of each branch, from the papers' formulas."""
    L, variance = len(transitions), 1.0
    for k, transition in enumerate(transitions, start=1):
        if scheme == "rescalenet":
            yield L**-0.5, ((k + L - 1) / (k + L)) ** 0.5, 1.0
        elif scheme == "rescalenet_published":
            yield L**-0.5, ((k + L - 2) / (k + L - 1)) ** 0.5, 1.0
        elif scheme == "nf_resnet":
            yield 0.2, 1.0, variance**0.5
            variance = (1.0 if transition else variance) + 0.2**2
        else:
            yield 1.0, 1.0, 1.0


class NumpyResNet:
    """ResNet-18 and ResNet-26, versions 1 and 2, of each anatomy."""

    def __init__(self, variables, scheme, version, *, basic, train):
        tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
        self.params, self.stats = tree["params"], tree.get("batch_stats", {})
        self.constants = functools.partial(constants, scheme)
        self.scheme = scheme.removesuffix("_published")
        self.version, self.basic, self.train = version, basic, train

    def conv(self, x, p, stride=1, after_relu=True):
        kernel = p["kernel"]
        if self.scheme == "nf_resnet":
            fan_in = kernel[..., 0].size
            centred = kernel - kernel.mean((0, 1, 2))
            kernel = centred / np.sqrt((centred**2).mean((0, 1, 2)) * fan_in) * p["gain"]
            kernel = kernel * ((2 / (1 - 1 / np.pi)) ** 0.5 if after_relu else 1)
        return numpy_conv(x, kernel, stride) + p.get("bias", 0)

    def center(self, x, p, name):
        """Adds the bias before a layer, which must be there where the scheme asks for it."""
        if self.scheme == "fixup":
            return x + p[name]
        return x + p[name]["vector"] if self.scheme == "rescalenet" else x

    def shift(self, x, p, name):
        return x + p[name] if self.scheme == "fixup" else x

    def norm(self, x, p, stats, name):
        return numpy_norm(x, p, stats, name, self.scheme, self.train)

    def __call__(self, x):
        params, stats = self.params, self.stats
        x = self.conv(x.astype(np.float64), params["stem"], 2, after_relu=False)
        if self.version == 1:
            x = self.norm(x, params, stats, "norm_stem")
            x = np.maximum(self.center(x, params, "bias_stem"), 0)
        x = numpy_max_pool(x, 3, 2, padding=1)
        # Where the number of channels or the resolution changes.
        starts = [not self.basic, False] + [True, False] * 3
        of_branch = self.constants(starts)
        block = self.post_activation if self.version == 1 else self.pre_activation
        for stage in (1, 2, 3, 4):
            name = f"stage_{stage}"
            running = block_trees(stats[name]) if stats else itertools.repeat({})
            for index, (p, s) in enumerate(zip(block_trees(params[name]), running, strict=False)):
                stride = 2 if stage > 1 and index == 0 else 1
                assert ("shortcut" in p) == starts[2 * (stage - 1) + index]
                x = block(x, p, s, stride, next(of_branch))
        if self.version == 2:
            x = self.norm(x, params, stats, "norm_head")
            x = np.maximum(self.shift(x, params, "bias_relu"), 0)
        x = self.center(x, params, "bias_head").mean((1, 2))
        return x @ params["head"]["kernel"] + params["head"]["bias"], stats

    def shortcut(self, x, p, stride):
        if self.scheme == "rescalenet":
            x, stride = self.center(numpy_average_pool(x, stride), p, "bias_shortcut"), 1
        return self.conv(x, p["shortcut"], stride)

    def post_activation(self, x, p, stats, stride, constants):
        residual, identity, _ = constants
        strides = (stride, 1) if self.basic else (1, stride, 1)
        biased = h = self.center(x, p, "bias_1a")
        for j, stride_j in enumerate(strides, start=1):
            h = h if j == 1 else self.center(np.maximum(h, 0), p, f"bias_{j}a")
            h = self.norm(self.conv(h, p[f"conv_{j}"], stride_j), p, stats, f"norm_{j}")
            scalar = p.get("multiplier", 1) * p.get("alpha", 1) if j == len(strides) else 1
            h = self.shift(scalar * h, p, f"bias_{j}b")
        if "shortcut" in p:
            x = self.shortcut(x if self.scheme == "rescalenet" else biased, p, stride)
            x = self.norm(x, p, stats, "norm_shortcut")
        return np.maximum(identity * x + residual * h, 0)

    def pre_activation(self, x, p, stats, stride, constants):
        residual, identity, beta = constants
        strides = (stride, 1) if self.basic else (1, stride, 1)
        h, activated = x / beta, None
        for j, stride_j in enumerate(strides, start=1):
            h = self.norm(h, p, stats, f"norm_{j}")
            h = np.maximum(self.shift(h, p, f"bias_{2 * j - 1}"), 0)
            activated = h if activated is None else activated
            h = self.conv(self.center(h, p, f"bias_{2 * j}"), p[f"conv_{j}"], stride_j)
        if "shortcut" in p:
            x = self.shortcut(activated, p, stride)
        return identity * x + residual * p.get("multiplier", 1) * p.get("alpha", 1) * h


POST = ("fixup", "rescalenet", "rescalenet_published", "skipinit", "batchnorm", "groupnorm")
PRE = ("fixup", "nf_resnet", "rescalenet", "skipinit", "batchnorm", "groupnorm")
CASES = [(1, scheme) for scheme in POST] + [(2, scheme) for scheme in PRE]


BASIC = [(1, "fixup"), (1, "rescalenet"), (1, "batchnorm"), (2, "fixup"), (2, "nf_resnet")]


@pytest.mark.every(6)
@pytest.mark.parametrize(
    ("depth", "version", "scheme"),
    [(18, *case) for case in BASIC] + [(26, *case) for case in CASES],
)
def test_matches_numpy(depth, version, scheme):
    """On images with odd sides after the first strides; RescaleNet's pool does not divide them."""
    model = small(depth, scheme, version=version)
    variables, x = random_variables(model, depth), images(8, 8, 41, 33, 3)
    apply = functools.partial(model.apply, train=True, mutable=["batch_stats"])
    logits, updated = quick_jit(apply)(variables, x)
    reference = NumpyResNet(variables, scheme, version, basic=depth == 18, train=True)
    expected, stats = reference(x)
    assert_close(logits, expected, VALUES[scheme])
    assert_close(dict(updated).get("batch_stats", {}), stats, VALUES[scheme])


def test_evaluation_uses_the_running_statistics():
    for version in (1, 2):
        model = small(26, "batchnorm", version=version)
        variables, x = random_variables(model, 3), images(4, 2, 32, 32, 3)
        reference = NumpyResNet(variables, "batchnorm", version, basic=False, train=False)
        assert_close(quick_jit(model.apply)(variables, x), reference(x)[0], VALUES["batchnorm"])


# --- PyTorch, the published modules ------------------------------------------------------------


def published_resnet(torch, scheme, blocks_per_stage, width, *, basic):
    """Version 1 with the structure and the names of the authors' releases, and of torchvision."""
    nn = torch.nn
    expansion = 1 if basic else 4
    L = sum(blocks_per_stage)
    first = 0 if scheme == "rescalenet_published" else 1  # the first block's k
    scheme = scheme.removesuffix("_published")

    def scalar(value):
        return nn.Parameter(torch.full((1,), float(value)))

    def conv(c_in, c_out, size, stride=1):
        return nn.Conv2d(c_in, c_out, size, stride=stride, padding=size // 2, bias=False)

    class Bias2D(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self._bias = nn.Parameter(torch.zeros(1, channels, 1, 1))

        def forward(self, x):
            return x + self._bias

    def downsample(c_in, c_out, stride):
        if scheme == "fixup":
            return conv(c_in, c_out, 1, stride)
        if scheme == "batchnorm":
            return nn.Sequential(conv(c_in, c_out, 1, stride), nn.BatchNorm2d(c_out))
        pool = nn.AvgPool2d(stride) if stride != 1 else nn.Sequential()
        return nn.Sequential(pool, Bias2D(c_in), conv(c_in, c_out, 1))

    class Basic(nn.Module):
        def __init__(self, k, c_in, planes, stride):
            super().__init__()
            self.conv1 = conv(c_in, planes, 3, stride)
            self.conv2 = conv(planes, planes, 3)
            finish(self, k, c_in, planes, planes, stride)

        def forward(self, x):
            return forward(self, x, (self.conv1, self.conv2))

    class Bottleneck(nn.Module):
        def __init__(self, k, c_in, planes, stride):
            super().__init__()
            self.conv1 = conv(c_in, planes, 1)
            self.conv2 = conv(planes, planes, 3, stride)
            self.conv3 = conv(planes, 4 * planes, 1)
            finish(self, k, c_in, planes, 4 * planes, stride)

        def forward(self, x):
            return forward(self, x, (self.conv1, self.conv2, self.conv3))

    def finish(block, k, c_in, planes, c_out, stride):
        m = 2 if basic else 3
        for j in range(1, m + 1):
            if scheme == "fixup":
                setattr(block, f"bias{j}a", scalar(0))
                setattr(block, f"bias{j}b", scalar(0))
            elif scheme == "batchnorm":
                setattr(block, f"bn{j}", nn.BatchNorm2d(c_out if j == m else planes))
            else:
                setattr(block, f"addbias{j}", Bias2D(c_in if j == 1 else planes))
        if scheme == "fixup":
            block.scale = scalar(1)
        if scheme == "rescalenet":
            block._scale = scalar(1)
            block.residual, block.identity = L**-0.5, ((k + L - 1) / (k + L)) ** 0.5
        changes = stride != 1 or c_in != c_out
        block.downsample = downsample(c_in, c_out, stride) if changes else None

    def forward(block, x, convs):
        relu, short = torch.relu, block.downsample
        out = x
        if scheme == "batchnorm":
            for j, layer in enumerate(convs, start=1):
                out = getattr(block, f"bn{j}")(layer(out))
                out = relu(out) if j < len(convs) else out
            return relu(out + (x if short is None else short(x)))
        if scheme == "fixup":
            for j, layer in enumerate(convs, start=1):
                out = layer(out + getattr(block, f"bias{j}a"))
                out = out * block.scale if j == len(convs) else out
                out = out + getattr(block, f"bias{j}b")
                out = relu(out) if j < len(convs) else out
            return relu(out + (x if short is None else short(x + block.bias1a)))
        for j, layer in enumerate(convs, start=1):
            out = layer(getattr(block, f"addbias{j}")(out))
            out = relu(out) if j < len(convs) else out
        out = out * (block._scale * block.residual)
        return relu(out + block.identity * (x if short is None else short(x)))

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = conv(3, width, 7, 2)
            if scheme == "fixup":
                self.bias1, self.bias2 = scalar(0), scalar(0)
            elif scheme == "batchnorm":
                self.bn1 = nn.BatchNorm2d(width)
            else:
                self.addbias1, self.addbias2 = Bias2D(width), Bias2D(8 * width * expansion)
            self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
            c_in, k = width, first
            for stage, blocks in enumerate(blocks_per_stage):
                planes, layer = width * 2**stage, []
                for index in range(blocks):
                    stride = 2 if stage > 0 and index == 0 else 1
                    layer.append((Basic if basic else Bottleneck)(k, c_in, planes, stride))
                    c_in, k = planes * expansion, k + 1
                setattr(self, f"layer{stage + 1}", nn.Sequential(*layer))
            self.fc = nn.Linear(c_in, 10)

        def forward(self, x):
            x = self.conv1(x)
            if scheme == "fixup":
                x = x + self.bias1
            else:
                x = self.bn1(x) if scheme == "batchnorm" else self.addbias1(x)
            x = self.maxpool(torch.relu(x))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            if scheme == "rescalenet":
                x = self.addbias2(x)
            x = x.mean((2, 3))
            return self.fc(x + self.bias2 if scheme == "fixup" else x)

    return Network().double()


COMMON = {
    r"^stem\.kernel$": "conv1.weight",
    r"\.conv_(\d)\.kernel$": r".conv\1.weight",
    r"^head\.kernel$": "fc.weight",
    r"^head\.bias$": "fc.bias",
}
NAMES = {
    "fixup": {
        r"^bias_stem$": "bias1",
        r"^bias_head$": "bias2",
        r"\.bias_(\d\w)$": r".bias\1",
        r"\.multiplier$": ".scale",
        r"\.shortcut\.kernel$": ".downsample.weight",
    },
    "rescalenet": {
        r"^bias_stem\.vector$": "addbias1._bias",
        r"^bias_head\.vector$": "addbias2._bias",
        r"\.bias_(\d)a\.vector$": r".addbias\1._bias",
        r"\.multiplier$": "._scale",
        r"\.bias_shortcut\.vector$": ".downsample.1._bias",
        r"\.shortcut\.kernel$": ".downsample.2.weight",
    },
    "batchnorm": {
        r"^norm_stem\.": "bn1.",
        r"\.norm_(\d)\.": r".bn\1.",
        r"\.shortcut\.kernel$": ".downsample.0.weight",
        r"\.norm_shortcut\.": ".downsample.1.",
        r"\.scale$": ".weight",
        r"\.mean$": ".running_mean",
        r"\.var$": ".running_var",
    },
}
NAMES["rescalenet_published"] = NAMES["rescalenet"]


@pytest.mark.every(3)
@pytest.mark.parametrize("scheme", NAMES)
@pytest.mark.parametrize(
    ("depth", "width"), [(18, 8), (26, 8), pytest.param(50, 64, marks=pytest.mark.slow)]
)
def test_matches_the_published_module(depth, width, scheme):
    """Logits, gradients, statistics; once at ResNet-50's full size.

    There BatchNorm magnifies the rounding to 6e-5 of the logits, enough to turn the signs of a few
    activations among the last maps' 16 in a channel, and with them a tenth of a leaf's gradient:
    with BatchNorm the gradients are compared in the smaller networks only.
    """
    torch = pytest.importorskip("torch")
    model = ResNet(depth, scheme, stem_channels=width, num_classes=10)
    variables = random_variables(model, 1)
    x, labels = images(6, 4, 64, 64, 3), np.array([0, 3, 9, 3])

    module = published_resnet(torch, scheme, BLOCKS[depth], width, basic=depth == 18)
    names = COMMON | NAMES[scheme]
    theirs = torch_names(variables, names)
    tensors = {name: torch.from_numpy(array) for name, array in theirs.items()}
    missing, unexpected = module.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)

    expected = module(torch.from_numpy(x.transpose(0, 3, 1, 2).astype(float)))
    torch.nn.functional.cross_entropy(expected, torch.from_numpy(labels)).backward()
    logits, grads, stats = logits_and_grads(model, variables, x, labels)
    assert_close(logits, expected.detach().numpy(), VALUES[scheme])
    buffers = {k: v.numpy() for k, v in module.named_buffers() if not k.endswith("tracked")}
    assert_close(torch_names({"batch_stats": stats}, names), buffers, VALUES[scheme])
    if (depth, scheme) != (50, "batchnorm"):
        their_grads = {name: p.grad.numpy() for name, p in module.named_parameters()}
        assert_close(torch_names({"params": grads}, names), their_grads, GRADIENTS)


# --- One network, however it is computed -------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "scheme"), [(1, "rescalenet"), (1, "batchnorm"), (2, "nf_resnet")]
)
def test_scanned_unrolled_and_rematerialised_are_one_network(version, scheme):
    forms = [{}, {"unroll": 99}, {"remat": True}]
    models = [small(26, scheme, version=version, **form) for form in forms]
    variables, x = random_variables(models[0], 1), images(2, 4, 32, 32, 3)
    first, *others = (logits_and_grads(m, variables, x, np.arange(4)) for m in models)
    for other in others:
        assert_close(other, first, ROUNDING)


@pytest.mark.every(2)
@pytest.mark.parametrize(("version", "scheme"), [(1, "rescalenet"), (2, "nf_resnet")])
def test_logits_in_bfloat16_are_near_those_in_float32(version, scheme):
    """Every operation rounds to 2**-9; over some 30 in sequence that is 1 % to 2 %."""
    model = small(26, scheme, version=version)
    variables, x = random_variables(model, 1), images(2, 4, 32, 32, 3)
    one, other = (
        quick_jit(m.apply)(variables, x) for m in (model, model.clone(dtype=jnp.bfloat16))
    )
    assert other.dtype == jnp.float32
    assert 0 < np.abs(one - other).max() < 0.05 * np.abs(one).max()


@pytest.mark.every(4)
@pytest.mark.parametrize("scheme", ["fixup", "skipinit"])
@pytest.mark.parametrize("version", [1, 2])
def test_starts_with_every_branch_at_zero(version, scheme):
    """The sum of each block is its skip path, bit for bit, and is no zero."""
    model = small(26, scheme, version=version)
    params, x = random_variables(model, 1)["params"], images(2, 2, 32, 32, 3)
    params = schemes.get(scheme).init(params, model.num_branches)
    # Random biases are no part of the start.
    params = jax.tree_util.tree_map_with_path(
        lambda path, leaf: jnp.zeros_like(leaf) if "bias" in path[-1].key else leaf, params
    )
    _, found = quick_jit(lambda p, x: model.apply({"params": p}, x, mutable=["taps"]))(params, x)
    for stage in found["taps"].values():
        for block in stage.values():
            assert not np.any(block["branch"])
            assert np.any(block["skip"])
            np.testing.assert_array_equal(block["sum"], block["skip"])


@pytest.mark.parametrize("depth", [0, 20, 49, 110, "50", None])
def test_refuses_other_depths(depth):
    with pytest.raises(ValueError, match=f"depth={depth!r} found; a ResNet for ImageNet has 18, "):
        ResNet(depth)


@pytest.mark.parametrize("version", [0, 3, "1"])
def test_refuses_other_versions(version):
    with pytest.raises(ValueError, match=f"version={version!r} found; expected 1, post-act"):
        ResNet(50, version=version)


def test_refuses_what_does_not_fit():
    for wrong in ({"depth": 50, "width": 0}, {"depth": 18, "width": 2}):
        with pytest.raises(ValueError, match=r"width=\d found for depth=\d+; expected 1 or more"):
            ResNet(**wrong)
    with pytest.raises(ValueError, match="stem_channels=0 found; expected 1 or more"):
        ResNet(50, stem_channels=0)
    with pytest.raises(ValueError, match="'nf_resnet' is for pre_activation networks"):
        ResNet(50, "nf_resnet")
    assert ResNet(50, "nf_resnet", version=2).num_branches == 16
