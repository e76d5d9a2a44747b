"""A hand-written ResNet whose blocks are scanned: every leaf has a leading axis over branches."""

import jax
import jax.numpy as jnp

from nf_resnets.init import Rules
from tests.models.trees import quick_jit
from tests.trees.network import CLASSES, Network, filled, images

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


def _convolve(x, kernel):
    return jax.lax.conv_general_dilated(
        x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def _block(x, layers):
    h = _convolve(jax.nn.relu(x + layers["shift"]), layers["conv_1"]["w"])
    h = jax.nn.relu(h + layers["conv_1"]["b"].reshape(1, 1, 1, -1))
    h = _convolve(h, layers["conv_2"]["w"]) + layers["conv_2"]["b"].reshape(1, 1, 1, -1)
    return _convolve(x, layers["skip"]["w"]) + layers["alpha"] * layers["gain"] * h, None


def _logits(params):
    x = _convolve(images(), params["in"]["w"])
    x, _ = jax.lax.scan(_block, x, params["layers"])
    return x.mean(axis=(1, 2)) @ params["out"]["w"] + params["out"]["b"].reshape(1, -1)


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
    kinds = {
        "in/w": "stem",
        "layers/conv_1/w": "inner",
        "layers/conv_1/b": "inner_bias",
        "layers/conv_2/w": "last",
        "layers/conv_2/b": "last_bias",
        "layers/skip/w": "shortcut",
        "layers/shift": "scalar_bias",
        "layers/gain": "multiplier",
        "layers/alpha": "alpha",
        "out/w": "head",
        "out/b": "head_bias",
    }
    order = tuple(f"layers[{number}]" for number in range(BLOCKS))
    return Network(filled(params), RULES, BLOCKS, kinds, quick_jit(_logits), order)
