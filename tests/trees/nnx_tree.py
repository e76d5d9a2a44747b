"""A Flax NNX ResNet: ``nnx.state(model, nnx.Param)``, whose paths some versions end in /value."""

import jax
import jax.numpy as jnp
from flax import nnx

from nf_resnets.init import Rules
from tests.models.trees import quick_jit
from tests.trees.network import CLASSES, Network, filled, images

BLOCKS = 12


class Block(nnx.Module):
    def __init__(self, rngs):
        self.conv_1 = nnx.Conv(3, 3, (3, 3), rngs=rngs)
        self.conv_2 = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
        self.shift = nnx.Param(jnp.zeros(()))
        self.gain = nnx.Param(jnp.ones(()))
        self.alpha = nnx.Param(jnp.ones(()))

    def __call__(self, x):
        h = jax.nn.relu(self.conv_1(jax.nn.relu(x + self.shift[...])))
        return x + self.alpha[...] * self.gain[...] * self.conv_2(h)


class ResNet(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 3, (3, 3), use_bias=False, rngs=rngs)
        self.project = nnx.Conv(3, 3, (1, 1), use_bias=False, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(BLOCKS)])
        self.head = nnx.Linear(3, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = self.project(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(axis=(1, 2)))


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
    x = images()
    abstract = nnx.eval_shape(lambda: ResNet(nnx.Rngs(0)))
    graph, shapes, rest = nnx.split(abstract, nnx.Param, ...)
    assert not jax.tree.leaves(rest)
    kinds = {
        "stem/kernel": "stem",
        "project/kernel": "shortcut",
        "head/kernel": "head",
        "head/bias": "head_bias",
    }
    order = tuple(f"blocks/{number}" for number in range(BLOCKS))
    for block in order:
        kinds[f"{block}/conv_1/kernel"] = "inner"
        kinds[f"{block}/conv_1/bias"] = "inner_bias"
        kinds[f"{block}/conv_2/kernel"] = "last"
        kinds |= {f"{block}/shift": "scalar_bias", f"{block}/gain": "multiplier"}
        kinds[f"{block}/alpha"] = "alpha"
    apply = quick_jit(lambda state: nnx.merge(graph, state, rest)(x))
    return Network(filled(shapes), RULES, BLOCKS, kinds, apply, order)
