"""Parameters of Transformers with Flax's own attention: a ViT and a GPT.

A layer has an attention and a feed-forward branch, each with a scalar bias, a multiplier and an
alpha. ``kernel`` of query, key and value is ``[D, heads, head_dim]``, of out ``[heads, head_dim,
D]``, and their biases but out's are ``[heads, head_dim]``.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, filled

D, HEADS, HIDDEN, LAYERS, VOCABULARY = 12, 2, 20, 2, 11
FANS = {  # by hand: of a layer's weights, by the end of their path
    "query/kernel": (D, D),
    "key/kernel": (D, D),
    "value/kernel": (D, D),
    "out/kernel": (D, D),
    "linear_1/kernel": (D, HIDDEN),
    "linear_2/kernel": (HIDDEN, D),
    "patches/kernel": (2 * 2 * 3, 2 * 2 * D),
    "head/kernel": (D, CLASSES),
}
_END = r"(?:kernel|bias)$"
_LAYERS = Rules(
    branch=rf"(?:^|/)layer(?:s|_(\d+))/(attention|feed_forward)/(?:mha/)?(\w+)/{_END}",
    scalar_bias=r"/shift$",
    multiplier=r"/gain$",
    alpha=r"/alpha$",
    keep="^(?:cls|positions)",
    order=("query", "key", "value", "out"),
    axes={"(query|key|value)/kernel": "IOO", "out/kernel": "IIO"},
)


def shape(*lengths):
    return jax.ShapeDtypeStruct(lengths, jnp.float32)


def dense(*lengths, bias=True):
    return {"kernel": shape(*lengths)} | ({"bias": shape(lengths[-1])} if bias else {})


def layers(bias=True, scanned=False):
    mha = nn.MultiHeadDotProductAttention(HEADS, use_bias=bias)
    attention = jax.eval_shape(mha.init, jax.random.key(0), jnp.ones((1, 2, D)))["params"]
    scalars = {name: shape() for name in ("shift", "gain", "alpha")}
    mlp = {"linear_1": dense(D, HIDDEN, bias=bias), "linear_2": dense(HIDDEN, D, bias=bias)}
    layer = {"attention": {"mha": attention, **scalars}, "feed_forward": {**mlp, **scalars}}
    if scanned:
        return {"layers": jax.tree.map(lambda leaf: shape(LAYERS, *leaf.shape), layer)}
    return {f"layer_{number}": layer for number in range(LAYERS)}


def vit(bias=True):
    """``(params, rules)`` of a ViT."""
    ends = {"patches": dense(2, 2, 3, D), "head": dense(D, CLASSES)}
    ends |= {"cls": shape(1, 1, D), "positions": shape(1, 5, D)}
    rules = dataclasses.replace(_LAYERS, stem=rf"^patches/{_END}", head=rf"^head/{_END}")
    return filled(layers(bias) | ends), rules


def gpt(tied=False, scanned=False):
    """``(params, rules)`` of a GPT."""
    tree = layers(scanned=scanned) | {"positions": {"embedding": shape(8, D)}}
    tree["tokens"] = {"embedding": shape(VOCABULARY, D)}
    rules = dataclasses.replace(
        _LAYERS, embedding="^tokens/", stacked="^layers/" if scanned else None
    )
    if not tied:
        tree["head"] = dense(D, VOCABULARY)
        rules = dataclasses.replace(rules, head=rf"^head/{_END}")
    return filled(tree), rules


NETWORKS = {
    "ViT": vit,
    "ViT without biases": functools.partial(vit, bias=False),
    "GPT": gpt,
    "GPT, tied": functools.partial(gpt, tied=True),
    "GPT, scanned": functools.partial(gpt, scanned=True),
}
