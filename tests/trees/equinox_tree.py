"""An Equinox ResNet, the module itself: OIHW weights, biases [C, 1, 1], functions as leaves."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, Network, filled

BLOCKS = 12

RULES = Rules(
    branch=r"blocks/(\d+)/conv(\d+)/(?:weight|bias)$",
    head=r"^head/",
    stem=r"^stem/",
    shortcut=r"^project/",
    scalar_bias=r"/shift$",
    multiplier=r"/gain$",
    alpha=r"/alpha$",
    layout="OIHW",
)


def network():
    eqx = pytest.importorskip("equinox", reason="equinox is not installed")

    class Block(eqx.Module):
        conv1: eqx.nn.Conv2d
        conv2: eqx.nn.Conv2d
        shift: jax.Array
        gain: jax.Array
        alpha: jax.Array
        activation: Callable  # a leaf that is no array

        def __init__(self, key):
            self.conv1 = eqx.nn.Conv2d(3, 3, 3, padding=1, key=key)
            self.conv2 = eqx.nn.Conv2d(3, 3, 3, padding=1, key=key)
            self.shift, self.gain, self.alpha = jnp.zeros(()), jnp.ones(()), jnp.ones(())
            self.activation = jax.nn.relu

    class ResNet(eqx.Module):
        stem: eqx.nn.Conv2d
        project: eqx.nn.Conv2d
        blocks: list[Block]
        dropout: eqx.nn.Dropout  # a Python float and a bool among the leaves
        head: eqx.nn.Linear

        def __init__(self, key):
            self.stem = eqx.nn.Conv2d(2, 3, 3, padding=1, key=key)
            self.project = eqx.nn.Conv2d(3, 3, 1, use_bias=False, key=key)
            self.blocks = [Block(key) for _ in range(BLOCKS)]
            self.dropout = eqx.nn.Dropout(0.5, inference=True)
            self.head = eqx.nn.Linear(3, CLASSES, key=key)

    shapes = eqx.filter_eval_shape(ResNet, jax.random.key(0))
    ends = {
        "stem/weight": "stem", "stem/bias": "bias", "project/weight": "shortcut",
        "head/weight": "head", "head/bias": "head_bias",
        "conv1/weight": "inner", "conv1/bias": "inner_bias",
        "conv2/weight": "last", "conv2/bias": "last_bias",
        "shift": "scalar_bias", "gain": "multiplier", "alpha": "alpha",
    }  # fmt: skip
    return Network(filled(shapes), RULES, ends, BLOCKS)
