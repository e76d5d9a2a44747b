"""Transformers with Flax's own attention, in Linen and NNX: a ViT and a GPT.

A layer has an attention and a feed-forward branch, each with a scalar bias, a multiplier and an
alpha. ``kernel`` of query, key and value is ``[D, heads, head_dim]``, of out ``[heads, head_dim,
D]``, and their biases but out's are ``[heads, head_dim]``.
"""

import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from nf_resnets.init import Rules
from tests.trees.network import CLASSES, filled

D, HEADS, HIDDEN, LAYERS, VOCABULARY = 12, 2, 20, 2, 11
HEAD = D // HEADS
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


def scalars(module):
    shift = module.param("shift", nn.initializers.zeros, ())
    gain = module.param("gain", nn.initializers.ones, ())
    return shift, gain * module.param("alpha", nn.initializers.ones, ())


class Attention(nn.Module):
    causal: bool
    use_bias: bool

    @nn.compact
    def __call__(self, x):
        shift, gain = scalars(self)
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2])) if self.causal else None
        attend = nn.MultiHeadDotProductAttention(HEADS, use_bias=self.use_bias, name="mha")
        return x + gain * attend(x + shift, mask=mask)


class FeedForward(nn.Module):
    @nn.compact
    def __call__(self, x):
        shift, gain = scalars(self)
        hidden = nn.gelu(nn.Dense(HIDDEN, name="linear_1")(x + shift))
        return x + gain * nn.Dense(D, name="linear_2")(hidden)


class Layer(nn.Module):
    causal: bool = False
    use_bias: bool = True

    @nn.compact
    def __call__(self, x, _=None):
        x = Attention(self.causal, self.use_bias, name="attention")(x)
        return FeedForward(name="feed_forward")(x), None


class ViT(nn.Module):
    use_bias: bool = True

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(D, (2, 2), (2, 2), name="patches")(images)
        x = x.reshape(x.shape[0], -1, D)
        token = self.param("cls", nn.initializers.zeros, (1, 1, D))
        x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, D)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(), (1, x.shape[1], D))
        for number in range(LAYERS):
            x, _ = Layer(use_bias=self.use_bias, name=f"layer_{number}")(x)
        return nn.Dense(CLASSES, name="head")(x[:, 0])


class GPT(nn.Module):
    tied: bool = False
    scanned: bool = False

    @nn.compact
    def __call__(self, tokens):
        table = nn.Embed(VOCABULARY, D, name="tokens")
        positions = nn.Embed(8, D, name="positions")
        x = table(tokens) + positions(jnp.arange(tokens.shape[1])[None])
        if self.scanned:
            scan = nn.scan(
                Layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS
            )
            x, _ = scan(causal=True, name="layers")(x, None)
        else:
            for number in range(LAYERS):
                x, _ = Layer(causal=True, name=f"layer_{number}")(x)
        return table.attend(x) if self.tied else nn.Dense(VOCABULARY, name="head")(x)


class NNXBranch(nnx.Module):
    def __init__(self):
        self.shift, self.gain = nnx.Param(jnp.zeros(())), nnx.Param(jnp.ones(()))
        self.alpha = nnx.Param(jnp.ones(()))


class NNXAttention(NNXBranch):
    def __init__(self, rngs):
        super().__init__()
        self.mha = nnx.MultiHeadAttention(HEADS, D, decode=False, rngs=rngs)


class NNXFeedForward(NNXBranch):
    def __init__(self, rngs):
        super().__init__()
        self.linear_1 = nnx.Linear(D, HIDDEN, rngs=rngs)
        self.linear_2 = nnx.Linear(HIDDEN, D, rngs=rngs)


class NNXViT(nnx.Module):
    def __init__(self, rngs):
        self.patches = nnx.Conv(3, D, (2, 2), (2, 2), rngs=rngs)
        self.cls, self.positions = nnx.Param(jnp.zeros((1, 1, D))), nnx.Param(jnp.ones((1, 5, D)))
        self.layer = nnx.List(
            [
                nnx.Dict(attention=NNXAttention(rngs), feed_forward=NNXFeedForward(rngs))
                for _ in range(LAYERS)
            ]
        )
        self.head = nnx.Linear(D, CLASSES, rngs=rngs)


_END = r"(?:kernel|bias)(?:/value)?$"
_LAYERS = {
    "branch": rf"(?:^|/)layer(?:s|[_/](\d+))/(attention|feed_forward)/(?:mha/)?(\w+)/{_END}",
    "scalar_bias": r"/shift(?:/value)?$",
    "multiplier": r"/gain(?:/value)?$",
    "alpha": r"/alpha(?:/value)?$",
    "order": ("query", "key", "value", "out"),
    "axes": {"(query|key|value)/kernel": "IOO", "out/kernel": "IIO"},
}
VIT = Rules(**_LAYERS, stem=rf"^patches/{_END}", head=rf"^head/{_END}", keep="^(?:cls|positions)")
GPT_RULES = Rules(**_LAYERS, embedding="^tokens/", keep="^positions/")


def vit(**options):
    """``(params, rules)`` of the Linen ViT."""
    images = jax.ShapeDtypeStruct((2, 4, 4, 3), jnp.float32)
    return filled(jax.eval_shape(ViT(**options).init, jax.random.key(0), images)["params"]), VIT


def gpt(**options):
    """``(params, rules)`` of the Linen GPT."""
    model, tokens = GPT(**options), jax.ShapeDtypeStruct((2, 5), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    head = None if model.tied else rf"^head/{_END}"
    stacked = "^layers/" if model.scanned else None
    return filled(shapes), dataclasses.replace(GPT_RULES, head=head, stacked=stacked)


def nnx_vit():
    """``(params, rules)`` of the NNX ViT."""
    return filled(nnx.state(nnx.eval_shape(lambda: NNXViT(nnx.Rngs(0))), nnx.Param)), VIT


NETWORKS = {
    "ViT": vit,
    "ViT without biases": functools.partial(vit, use_bias=False),
    "GPT": gpt,
    "GPT, tied": functools.partial(gpt, tied=True),
    "GPT, scanned": functools.partial(gpt, scanned=True),
    "NNX ViT": nnx_vit,
}
