"""Residual networks against loops in NumPy; tests/trained compares them with PyTorch modules.

Every parameter is random, the scalars too: at a scheme's own initialisation most of a network is
zero, and a wrong bias would not be seen. The reference computes in float64, so that a difference is
our float32's rounding: 6e-8 a sum, which grows with the number of layers and with cancellation. A
bias left out or a pixel shifted gives 1e-2 and more.
"""

import functools
import itertools

import jax
import numpy as np
import pytest

from nf_resnets import schemes
from nf_resnets.models import CifarResNet, ResNet, WideResNet
from tests.models.reference import numpy_average_pool, numpy_conv, numpy_max_pool, numpy_norm
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

# Of the largest logit; seen: 8e-7. With BatchNorm on ImageNet's ResNets, 6e-5: statistics of few
# values, in 30 to 50 norms, magnify the rounding.
VALUES, BEHIND_NORMS = 1e-5, 3e-4
GAINS = {"nf_resnet": (2 / (1 - 1 / np.pi)) ** 0.5, "nf_resnet_timm": 1.7139588594436646}


def constants(scheme, transitions):
    """``(residual, identity, beta)`` of each branch, from the papers' formulas."""
    L, variance = len(transitions), 1.0
    for k, transition in enumerate(transitions, start=1):
        if scheme == "rescalenet":
            yield L**-0.5, ((k + L - 1) / (k + L)) ** 0.5, 1.0
        elif scheme == "rescalenet_published":
            yield L**-0.5, ((k + L - 2) / (k + L - 1)) ** 0.5, 1.0
        elif scheme in GAINS:
            yield 0.2, 1.0, variance**0.5
            variance = (1.0 if transition else variance) + 0.2**2
        elif scheme == "sqrt_half":
            yield 0.5**0.5, 0.5**0.5, 1.0
        else:
            yield 1.0, 1.0, 1.0


class NumpyResNet:
    """Networks of each anatomy, with two layers in a branch or, in a ResNet-26, three."""

    def __init__(self, model, variables, *, train=True):
        variables = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
        self.params, self.stats = variables["params"], variables.get("batch_stats", {})
        self.model, self.scheme, self.train = model, model.scheme, train
        self.imagenet, self.padded = isinstance(model, ResNet), isinstance(model, CifarResNet)
        self.basic = not self.imagenet or model.depth == 18
        self.post = self.padded or (self.imagenet and model.version == 1)
        # Of an average pool, where the stride is.
        self.pooled = "rescalenet" in model.scheme or model.scheme == "nf_resnet_timm"

    def conv(self, x, p, stride=1, after_relu=True):
        kernel = p["kernel"]
        if self.scheme in GAINS:
            timm = self.scheme == "nf_resnet_timm"
            centred = kernel - kernel.mean((0, 1, 2))
            variance = (centred**2).mean((0, 1, 2)) + (1e-5 if timm else 0)
            kernel = centred / np.sqrt(variance * kernel[..., 0].size) * p["gain"]
            kernel = kernel * (GAINS[self.scheme] if after_relu or timm else 1)
        return numpy_conv(x, kernel, stride) + p.get("bias", 0)

    def center(self, x, p, name):
        """Adds the bias before a layer, which must be there where the scheme asks for it."""
        if self.scheme == "fixup":
            return x + p[name]
        return x + p[name]["vector"] if "rescalenet" in self.scheme else x

    def shift(self, x, p, name):
        return x + p[name] if self.scheme == "fixup" else x

    def norm(self, x, p, stats, name):
        return numpy_norm(x, p, stats, name, self.scheme, self.train)

    def __call__(self, x):
        params, stats = self.params, self.stats
        x = self.conv(x.astype(np.float64), params["stem"], 1 + self.imagenet, after_relu=False)
        if self.post:
            x = self.norm(x, params, stats, "norm_stem")
            x = np.maximum(self.center(x, params, "bias_stem"), 0)
        if self.imagenet:
            x = numpy_max_pool(x, 3, 2, padding=1)
        # Where the number of channels or the resolution changes.
        widened = isinstance(self.model, WideResNet) or not self.basic
        starts = [
            (index == 0 and (stage > 0 or widened))
            for stage, size in enumerate(self.model.sizes)
            for index in range(size)
        ]
        blocks = zip(starts, constants(self.scheme, starts), strict=True)
        block = self.post_activation if self.post else self.pre_activation
        for stage in range(1, len(self.model.sizes) + 1):
            name = f"stage_{stage}"
            running = block_trees(stats[name]) if stats else itertools.repeat({})
            for index, (p, s) in enumerate(zip(block_trees(params[name]), running, strict=False)):
                start, of_branch = next(blocks)
                assert ("shortcut" in p) == (start and not self.padded)
                x = block(x, p, s, 2 if stage > 1 and index == 0 else 1, of_branch)
        if not self.post:
            x = self.norm(x, params, stats, "norm_head")
            x = np.maximum(self.shift(x, params, "bias_relu"), 0)
        x = self.center(x, params, "bias_head").mean((1, 2))
        return x @ params["head"]["kernel"] + params["head"]["bias"], stats

    def shortcut(self, x, p, stride):
        if self.pooled:
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
            x = self.shortcut(x if self.pooled else biased, p, stride)
            x = self.norm(x, p, stats, "norm_shortcut")
        elif stride == 2:  # every second pixel, and zeros for the new channels
            x = biased[:, ::2, ::2]
            x = np.concatenate([x, np.zeros_like(x)], axis=3)
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


def assert_matches_numpy(model, x, tolerance=VALUES, *, train=True):
    variables = random_variables(model, model.depth, x.shape[1:])
    apply = functools.partial(model.apply, train=train, mutable=["batch_stats"])
    logits, updated = quick_jit(apply)(variables, x)
    expected, stats = NumpyResNet(model, variables, train=train)(x)
    assert_close(logits, expected, tolerance)
    assert_close(dict(updated).get("batch_stats", {}), stats, tolerance)


@pytest.mark.parametrize(
    ("depth", "side"), [(20, 32), (20, 9), pytest.param(110, 32, marks=pytest.mark.slow)]
)
def test_fixups_published_resnet_for_cifar(depth, side):
    assert_matches_numpy(CifarResNet(depth=depth, scheme="fixup"), images(1, 2, side, side, 3))


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", ["fixup", "skipinit", "batchnorm", "sqrt_half", "groupnorm"])
def test_wide_resnets(scheme):
    model = WideResNet(depth=16, width=2, scheme=scheme)
    for train in (True, False) if scheme == "batchnorm" else (True,):
        assert_matches_numpy(model, images(8, 3, 9, 12, 3), train=train)


POST = ("fixup", "rescalenet", "rescalenet_published", "skipinit", "batchnorm", "groupnorm")
PRE = ("fixup", "nf_resnet", "rescalenet", "skipinit", "batchnorm", "groupnorm", "nf_resnet_timm")
CASES = [(26, 1, scheme) for scheme in POST] + [(26, 2, scheme) for scheme in PRE]
BASIC = [(18, 1, "fixup"), (18, 1, "rescalenet"), (18, 1, "batchnorm"), (18, 2, "fixup"),
         (18, 2, "nf_resnet")]  # fmt: skip


@pytest.mark.every(6)
@pytest.mark.parametrize(("depth", "version", "scheme"), BASIC + CASES)
def test_resnets_for_imagenet(depth, version, scheme):
    """On images with odd sides after the first strides; RescaleNet's pool does not divide them."""
    model = ResNet(depth, scheme, version, stem_channels=4, num_classes=10)
    tolerance = BEHIND_NORMS if scheme == "batchnorm" else VALUES
    assert_matches_numpy(model, images(8, 8, 41, 33, 3), tolerance)


def test_timms_branches_start_at_zero_by_their_last_gains():
    model = ResNet(26, "nf_resnet_timm", version=2, stem_channels=4, num_classes=10)
    params = random_variables(model, 0, (32, 32, 3))["params"]
    result = schemes.get("nf_resnet_timm").init(params, model.num_branches)
    for stage in range(1, 5):
        for block in block_trees(result[f"stage_{stage}"]):
            zeros = [not np.any(block[f"conv_{j}"]["gain"]) for j in (1, 2, 3)]
            assert "alpha" not in block and zeros == [False, False, True]
