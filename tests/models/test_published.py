"""The networks against independent references: loops in NumPy.

Every parameter is random, the scalars too: at a scheme's own initialisation most of a network is
zero, and a wrong bias would not be seen. The references compute in float64, so that a difference is
our float32's rounding: 6e-8 a sum, which grows with the number of layers and with cancellation, and
in gradients with the rare activation whose sign the rounding turns. What was seen is stated beside
each tolerance; a bias left out or a pixel shifted gives 1e-2 and more.
"""

import functools

import jax
import numpy as np
import pytest

from nf_resnets.models import CifarResNet, WideResNet
from tests.models.reference import numpy_conv, numpy_norm
from tests.models.trees import assert_close, block_trees, images, quick_jit, random_variables

VALUES = 1e-5  # of the largest logit; seen: 5e-7


def numpy_fixup_resnet(params, x):
    """The published Fixup ResNet for CIFAR."""
    params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
    x = numpy_conv(x.astype(np.float64), params["stem"]["kernel"], 1)
    x = np.maximum(x + params["bias_stem"], 0)
    for stage in (1, 2, 3):
        for index, p in enumerate(block_trees(params[f"stage_{stage}"])):
            stride = 2 if stage > 1 and index == 0 else 1
            h = numpy_conv(x + p["bias_1a"], p["conv_1"]["kernel"], stride)
            h = np.maximum(h + p["bias_1b"], 0)
            h = numpy_conv(h + p["bias_2a"], p["conv_2"]["kernel"], 1)
            h = p["multiplier"] * h + p["bias_2b"]
            if stride == 2:
                pooled = (x + p["bias_1a"])[:, ::2, ::2]
                x = np.concatenate([pooled, np.zeros_like(pooled)], axis=3)
            x = np.maximum(x + h, 0)
    pooled = x.mean((1, 2)) + params["bias_head"]
    return pooled @ params["head"]["kernel"] + params["head"]["bias"]


@pytest.mark.parametrize(
    ("depth", "side"), [(20, 32), (20, 9), pytest.param(110, 32, marks=pytest.mark.slow)]
)
def test_fixup_resnet_matches_numpy(depth, side):
    model = CifarResNet(depth=depth, scheme="fixup")
    params = random_variables(model, depth)["params"]
    x = images(1, 2, side, side, 3)
    logits = quick_jit(lambda p, x: model.apply({"params": p}, x))(params, x)
    assert_close(logits, numpy_fixup_resnet(params, x), VALUES)


def numpy_wide_resnet(variables, x, scheme, train):
    """A pre-activation WRN of each anatomy; returns the logits and the new running statistics."""
    tree = jax.tree.map(lambda leaf: np.array(leaf, np.float64), variables)
    params, stats = tree["params"], tree.get("batch_stats", {})

    def conv(x, p, stride=1):
        return numpy_conv(x, p["kernel"], stride) + p.get("bias", 0)

    def merge(x, h, p):
        if scheme == "sqrt_half":
            return np.sqrt(0.5) * x + np.sqrt(0.5) * h
        return x + p.get("multiplier", 1) * p.get("alpha", 1) * h

    def norm(x, p, s, name):
        return numpy_norm(x, p, s, name, scheme, train)

    x = conv(x.astype(np.float64), params["stem"])
    for stage in ("stage_1", "stage_2", "stage_3"):
        running = list(block_trees(stats[stage])) if stats else [{}] * 99
        for index, p in enumerate(block_trees(params[stage])):
            s, stride = running[index], 2 if stage != "stage_1" and index == 0 else 1
            activated = np.maximum(norm(x, p, s, "norm_1") + p.get("bias_1", 0), 0)
            h = conv(activated + p.get("bias_2", 0), p["conv_1"], stride)
            h = np.maximum(norm(h, p, s, "norm_2") + p.get("bias_3", 0), 0)
            h = conv(h + p.get("bias_4", 0), p["conv_2"])
            x = conv(activated, p["shortcut"], stride) if index == 0 else x
            x = merge(x, h, p)
    x = np.maximum(norm(x, params, stats, "norm_head") + params.get("bias_relu", 0), 0)
    x = x.mean((1, 2)) + params.get("bias_head", 0)
    return x @ params["head"]["kernel"] + params["head"]["bias"], stats


SCHEMES = ("fixup", "skipinit", "batchnorm", "sqrt_half", "groupnorm")


@pytest.mark.every(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_wide_resnet_matches_numpy(scheme):
    model = WideResNet(depth=16, width=2, scheme=scheme)
    variables, x = random_variables(model, 7), images(8, 3, 9, 12, 3)
    for train in (True, False) if scheme == "batchnorm" else (True,):
        apply = functools.partial(model.apply, train=train, mutable=["batch_stats"])
        logits, updated = quick_jit(apply)(variables, x)
        expected, stats = numpy_wide_resnet(variables, x, scheme, train)
        assert_close(logits, expected, VALUES)
        assert_close(dict(updated).get("batch_stats", {}), stats, VALUES)
