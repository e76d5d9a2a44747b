"""A Flax NNX ResNet: ``nnx.state(model, nnx.Param)``, whose paths some versions end in /value."""

import jax.numpy as jnp
from flax import nnx

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, Network, filled

BLOCKS = 12


class Block(nnx.Module):
    def __init__(self, rngs):
        self.conv_1 = nnx.Conv(3, 3, (3, 3), rngs=rngs)
        self.conv_2 = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
        self.shift = nnx.Param(jnp.zeros(()))
        self.gain = nnx.Param(jnp.ones(()))
        self.alpha = nnx.Param(jnp.ones(()))


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
        self.project = nnx.Conv(3, 3, (1, 1), use_bias=False, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.head = nnx.Linear(3, CLASSES, rngs=rngs)


RULES = Rules(
    branch=r"blocks/(\d+)/conv_(\d+)/(?:kernel|bias)",
    head=r"^head/",
    stem=r"^stem/",
    shortcut=r"^project/",
    scalar_bias=r"/shift(?:/value)?$",
    multiplier=r"/gain(?:/value)?$",
    alpha=r"/alpha(?:/value)?$",
)


def network():
    shapes = nnx.state(nnx.eval_shape(lambda: ResNet(nnx.Rngs(0))), nnx.Param)
    ends = {
        "stem/kernel": "stem", "project/kernel": "shortcut",
        "head/kernel": "head", "head/bias": "head_bias",
        "conv_1/kernel": "inner", "conv_1/bias": "inner_bias", "conv_2/kernel": "last",
        "shift": "scalar_bias", "gain": "multiplier", "alpha": "alpha",
    }  # fmt: skip
    return Network(filled(shapes), RULES, ends, BLOCKS)
