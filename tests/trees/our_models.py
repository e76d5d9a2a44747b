"""This library's own models, with the multipliers of Fixup and the alphas of SkipInit."""

import jax

from nf_resnets import models
from tests.trees.network import CLASSES, IMAGES, Network, filled

ENDS = {
    "stem/kernel": "stem", "stem/bias": "bias",
    "shortcut/kernel": "shortcut", "shortcut/bias": "bias",
    "head/kernel": "head", "head/bias": "head_bias",
    "conv_1/kernel": "inner", "conv_1/bias": "inner_bias",
    "conv_2/kernel": "last", "conv_2/bias": "last_bias",
    "multiplier": "multiplier", "alpha": "alpha",
    **dict.fromkeys(("bias_stem", "bias_relu", "bias_head"), "scalar_bias"),
    **dict.fromkeys(("bias_1a", "bias_1b", "bias_2a", "bias_2b"), "scalar_bias"),
    **dict.fromkeys((f"bias_{j}" for j in (1, 2, 3, 4)), "scalar_bias"),
}  # fmt: skip


def _network(model):
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)["params"]
    return Network(filled(shapes), None, ENDS, 9)


def cifar_resnet(scheme):
    return _network(models.CifarResNet(20, scheme, num_classes=CLASSES, stem_channels=3))


def wide_resnet(scheme):
    return _network(
        models.WideResNet(depth=22, scheme=scheme, num_classes=CLASSES, stem_channels=3)
    )
