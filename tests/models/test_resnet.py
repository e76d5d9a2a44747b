"""ImageNet's ResNets against loops in NumPy; tests/trained compares them with PyTorch modules.

As in ``test_published.py`` every parameter is random, and the references compute in float64: the
differences are our float32's rounding, and in gradients the rare activation whose sign, or maximum
of a pool whose place, the rounding changes. What was seen is stated beside each tolerance.
"""

import functools
import itertools

import jax
import numpy as np
import pytest

from nf_resnets.models import ResNet
from tests.models.reference import numpy_average_pool, numpy_conv, numpy_max_pool, numpy_norm
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

VALUES = {
    "batchnorm": 3e-4,  # statistics of few values, in 30 to 50 norms, magnify the rounding
    **dict.fromkeys(("fixup", "rescalenet", "skipinit", "nf_resnet", "groupnorm"), 1e-5),
    "rescalenet_published": 1e-5,
}
"""Of the largest logit; seen: 6e-5 with BatchNorm, 8e-7 in the others."""


def small(depth, scheme, **options):
    return ResNet(depth, scheme, stem_channels=4, num_classes=10, **options)


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

    def __init__(self, variables, scheme, version, *, basic):
        tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
        self.params, self.stats = tree["params"], tree.get("batch_stats", {})
        self.constants = functools.partial(constants, scheme)
        self.scheme = scheme.removesuffix("_published")
        self.version, self.basic = version, basic

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
        return numpy_norm(x, p, stats, name, self.scheme, True)

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
    reference = NumpyResNet(variables, scheme, version, basic=depth == 18)
    expected, stats = reference(x)
    assert_close(logits, expected, VALUES[scheme])
    assert_close(dict(updated).get("batch_stats", {}), stats, VALUES[scheme])
