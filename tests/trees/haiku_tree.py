"""A Haiku ResNet with Haiku's own names: the first is ``block``, the next ``block_1``."""

import jax
import jax.numpy as jnp
import pytest

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, IMAGES, Network, filled

BLOCKS = 12

RULES = Rules(
    branch=r"/block(?:_(\d+))?/conv2_d(?:_(\d+))?/[wb]$",
    head=r"/linear/[wb]$",
    stem=r"/stem/[wb]$",
    shortcut=r"/project/[wb]$",
    scalar_bias=r"/shift$",
    multiplier=r"/gain$",
    alpha=r"/alpha$",
)


def network():
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    class Block(hk.Module):
        def __call__(self, x):
            shift = hk.get_parameter("shift", (), init=jnp.zeros)
            gain = hk.get_parameter("gain", (), init=jnp.ones)
            alpha = hk.get_parameter("alpha", (), init=jnp.ones)
            h = hk.Conv2D(3, 3)(jax.nn.relu(x + shift))
            return x + alpha * gain * hk.Conv2D(3, 3)(jax.nn.relu(h))

    class ResNet(hk.Module):
        def __call__(self, x):
            x = hk.Conv2D(3, 3, with_bias=False, name="stem")(x)
            x = hk.Conv2D(3, 1, with_bias=False, name="project")(x)
            for _ in range(BLOCKS):
                x = Block()(x)
            return hk.Linear(CLASSES)(x.mean(axis=(1, 2)))

    model = hk.without_apply_rng(hk.transform(lambda x: ResNet()(x)))
    shapes = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    kinds = {
        "res_net/stem/w": "stem",
        "res_net/project/w": "shortcut",
        "res_net/linear/w": "head",
        "res_net/linear/b": "head_bias",
    }
    order = tuple("res_net/block" + (f"_{n}" if n else "") for n in range(BLOCKS))
    for block in order:
        kinds |= {f"{block}/conv2_d/w": "inner", f"{block}/conv2_d/b": "inner_bias"}
        kinds |= {f"{block}/conv2_d_1/w": "last", f"{block}/conv2_d_1/b": "last_bias"}
        kinds |= {f"{block}/shift": "scalar_bias", f"{block}/gain": "multiplier"}
        kinds[f"{block}/alpha"] = "alpha"
    return Network(filled(shapes), RULES, kinds, order)
