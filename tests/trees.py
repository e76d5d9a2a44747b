"""Small networks as users write them: their trees, their rules, and by hand what each leaf is."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets.init import Rules
from nf_resnets.roles import path_name
from tests.models.trees import shapes

CLASSES, BLOCKS = 5, 12


@dataclasses.dataclass(frozen=True)
class Network:
    """``ends`` says what each array is, by the end of its path, without the library's rules.

    These are ``inner`` and ``last`` weights of a branch, their bias vectors ``inner_bias`` and
    ``last_bias``, ``stem``, ``shortcut``, ``head``, their bias vectors ``bias`` and ``head_bias``,
    the scalars ``scalar_bias``, ``multiplier`` and ``alpha``.
    """

    params: Any
    rules: Rules | None
    ends: dict[str, str]
    branches: int

    @functools.cached_property
    def kinds(self):
        """What each array is, by its path: the longest end that fits counts."""
        ends = sorted(self.ends, key=len)
        return {path: self.ends[[end for end in ends if path.endswith(end)][-1]]
                for path in by_path(self.params)}  # fmt: skip


def by_path(tree):
    """The arrays of a tree by path."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {path_name(path): leaf for path, leaf in flat if hasattr(leaf, "shape")}


def pairs(*trees):
    """``(path, leaf of each)`` for every array of trees that are alike."""
    found = [by_path(tree) for tree in trees]
    assert all(each.keys() == found[0].keys() for each in found)
    return [(path, *(each[path] for each in found)) for path in found[0]]


def filled(tree, seed=0):
    """The tree with every array drawn from N(0, 0.09), so that no value is 0 or 1 by chance."""
    rng = np.random.default_rng(seed)

    def draw(leaf):
        if not hasattr(leaf, "shape"):
            return leaf
        return jnp.asarray(0.3 * rng.standard_normal(leaf.shape), leaf.dtype)

    return jax.tree.map(draw, tree)


def replaced(tree, values):
    """The tree with the arrays at the given paths replaced."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: values.get(path_name(path), leaf), tree
    )


SCALARS = {"scalar_bias": "/shift$", "multiplier": "/gain$", "alpha": "/alpha$"}
SCALAR_ENDS = {"shift": "scalar_bias", "gain": "multiplier", "alpha": "alpha"}


def equinox():
    """An Equinox ResNet, the module itself: OIHW, biases [C, 1, 1], functions as leaves."""
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

    rules = Rules(
        branch=r"blocks/(\d+)/conv(\d+)/(?:weight|bias)$",
        head=r"^head/",
        stem=r"^stem/",
        shortcut=r"^project/",
        layout="OIHW",
        **SCALARS,
    )
    ends = {
        "stem/weight": "stem", "stem/bias": "bias", "project/weight": "shortcut",
        "head/weight": "head", "head/bias": "head_bias",
        "conv1/weight": "inner", "conv1/bias": "inner_bias",
        "conv2/weight": "last", "conv2/bias": "last_bias",
        **SCALAR_ENDS,
    }  # fmt: skip
    tree = eqx.filter_eval_shape(ResNet, jax.random.key(0))
    return Network(filled(tree), rules, ends, BLOCKS)


def stacked():
    """A hand-written ResNet whose blocks are scanned: each leaf has an axis over branches."""
    rules = Rules(
        branch=r"^layers/conv_(\d+)/[wb]$",
        head=r"^out/",
        stem=r"^in/",
        shortcut=r"^layers/skip/w$",
        stacked=r"^layers/",
        **SCALARS,
    )
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
        **SCALAR_ENDS,
    }  # fmt: skip
    return Network(filled(params), rules, ends, BLOCKS)


OUR_ENDS = {
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


def ours(network, depth, scheme):
    """One of this library's own, with the multipliers of Fixup or the alphas of SkipInit."""
    model = network(depth, scheme=scheme, num_classes=CLASSES, stem_channels=3)
    return Network(filled(shapes(model)["params"]), None, OUR_ENDS, 9)
