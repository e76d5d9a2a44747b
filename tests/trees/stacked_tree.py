"""A hand-written ResNet whose blocks are scanned: every leaf has a leading axis over branches."""

import jax.numpy as jnp

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, Network, filled

BLOCKS = 12

RULES = Rules(
    branch=r"^layers/conv_(\d+)/[wb]$",
    head=r"^out/",
    stem=r"^in/",
    shortcut=r"^layers/skip/w$",
    scalar_bias=r"/shift$",
    multiplier=r"/gain$",
    alpha=r"/alpha$",
    stacked=r"^layers/",
)


def network():
    conv = {"w": jnp.ones((BLOCKS, 3, 3, 3, 3)), "b": jnp.ones((BLOCKS, 3))}
    params = {
        "in": {"w": jnp.ones((3, 3, 3, 3))},
        "layers": {
            "conv_1": conv,
            "conv_2": conv,
            "skip": {"w": jnp.ones((BLOCKS, 1, 1, 3, 3))},
            "shift": jnp.ones(BLOCKS),
            "gain": jnp.ones(BLOCKS),
            "alpha": jnp.ones(BLOCKS),
        },
        "out": {"w": jnp.ones((3, CLASSES)), "b": jnp.ones(CLASSES)},
    }
    ends = {
        "in/w": "stem", "skip/w": "shortcut", "out/w": "head", "out/b": "head_bias",
        "conv_1/w": "inner", "conv_1/b": "inner_bias", "conv_2/w": "last", "conv_2/b": "last_bias",
        "shift": "scalar_bias", "gain": "multiplier", "alpha": "alpha",
    }  # fmt: skip
    return Network(filled(params), RULES, ends, BLOCKS)
