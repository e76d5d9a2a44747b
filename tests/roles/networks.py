"""Residual networks of many makers in plain JAX, each with what is right about it, by hand.

A branch is a text of its layers in order, parallel ones joined by commas.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
from jax import lax

D, HEADS, VOCABULARY = 32, 4, 50


@dataclasses.dataclass(frozen=True)
class Case:
    """A network and the truth about it.

    Attributes:
      network: called with the parameters and the inputs.
      params: shapes.
      inputs: shapes.
      branches: the layers of each branch.
      roles: by role, the paths of all weights (of scalars and norms: some leaves) that have it.
      fans: of some leaves.
      axes: of some leaves.
      scales: constants on skip, branch and sum of every branch.
      normalized: what the branches normalize.
      options: of ``roles.read``.
      doubt: what an error must say without the options.
    """

    network: object
    params: object
    inputs: tuple
    branches: tuple = ()
    roles: dict = dataclasses.field(default_factory=dict)
    fans: dict = dataclasses.field(default_factory=dict)
    axes: dict = dataclasses.field(default_factory=dict)
    scales: tuple = (1.0, 1.0, 1.0)
    normalized: str | None = None
    options: dict = dataclasses.field(default_factory=dict)
    doubt: str | None = None


CASES = {}


def made(function):
    """Registers a function that makes a case."""
    CASES[function.__name__] = function
    return function


def case(make, *args, **truth):
    """Registers the case that ``make(function, *args, **truth)`` is, by the function's name."""

    def register(function):
        CASES[function.__name__] = lambda: make(function, *args, **truth)
        return function

    return register


def f(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def images(size=16, channels=3):
    return f(2, size, size, channels)


def tokens(length=12):
    return jax.ShapeDtypeStruct((2, length), jnp.int32)


def blocks(layers, count):
    return {f"l{i}": layers for i in range(count)}


def each(text, count):
    """The branches of ``count`` blocks, ``;`` between those of one block."""
    return tuple(branch.replace("#", f"l{i}/") for i in range(count) for branch in text.split(";"))


def conv(x, w, stride=1, groups=1):
    return lax.conv_general_dilated(
        x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )  # fmt: skip


def split_heads(x, count=HEADS):
    return x.reshape(*x.shape[:-1], count, -1)


def attention(q, k, v, causal=True):
    scores = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
    if causal:
        scores = jnp.where(jnp.tri(q.shape[1], k.shape[1], dtype=bool), scores, -1e9)
    return jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)


def attend(p, x, memory=None, causal=True):
    memory = x if memory is None else memory
    q, k, v = (split_heads(each @ p[n]) for n, each in zip("qkv", (x, memory, memory), strict=True))
    return attention(q, k, v, causal).reshape(x.shape) @ p["o"]


def feed(p, x):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def rms(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def layer_norm(x, scale, shift):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / jnp.sqrt(variance + 1e-5) * scale + shift


def repeated(
    body, layers, count, stem, head, x, known, ends, branches="", roles=(), more=(), **truth
):
    """A network whose blocks are ``x = body(layer, x, *more)``, between a stem and a head."""

    def network(p, x, *more):
        x = stem(p, x)
        for i in range(count):
            x = body(p[f"l{i}"], x, *more)
        return head(p, x)

    branches = each(branches, count) if branches else ()
    params, known = ends | blocks(layers, count), known | dict(roles)
    return Case(network, params, (x, *more), branches, known, **truth)


def on_tokens(body, layers, count=3, look_up=lambda table, t: table[t], **truth):
    """A language model."""
    return repeated(
        body, layers, count, lambda p, t: look_up(p["emb"], t), lambda p, x: x @ p["out"], tokens(),
        {"embedding": "emb", "head": "out"}, {"emb": f(VOCABULARY, D), "out": f(D, VOCABULARY)},
        **truth,
    )  # fmt: skip


def on_images(body, layers, count=2, width=16, **truth):
    return repeated(
        body, layers, count, lambda p, x: conv(x, p["stem"]),
        lambda p, x: x.mean((1, 2)) @ p["head"], images(8), {"stem": "stem", "head": "head"},
        {"stem": f(3, 3, 3, width), "head": f(width, 10)}, **truth,
    )  # fmt: skip


def on_vectors(body, layers, count=3, **truth):
    return repeated(
        body, layers, count, lambda p, x: x @ p["in"], lambda p, x: x @ p["head"], f(2, 8),
        {"stem": "in", "head": "head"}, {"in": f(8, D), "head": f(D, 10)}, **truth,
    )  # fmt: skip


# The layers of a branch, and of a block of two.
TWO, PAIR = "#w1 #w2", {"w1": f(D, D), "w2": f(D, D)}
CONVS = {"a": f(3, 3, 16, 16), "b": f(3, 3, 16, 16)}
FEED = {"up": f(D, 64), "down": f(64, D)}
QKVO = {name: f(D, D) for name in "qkvo"}


# Image networks.


def bottleneck(change=lambda p, y: y, skip=None, extra=lambda o: {}, **truth):
    """Three blocks of a bottleneck, of which the second changes the shape."""

    def block(i, o):
        kernels = {"c1": f(1, 1, i, o), "c2": f(3, 3, o, o), "c3": f(1, 1, o, o)}
        return kernels | extra(o) | ({"sc": f(1, 1, i, o)} if i != o else {})

    params = {"stem": f(3, 3, 3, 16), "head": f(32, 10)}
    params |= {"l0": block(16, 16), "l1": block(16, 32), "l2": block(32, 32)}

    def network(p, x):
        x = conv(x, p["stem"])
        for i in range(3):
            layer, stride = p[f"l{i}"], 1 + (i == 1)
            y = jax.nn.relu(conv(x, layer["c1"]))
            y = jax.nn.relu(conv(y, layer["c2"], stride))
            if "sc" in layer:
                x = skip(layer, x) if skip else conv(x, layer["sc"], stride)
            x = jax.nn.relu(x + change(layer, conv(y, layer["c3"])))
        return x.mean((1, 2)) @ p["head"]

    known = {"stem": "stem", "head": "head", "shortcut": "l1/sc"} | truth.pop("roles", {})
    return Case(network, params, (images(),), each("#c1 #c2 #c3", 3), known, **truth)


@case(bottleneck, extra=lambda o: {"fc1": f(o, 4), "fc2": f(4, o)}, roles={"keep": "l0/fc1 l1/fc2"})
def squeeze_and_excitation(p, y):
    s = jax.nn.relu(y.mean((1, 2)) @ p["fc1"])
    return y * jax.nn.sigmoid(s @ p["fc2"])[:, None, None]


def pooled(x, start=0.0, operator=lax.add):
    return lax.reduce_window(x, start, operator, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@case(
    repeated, CONVS, 2, lambda p, x: conv(x, p["stem"]), lambda p, x: x, images(),
    {"stem": "stem"}, {"stem": f(3, 3, 3, 16)}, branches="#a #b", scales=(0.25, 1.0, 1.0),
)  # fmt: skip
def pooled_last(p, x):
    """No layer comes behind the last sum, whose skip path adds up its pixels."""
    return pooled(x) / 4 + conv(jax.nn.relu(conv(x, p["a"], 2)), p["b"])


@case(
    on_images,
    {"depthwise": f(7, 7, 1, 16), "up": f(16, 64), "down": f(64, 16)}
    | {"scale": f(16), "shift": f(16), "gamma": f(16)},
    branches="#depthwise #up #down", normalized="data",
    roles={"keep": "l0/gamma", "norm": "l0/scale l0/shift"},
)  # fmt: skip
def layer_scale(p, x):
    y = layer_norm(conv(x, p["depthwise"], groups=16), p["scale"], p["shift"])
    return x + p["gamma"] * (jax.nn.gelu(y @ p["up"]) @ p["down"])


@case(
    on_images, {"a": f(1, 1, 16, 8), "b1": f(1, 1, 16, 4), "b3": f(3, 3, 4, 8)},
    roles={"stem": "stem l0/a l0/b1 l0/b3 l1/a l1/b1 l1/b3"},
)  # fmt: skip
def inception_joined(p, x):
    wide = conv(jax.nn.relu(conv(x, p["b1"])), p["b3"])
    return jax.nn.relu(jnp.concatenate([conv(x, p["a"]), wide], -1))


@case(
    on_images, {"a": f(3, 3, 16, 16), "b1": f(1, 1, 16, 16), "b3": f(3, 3, 16, 16)},
    doubt="'l0/a'.*expected projections=", options={"projections": False},
    roles={"stem": "stem l0/a l0/b1 l0/b3 l1/a l1/b1 l1/b3"},
)  # fmt: skip
def inception_summed(p, x):
    return jax.nn.relu(conv(x, p["a"]) + conv(jax.nn.relu(conv(x, p["b1"])), p["b3"]))


@case(
    on_images,
    {"a": f(1, 1, 16, 8), "b1": f(1, 1, 16, 8), "b3": f(3, 3, 8, 8), "o": f(1, 1, 16, 16)},
    branches="#a,#b1 #b3 #o", scales=(1.0, 0.17, 1.0),
)  # fmt: skip
def inception_residual(p, x):
    r = jax.nn.relu
    wide = conv(r(conv(x, p["b1"])), p["b3"])
    joined = jnp.concatenate([r(conv(x, p["a"])), r(wide)], -1)
    return r(x + 0.17 * conv(joined, p["o"]))


def unet(joined):
    def block(i, o):
        return {"a": f(3, 3, i, o), "b": f(3, 3, o, o)} | ({"s": f(1, 1, i, o)} if i != o else {})

    params = {"stem": f(3, 3, 3, 16), "l0": block(16, 16), "down": f(3, 3, 16, 32)}
    params |= {"l1": block(32, 32), "up": f(3, 3, 32, 16)}
    params |= {"l2": block(32 if joined else 16, 16), "head": f(3, 3, 16, 3)}

    def apply(p, x):
        skip = conv(x, p["s"]) if "s" in p else x
        return skip + conv(jax.nn.relu(conv(jax.nn.relu(x), p["a"])), p["b"])

    def network(p, x):
        early = apply(p["l0"], conv(x, p["stem"]))
        x = apply(p["l1"], conv(jax.nn.relu(early), p["down"], 2))
        x = conv(jax.image.resize(x, (*early.shape[:3], 32), "nearest"), p["up"])
        x = jnp.concatenate([x, early], -1) if joined else x + early
        return conv(apply(p["l2"], x), p["head"])

    known = {"stem": "stem down up", "head": "head"} | ({"shortcut": "l2/s"} if joined else {})
    return network, params, (images(),), each("#a #b", 3), known


def shifted(width):
    return {"a": f(3, 3, 16, width), "t": f(32, width), "b": f(3, 3, width, width)}


@case(
    Case,
    {"stem": f(3, 3, 3, 16), "t1": f(8, 32), "t2": f(32, 32), "head": f(3, 3, 32, 3)}
    | {"l0": shifted(16), "l1": shifted(32) | {"s": f(1, 1, 16, 32)}},
    (images(), f(2)), each("#a,#t #b", 2),
    {"shortcut": "l1/s", "head": "head", "stem": "stem t1 t2"},
)  # fmt: skip
def conditioned_on_time(p, x, t):
    silu = jax.nn.silu
    e = silu(jnp.cos(t[:, None] * jnp.arange(8.0)) @ p["t1"]) @ p["t2"]
    x = conv(x, p["stem"])
    for i in range(2):
        layer = p[f"l{i}"]
        h = conv(silu(x), layer["a"]) + (silu(e) @ layer["t"])[:, None, None]
        x = (conv(x, layer["s"]) if i else x) + conv(silu(h), layer["b"])
    return conv(silu(x), p["head"])


@case(
    Case,
    {"stem": f(3, 3, 3, 16), "in": f(8, 16), "head": f(16, 10)}
    | blocks({**CONVS, "scale": f(16, 16), "shift": f(16, 16)}, 2),
    (images(8), f(2, 8)), each("#a,#shift #b", 2),
    {"stem": "stem in", "head": "head", "keep": "l0/scale l1/scale"},
)  # fmt: skip
def modulated(p, x, condition):
    """A second input shifts the channels of each branch, and scales what it gives."""
    x, e = conv(x, p["stem"]), jax.nn.silu(condition @ p["in"])
    for layer in (p["l0"], p["l1"]):
        scale, shift = ((e @ layer[name])[:, None, None] for name in ("scale", "shift"))
        x = x + conv(jax.nn.relu(conv(x, layer["a"]) + shift), layer["b"]) * scale
    return x.mean((1, 2)) @ p["head"]


@case(
    on_images, CONVS | {"film": f(8, 32)}, more=(f(2, 8),), branches="#a #b",
    roles={"keep": "l0/film l1/film"},
)  # fmt: skip
def modulated_by_one_layer(p, x, condition):
    """A layer of a second input gives both the scale and the shift of a branch."""
    scale, shift = jnp.split((condition @ p["film"])[:, None, None], 2, -1)
    h = conv(jax.nn.relu(x), p["a"]) * (1 + scale) + shift
    return x + conv(jax.nn.relu(h), p["b"])


@case(
    Case, {"in": f(8, D), "condition": f(8, 4 * D), **blocks(FEED, 2), "head": f(D, 10)},
    (f(2, 8), f(2, 8)), each("#up #down", 2), {"stem": "in condition", "head": "head"},
)  # fmt: skip
def modulated_by_parts(p, x, condition):
    """The scales and shifts of all branches are parts of one value, and no stream."""
    x, parts = x @ p["in"], (condition @ p["condition"]).reshape(2, 2, 2, D)
    for i in range(2):
        x = x + feed(p[f"l{i}"], x * (1 + parts[:, i, 0]) + parts[:, i, 1])
    return x @ p["head"]


@case(
    on_images,
    {"in": f(1, 1, 16, 16), "out": f(1, 1, 16, 16)} | {f"k{j}": f(3, 3, 4, 4) for j in (1, 2, 3)},
    branches="#in #k1 #k2 #k3 #out", doubt="'l0/k1'.*expected parts=", options={"parts": False},
)  # fmt: skip
def scales_of_channels(p, x):
    parts = jnp.split(jax.nn.relu(conv(x, p["in"])), 4, -1)
    y, s = [parts[0]], 0.0
    for j in (1, 2, 3):
        s = jax.nn.relu(conv(parts[j] + s, p[f"k{j}"]))
        y.append(s)
    return jax.nn.relu(x + conv(jnp.concatenate(y, -1), p["out"]))


@case(
    on_images, {"pe": f(3, 3, 1, 16)} | {name: f(16, 16) for name in "qkvo"},
    branches="#pe;#q,#k,#v #o", fans={"l0/pe": (9, 9)},
)  # fmt: skip
def convolution_and_attention(p, x):
    x = x + conv(x, p["pe"], groups=16)
    z = x.reshape(x.shape[0], -1, 16)
    q, k, v = (split_heads(z @ p[name], 2) for name in "qkv")
    z = z + attention(q, k, v, causal=False).reshape(z.shape) @ p["o"]
    return z.reshape(x.shape)


# Transformers.


@made
def gpt2():
    """Fused projections, a tied head, biases that Python's order adds to the sum."""

    def dense(i, o):
        return {"w": f(i, o), "b": f(o)}

    norm = {"scale": f(D), "shift": f(D)}
    layers = {"attn": dense(D, 3 * D), "proj": dense(D, D), "fc": dense(D, 64)}
    layers |= {"fc2": dense(64, D), "ln1": norm, "ln2": norm}
    params = {"wte": f(VOCABULARY, D), "wpe": f(16, D), **blocks(layers, 3), "lnf": norm}

    def network(p, t):
        x = p["wte"][t] + p["wpe"][: t.shape[1]]
        for i in range(3):
            b = p[f"l{i}"]
            fused = layer_norm(x, **b["ln1"]) @ b["attn"]["w"] + b["attn"]["b"]
            heads = attention(*map(split_heads, jnp.split(fused, 3, -1))).reshape(x.shape)
            x = x + heads @ b["proj"]["w"] + b["proj"]["b"]
            h = jax.nn.gelu(layer_norm(x, **b["ln2"]) @ b["fc"]["w"] + b["fc"]["b"])
            x = x + h @ b["fc2"]["w"] + b["fc2"]["b"]
        return layer_norm(x, **p["lnf"]) @ p["wte"].T

    known = {"embedding": "wte", "keep": "wpe", "norm": "lnf/scale l0/ln1/shift"}
    known["bias"] = "l0/attn/b l0/proj/b l2/fc2/b"
    branches = each("#attn/w #proj/w;#fc/w #fc2/w", 3)
    return Case(
        network, params, (tokens(),), branches, known, {"l0/attn/w": (D, 3 * D)}, normalized="data"
    )


@made
def llama():
    """Grouped queries, rotated positions, a gated feed-forward layer, RMSNorm."""
    angles = jnp.arange(12)[:, None, None] * 0.1 ** jnp.arange(4)

    def rotate(z):
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        one, two = z[..., :4], z[..., 4:]
        return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

    def body(p, x):
        h = rms(x, p["n1"])
        q, k, v = (split_heads(h @ p[n], c) for n, c in (("q", 4), ("k", 2), ("v", 2)))
        k, v = jnp.repeat(rotate(k), 2, 2), jnp.repeat(v, 2, 2)
        x = x + attention(rotate(q), k, v).reshape(x.shape) @ p["o"]
        h = rms(x, p["n2"])
        return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]

    layers = {"q": f(D, D), "k": f(D, D // 2), "v": f(D, D // 2), "o": f(D, D), "n1": f(D)}
    layers |= {"up": f(D, 48), "gate": f(D, 48), "down": f(48, D), "n2": f(D)}
    return on_tokens(
        body, layers, 2, branches="#q,#k,#v #o;#gate,#up #down", normalized="data",
        roles={"norm": "l0/n1 l1/n2"}, fans={"l0/k": (32, 16)},
    )  # fmt: skip


@case(
    on_tokens, FEED | {"qkv": f(D, 3, HEADS, 8), "o": f(HEADS, 8, D), "n": f(D)},
    branches="#qkv #o;#up #down", normalized="data", fans={"l0/qkv": (32, 96), "l0/o": (32, 32)},
    axes={"l0/qkv": "IOOO", "l0/o": "IIO"},
)  # fmt: skip
def palm(p, x):
    """Two branches of one sum, kernels of several axes."""
    h = rms(x, p["n"])
    q, k, v = jnp.einsum("btd,dnhk->nbthk", h, p["qkv"])
    return x + jnp.einsum("bthk,hkd->btd", attention(q, k, v), p["o"]) + feed(p, h)


def mixer(length, width):
    def body(p, x):
        y = x.reshape(2, length, width).swapaxes(1, 2)
        y = (jax.nn.gelu(y @ p["t1"]) @ p["t2"]).swapaxes(1, 2).reshape(x.shape)
        x = x + y
        return x + jax.nn.gelu(x @ p["c1"]) @ p["c2"]

    layers = {"t1": f(length, length), "t2": f(length, length)}
    layers |= {"c1": f(width, width), "c2": f(width, width)}
    return on_images(body, layers, width=width, branches="#t1 #t2;#c1 #c2")


def shared_layers(scanned):
    params = {"emb": f(VOCABULARY, D), "l": QKVO | FEED}
    params["out"] = f(D, VOCABULARY)

    def network(p, t):
        def body(x, _):
            x = x + attend(p["l"], x)
            return x + feed(p["l"], x), None

        x = p["emb"][t]
        if scanned:
            return lax.scan(body, x, None, length=4)[0] @ p["out"]
        for _ in range(4):
            x, _ = body(x, None)
        return x @ p["out"]

    branches = ("l/q,l/k,l/v l/o", "l/up l/down") * 4
    return Case(network, params, (tokens(),), branches, {"embedding": "emb", "head": "out"})


def low_rank(dense):
    def body(p, x):
        return x + dense(jax.nn.gelu(dense(x, p, "up")), p, "down")

    layers = {"up": f(D, 64), "up_a": f(D, 4), "up_b": f(4, 64)}
    layers |= {"down": f(64, D), "down_a": f(64, 4), "down_b": f(4, D)}
    return on_tokens(
        body, layers, branches="#up #down", roles={"keep": "l0/up_a l0/up_b l2/down_b"}
    )


@case(low_rank)
def low_rank_on_data(x, p, n):
    return x @ p[n] + 2.0 * ((x @ p[n + "_a"]) @ p[n + "_b"])


@case(low_rank)
def low_rank_on_weights(x, p, n):
    return x @ (p[n] + 2.0 * p[n + "_a"] @ p[n + "_b"])


def encoder_decoder(count):
    layers = {"a": QKVO, "m": FEED, "n": f(D)}
    params = {"emb": f(VOCABULARY, D), "temb": f(VOCABULARY, D), "en": f(D)}
    params |= {"enc": blocks(layers, count), "dec": blocks(layers | {"c": QKVO}, count)}
    params["out"] = f(D, VOCABULARY)

    def network(p, s, t):
        y, x = p["temb"][t], p["emb"][s]
        for b in p["enc"].values():
            x = x + attend(b["a"], rms(x, b["n"]), causal=False)
            x = x + feed(b["m"], x)
        x = rms(x, p["en"])
        for b in p["dec"].values():
            y = y + attend(b["a"], rms(y, b["n"]))
            y = y + attend(b["c"], y, x, causal=False)
            y = y + feed(b["m"], y)
        return y @ p["out"]

    attends = "#{0}/q,#{0}/k,#{0}/v #{0}/o".format
    feeds = "#m/up #m/down"
    branches = each(f"{attends('a')};{feeds}".replace("#", "enc/#"), count)
    branches += each(f"{attends('a')};{attends('c')};{feeds}".replace("#", "dec/#"), count)
    return Case(
        network, params, (tokens(), tokens(10)), branches,
        {"embedding": "emb temb", "head": "out", "norm": "en"}, normalized="data or nothing",
    )  # fmt: skip


def on_experts(body):
    """Blocks of four experts, each of two layers."""
    return on_tokens(
        body, {"router": f(D, 4), "w1": f(4, D, 64), "w2": f(4, 64, D)}, 2, branches="#w1 #w2",
        roles={"keep": "l0/router"}, fans={"l0/w1": (32, 64), "l0/w2": (64, 32)},
        axes={"l0/w1": "NIO", "l0/w2": "NIO"},
    )  # fmt: skip


@case(on_experts)
def mixture_of_experts(p, x, gates=None):
    gates = jax.nn.softmax(x @ p["router"]) if gates is None else gates
    h = jax.nn.gelu(jnp.einsum("btd,edf->btef", x, p["w1"]))
    return x + (jnp.einsum("btef,efd->bted", h, p["w2"]) * gates[..., None]).sum(2)


@case(on_experts)
def mixture_of_two_experts(p, x):
    """The router's weights are contracted with what the experts give."""
    top, chosen = lax.top_k(x @ p["router"], 2)
    weights = (jax.nn.softmax(top)[..., None] * jax.nn.one_hot(chosen, 4)).sum(2)
    h = jax.nn.silu(jnp.einsum("btd,edf->btef", x, p["w1"]))
    return x + jnp.einsum("bte,btef,efd->btd", weights, h, p["w2"])


@case(on_experts)
def experts_of_one_product(p, x):
    """One product weighs what the experts give and adds it up."""
    weights = jax.nn.softmax(x @ p["router"])
    h = jax.nn.gelu(jnp.einsum("btd,edf->btef", x, p["w1"]))
    return x + jnp.einsum("bte,btef,efd->btd", weights, h, p["w2"])


@made
def loss_beside_the_stream():
    """Each block adds to a loss what its router's numbers are, and to a count how often."""
    known = CASES["mixture_of_experts"]()

    def network(p, t):
        x, loss, count = p["emb"][t], 0.0, 0.0
        for layer in (p["l0"], p["l1"]):
            gates = jax.nn.softmax(x @ layer["router"])
            x, count = mixture_of_experts(layer, x, gates), count + gates.mean((0, 1))
            loss = loss + (gates.mean((0, 1)) ** 2).sum()
        return x @ p["out"], loss, count

    return dataclasses.replace(known, network=network)


@case(on_tokens, QKVO, 2, branches="#q,#k,#v #o")
def linear_attention(p, x):
    """Keys make a factor of the queries, and are a layer for what they give to the values."""
    q, k, v = (split_heads(x @ p[name]) for name in "qkv")
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    scale = 1 / jnp.einsum("bthd,bhd->bth", q, k.sum(1))
    y = jnp.einsum("bthd,bth,bhde->bthe", q, scale, jnp.einsum("bthd,bthe->bhde", k, v))
    return x + y.reshape(x.shape) @ p["o"]


@case(on_tokens, QKVO, 2, branches="#q,#k,#v #o")
def causal_linear_attention(p, x):
    """The queries are as small a factor as a router's numbers, but no shares."""
    q, k = jax.nn.relu(x @ p["q"]), jax.nn.relu(x @ p["k"])
    state = jnp.cumsum(jnp.einsum("btd,bte->btde", k, x @ p["v"]), 1)
    return x + jnp.einsum("btd,btde->bte", q, state) @ p["o"]


@case(on_tokens, QKVO, 2, branches="#q,#k,#v #o")
def attention_of_one_query(p, x):
    """As small a factor, too; what it weighs are no copies of a layer."""
    q, k, v = (x.mean(1) @ p["q"]), x @ p["k"], x @ p["v"]
    weights = jax.nn.softmax(jnp.einsum("bd,btd->bt", q, k))
    return x + (jnp.einsum("bt,btd->bd", weights, v) @ p["o"])[:, None]


@case(
    Case, {"emb": f(VOCABULARY, D), **blocks(QKVO, 2), "out": f(D, 9)}, (tokens(),),
    each("#q,#k,#v #o", 2), {"embedding": "emb", "head": "out"},
)  # fmt: skip
def keys_returned(p, t):
    x, returned = p["emb"][t], []
    for layer in (p["l0"], p["l1"]):
        q, k, v = (split_heads(x @ layer[name]) for name in "qkv")
        x = x + attention(q, k, v).reshape(x.shape) @ layer["o"]
        returned.append(k)
    return x @ p["out"], returned


def by_product(table, t):
    """Looks tokens up by a product."""
    return jax.nn.one_hot(t, VOCABULARY) @ table


@case(
    on_tokens, FEED | {"scale": f(D), "shift": f(D)}, branches="#up #down",
    look_up=by_product, roles={"norm": "l0/scale l1/shift"},
)  # fmt: skip
def norm_behind_the_sum(p, x):
    return layer_norm(x + feed(p, x), p["scale"], p["shift"])


@case(
    repeated, FEED, 2, lambda p, t: by_product(p["emb"], t), lambda p, x: x @ p["emb"].T, tokens(),
    {"embedding": "emb"}, {"emb": f(VOCABULARY, D)}, branches="#up #down",
)  # fmt: skip
def tied_table_that_is_multiplied(p, x):
    """Tokens are looked up by a product, and the head is the same table."""
    return x + feed(p, x)


# Vectors.


@case(on_vectors, {"in": f(D, 2 * D), "mix": f(D, D), "out": f(D, D)}, branches="#in #mix #out")
def factors_of_one_layer(p, x):
    """One product gives both factors; they are what two products would give."""
    u, z = jnp.split(x @ p["in"], 2, -1)
    return x + ((u @ p["mix"]) * jax.nn.silu(z)) @ p["out"]


@case(
    on_vectors, PAIR | {"alpha": f(), "b": f()}, branches=TWO,
    roles={"multiplier": "l0/alpha", "scalar_bias": "l0/b"},
)  # fmt: skip
def rezero(p, x):
    return x + p["alpha"] * (jnp.tanh(x @ p["w1"] + p["b"]) @ p["w2"])


@case(
    on_vectors, PAIR | {"alpha": f(), "b": f(D)}, branches=TWO,
    roles={"multiplier": "l0/alpha", "bias": "l0/b"},
)  # fmt: skip
def bias_vector_behind_a_multiplier(p, x):
    return x + (p["alpha"] * (jnp.tanh(x @ p["w1"]) @ p["w2"]) + p["b"])


@case(
    on_vectors, PAIR | {"s": f(2)}, branches=TWO,
    doubt="'l0/s'.*added to data and multiplies.*keep=",
)  # fmt: skip
def scalars_in_one_leaf(p, x):
    return x + p["s"][0] * (jnp.tanh((x + p["s"][1]) @ p["w1"]) @ p["w2"])


@case(on_vectors, PAIR | {"alpha": f()}, branches=TWO, roles={"multiplier": "l0/alpha"})
def dropped(p, x):
    """A choice of zeros is linear in what it chooses from, so that a multiplier may stand there."""
    h = jnp.tanh(x @ p["w1"]) @ p["w2"]
    return x + jnp.where(jnp.arange(2)[:, None] > 0, p["alpha"] * h, 0.0)


@case(on_vectors, {"w1": f(D, 1), "b1": f(1), "w2": f(1, D)}, branches=TWO, roles={"bias": "l0/b1"})
def one_output(p, x):
    """The bias vector of a layer with one output is no scalar bias."""
    return x + jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"]


@case(
    on_vectors, PAIR | {"w3": f(D, D), "b1": f(D), "b3": f(D)}, branches="#w1 #w2,#w3",
    roles={"bias": "l0/b3"},
)  # fmt: skip
def gated_end(p, x):
    """Where its last layer is zero, its bias vector would still pass the gate on."""
    h = jnp.tanh(x @ p["w1"] + p["b1"])
    return x + jax.nn.sigmoid(h @ p["w2"]) * (h @ p["w3"] + p["b3"])


def under_vmap(mapped, network, *args, **truth):
    return Case(jax.vmap(network, mapped), *args, **truth)


@case(
    functools.partial(under_vmap, (None, 0)),
    {"in": f(D, 8), **blocks(PAIR | {"b": f(D)}, 2), "head": f(10, D)}, (f(2, 8),), each(TWO, 2),
    {"stem": "in", "head": "head", "bias": "l0/b l1/b"},
)  # fmt: skip
def examples_under_vmap(p, x):
    x = p["in"] @ x
    for layer in (p["l0"], p["l1"]):
        x = x + layer["w2"] @ jnp.tanh(layer["w1"] @ x) + layer["b"]
    return p["head"] @ x


@case(
    repeated, PAIR, 2, lambda p, x: x @ p["in"],
    lambda p, x: (x[:, :16] @ p["one"] + x[:, 16:] @ p["two"]) / 2, f(2, 8),
    {"stem": "in", "head": "one two"}, {"in": f(8, D), "one": f(16, 10), "two": f(16, 10)},
    branches=TWO,
)  # fmt: skip
def mean_of_two_heads(p, x):
    """Neither head skips the other, though each takes a part of one value."""
    return x + jnp.tanh(x @ p["w1"]) @ p["w2"]


@case(on_vectors, PAIR | {"a": f(), "b": f()}, branches=TWO, roles={"keep": "l0/a l0/b"})
def gated_by_a_function(p, x):
    """What a scalar is a multiplier by is no multiplier that a scheme could set to 1."""
    return x + jax.nn.sigmoid(p["a"]) * (jnp.tanh(x @ p["w1"]) @ p["w2"] + jnp.exp(p["b"]))


def weighed(sum_):
    """A scalar that weighs the skip path, too, is no multiplier."""
    return on_vectors(
        sum_, FEED | {"a": f()}, branches="#up #down", roles={"keep": "l0/a"},
        scales=(math.nan, 1.0, 1.0),
    )  # fmt: skip


@case(weighed)
def weighed_behind_the_branch(p, x):
    return p["a"] * feed(p, x) + (1 - p["a"]) * x


@case(weighed)
def weighed_before_the_branch(p, x):
    return (1 - p["a"]) * x + p["a"] * feed(p, x)


@case(on_vectors, PAIR | {"t": f()}, branches=TWO, roles={"keep": "l0/t"})
def temperature(p, x):
    """A scalar in a branch that is no multiplier of it."""
    return x + jnp.tanh(p["t"] * (x @ p["w1"])) @ p["w2"]


@case(on_vectors, PAIR, branches=TWO, scales=(1.0, 1.0, 2**-0.5))
def sums_by_the_root_of_two(p, x):
    return (x + jnp.tanh(x @ p["w1"]) @ p["w2"]) / jnp.sqrt(2.0)


@case(
    on_vectors, {"f1": f(16, D), "f2": f(D, 16), "g1": f(16, D), "g2": f(D, 16)},
    doubt="'l0/f1'.*expected parts=",
)  # fmt: skip
def reversible(p, x):
    a, b = jnp.split(x, 2, -1)
    a = a + jax.nn.relu(b @ p["f1"]) @ p["f2"]
    b = b + jax.nn.relu(a @ p["g1"]) @ p["g2"]
    return jnp.concatenate([a, b], -1)


def two_outputs(width):
    """WaveNet: the last block's ``res`` leads nowhere."""
    params = {"in": f(8, D), "h1": f(width, D), "h2": f(D, 10)}
    layers = {name: f(D, D) for name in ("f", "g", "res")} | {"skip": f(D, width)}
    params |= blocks(layers, 3)

    def network(p, x):
        x, out = x @ p["in"], 0.0
        for i in range(3):
            b = p[f"l{i}"]
            h = jnp.tanh(x @ b["f"]) * jax.nn.sigmoid(x @ b["g"])
            out, x = out + h @ b["skip"], x + h @ b["res"]
        return jax.nn.relu(jax.nn.relu(out) @ p["h1"]) @ p["h2"]

    return Case(network, params, (f(2, 8),), doubt="'l0/skip'.*projections=")


@case(on_vectors, FEED, branches="#up #down", normalized="weights")
def weights_over_a_sum_of_their_own(p, x):
    return x + feed({**p, "down": p["down"] / abs(p["down"]).sum(0)}, x)


@case(
    on_vectors, PAIR | {"g1": f(D), "g2": f(D)}, branches=TWO, normalized="weights",
    roles={"norm": "l0/g1"},
)  # fmt: skip
def weight_norm(p, x):
    def weight(v, g):
        return v / jnp.linalg.norm(v, axis=0) * g

    return x + jax.nn.relu(x @ weight(p["w1"], p["g1"])) @ weight(p["w2"], p["g2"])


def stacked(run, extra={}, **truth):  # noqa: B006 (never changed)
    """Six blocks whose layers lie along the first axis."""
    params = {"w1": f(6, D, D), "w2": f(6, D, D), "head": f(D, 10), **extra}
    known = {"head": "head"} | truth.pop("roles", {})
    axes = {"w1": "NIO"}
    return Case(
        lambda p, x: run(p, x) @ p["head"], params, (f(2, D),), ("w1 w2",) * 6, known, axes=axes,
        **truth,
    )  # fmt: skip


@case(stacked, {"a": f(6)}, roles={"multiplier": "a"})
def stacked_in_a_loop(p, x):
    def body(i, x):
        return x + p["a"][i] * (jax.nn.relu(x @ p["w1"][i]) @ p["w2"][i])

    return lax.fori_loop(0, 6, body, x)


@case(stacked)
def stacked_and_indexed(p, x):
    for i in range(6):
        x = x + jax.nn.relu(x @ p["w1"][i]) @ p["w2"][i]
    return x


def stacked_with(reverse):
    def run(p, x):
        def body(x, turn):
            w1, w2, scale = turn
            return 0.5 * x + scale * (jax.nn.relu(x @ w1) @ w2), None

        return lax.scan(body, x, (p["w1"], p["w2"], jnp.arange(1.0, 7.0)), reverse=reverse)[0]

    return stacked(run, scales=[(0.5, k, 1.0) for k in range(1, 7)][:: -1 if reverse else 1])


@case(stacked, {"a": f(6)}, roles={"multiplier": "a"}, scales=[(0.5, k, 1.0) for k in range(1, 7)])
def stacked_with_constants_of_multipliers(p, x):
    def body(x, turn):
        w1, w2, a, scale = turn
        return 0.5 * x + scale * a * (jax.nn.relu(x @ w1) @ w2), None

    return lax.scan(body, x, (p["w1"], p["w2"], p["a"], jnp.arange(1.0, 7.0)))[0]


ORDER = "'w1'.*in an order that cannot be followed.*keep="


@case(stacked, doubt=ORDER)
def stacked_and_shuffled(p, x):
    order = jnp.array([3, 1, 0, 2, 5, 4])
    return lax.scan(stacked_block, x, (p["w1"][order], p["w2"][order]))[0]


@case(stacked, doubt=ORDER)
def stacked_and_indexed_from_the_end(p, x):
    def body(i, x):
        return stacked_block(x, (p["w1"][5 - i], p["w2"][5 - i]))[0]

    return lax.fori_loop(0, 6, body, x)


def stacked_block(x, turn):
    w1, w2 = turn
    return x + jax.nn.relu(x @ w1) @ w2, None


def stack_made_at_run_time(run):
    """Leaves of four blocks, stacked when the network runs."""
    params = {**blocks(PAIR, 4), "head": f(D, 10)}

    def network(p, x):
        layers = [jnp.stack([p[f"l{i}"][name] for i in range(4)]) for name in ("w1", "w2")]
        return run(stacked_block, x, layers)[0] @ p["head"]

    return Case(network, params, (f(2, D),), each(TWO, 4), {"head": "head"}, axes={"l0/w1": "IO"})


@case(stack_made_at_run_time)
def stacked_at_run_time_and_indexed(block, x, layers):
    for i in range(4):
        x, _ = block(x, [leaf[i] for leaf in layers])
    return x, None


def turns_side_by_side(run):
    """A loop over examples, of which no turn takes what another gives."""
    one = on_vectors(lambda p, x: x + jnp.tanh(x @ p["w1"]) @ p["w2"], PAIR, branches=TWO)
    return dataclasses.replace(
        one, network=lambda p, x: run(lambda x: one.network(p, x), x), inputs=(f(5, 8),)
    )


@case(turns_side_by_side)
def loop_over_examples_that_adds_up_their_losses(example, x):
    return lax.scan(lambda total, x: (total + example(x).sum(), None), 0.0, x)[0]


@case(
    Case,
    {"in": f(8, D), "head": f(D, 10)}
    | blocks({"in": f(D, D), "again": f(D, D), "out": f(D, D)}, 2),
    (f(5, 2, 8),), each("#in,#again #out", 2), {"stem": "in", "head": "head"},
)  # fmt: skip
def recurrent(p, x):
    """Steps in time stand side by side, too: a stream goes through the layers of one step."""

    def step(states, x):
        after = []
        for layer, h in zip((p["l0"], p["l1"]), states, strict=True):
            after.append(jnp.tanh(x @ layer["in"] + h @ layer["again"]))
            x = x + after[-1] @ layer["out"]
        return after, x

    return lax.scan(step, [jnp.zeros((2, D))] * 2, x @ p["in"])[1] @ p["head"]


@case(
    on_vectors, {"t": f(D, D), "w": f(D, D)}, branches="#w",
    doubt="by a gate of 'l0/t'; expected keep=", options={"keep": "/t"},
)  # fmt: skip
def gated_skip(p, x):
    """A highway network."""
    gate = jax.nn.sigmoid(x @ p["t"])
    return x * (1 - gate) + gate * jnp.tanh(x @ p["w"])


@case(
    Case, {"w1": f(2, 3, D, D), "w2": f(2, 3, D, D), "head": f(D, 10)}, (f(2, D),), ("w1 w2",) * 6,
    {"head": "head"}, axes={"w1": "NNIO"},
)  # fmt: skip
def stacked_twice(p, x):
    def outer(x, turn):
        return lax.scan(stacked_block, x, turn)[0], None

    return lax.scan(outer, x, (p["w1"], p["w2"]))[0] @ p["head"]


@case(
    Case, {"up": f(3, D, 64), "down": f(3, 64, D), "out": f(D, 4)}, (f(2, D),), ("up down",) * 3,
    {"head": "out"},
)  # fmt: skip
def head_behind_every_block(p, x):
    def body(x, layer):
        x = x + feed(layer, x)
        return x, x @ p["out"]

    return lax.scan(body, x, {name: p[name] for name in ("up", "down")})[1]


# Gates, streams and products that are easily taken for something else.


@case(
    on_tokens, QKVO | {"table": f(23, HEADS)}, 1, branches="#q,#k,#v #o",
    roles={"keep": "l0/table"},
)  # fmt: skip
def table_of_relative_positions(p, x):
    """Of a table whose axes cannot be followed, a number at each offset is no scalar."""
    q, k, v = (split_heads(x @ p[name]) for name in "qkv")
    offsets = jnp.arange(12)[:, None] - jnp.arange(12) + 11
    bias = p["table"][offsets.reshape(-1)].reshape(12, 12, HEADS).transpose(2, 0, 1)
    scores = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", q, k) + bias)
    return x + jnp.einsum("bhts,bshd->bthd", scores, v).reshape(x.shape) @ p["o"]


@case(
    on_tokens, {"router": f(D, 3), "w1": f(3, D, 64), "w2": f(3, 64, D)}, 1, branches="#w1 #w2",
    roles={"keep": "l0/router"}, axes={"l0/w1": "NIO"},
)  # fmt: skip
def dispatched_experts(p, x):
    """The router makes a factor as large as what it weighs, and an index that has no gradient."""
    h = x.reshape(-1, D)
    chances = jax.nn.softmax(h @ p["router"])
    hot = jax.nn.one_hot(chances.argmax(-1), 3)
    dispatch = hot[..., None] * jax.nn.one_hot(jnp.arange(24) % 8, 8)[:, None]
    combine = dispatch * (chances * hot).sum(-1)[:, None, None]
    y = jax.nn.relu(jnp.einsum("nec,nd,edf->ecf", dispatch, h, p["w1"]))
    y = jnp.einsum("ecf,efd->ecd", y, p["w2"])
    return x + jnp.einsum("nec,ecd->nd", combine, y).reshape(x.shape)


def query_of_leaves(*bias):
    """Tokens are pooled by attention of a query that is computed from leaves alone.

    Of these the bias alone is one whose axes can be followed to a product with data.
    """
    leaves = {"probe": f(D), "q": f(D, HEADS, 8), **dict.fromkeys(bias, f(HEADS, 8))}

    def head(p, x):
        query = jnp.einsum("d,dhk->hk", p["probe"], p["q"])
        query = query + p["b"] if bias else query
        scores = jnp.einsum("hk,bthk->bth", query, jnp.einsum("btd,dhk->bthk", x, p["k"]))
        pooled = jnp.einsum("bth,bthd->bhd", jax.nn.softmax(scores, 1), split_heads(x))
        return pooled.reshape(-1, D) @ p["head"]

    ends = {"emb": f(VOCABULARY, D), "k": f(D, HEADS, 8), "head": f(D, 10)}
    return repeated(
        lambda p, x: x + jnp.tanh(x @ p["w1"]) @ p["w2"], PAIR, 1, lambda p, t: p["emb"][t], head,
        tokens(), {"embedding": "emb", "stem": "k", "head": "head"}, ends | leaves, branches=TWO,
        fans={"k": (D, D)}, doubt="expected keep= to match " + ", ".join(map(repr, leaves)),
        options={"keep": "|".join(f"^{name}$" for name in leaves)},
    )  # fmt: skip


@case(
    Case, {"deep": f(8, D), "out": f(D, 1), "wide": f(8, 1)}, (f(2, 8),),
    roles={"head": "wide out", "stem": "deep"}, doubt="'wide'.*expected projections=",
    options={"projections": False},
)  # fmt: skip
def wide_and_deep(p, x):
    """Two paths of one output, whose lengths are not those of the input."""
    return x @ p["wide"] + jax.nn.relu(x @ p["deep"]) @ p["out"]


@case(
    Case,
    {"in": f(8, D), "in_edges": f(8, D), "head": f(D, 10)}
    | blocks({"n1": f(2 * D, 64), "n2": f(64, D), "e1": f(2 * D, 64), "e2": f(64, D)}, 3),
    (f(2, 8), f(2, 8)), each("#e1 #e2;#n1 #n2", 3), {"stem": "in in_edges", "head": "head"},
)  # fmt: skip
def two_streams(p, x, edges):
    """Nodes and edges of a graph: each branch of one stream takes the other."""
    x, e = x @ p["in"], edges @ p["in_edges"]
    for i in range(3):
        b = p[f"l{i}"]
        e = e + jax.nn.relu(jnp.concatenate([e, x], -1) @ b["e1"]) @ b["e2"]
        x = x + jax.nn.relu(jnp.concatenate([x, e], -1) @ b["n1"]) @ b["n2"]
    return x @ p["head"]


@case(
    Case, {"in": f(8, D), **blocks(PAIR, 3), "head": f(D, 10)}, (f(2, 8),), each(TWO, 3),
    {"stem": "in", "head": "head"}, scales=[(1.0, 1.0, 1.0), (0.5, 1.0, 1.0), (1.0, 1.0, 1.0)],
)  # fmt: skip
def momentum(p, x):
    """The stream adds up another one, to which branches are added; the last is of both sums."""
    x = x @ p["in"]
    v = jnp.zeros_like(x)
    for i in range(3):
        v = 0.5 * v + jnp.tanh(x @ p[f"l{i}"]["w1"]) @ p[f"l{i}"]["w2"]
        x = x + v
    return x @ p["head"]


@case(
    Case, {"in": f(8, D), **blocks({"w": f(D, D), "b": f(D)}, 3), "head": f(D, 10)}, (f(2, 8),),
    each("#w", 3), {"stem": "in", "head": "head", "bias": "l0/b l2/b"},
)  # fmt: skip
def crossed_with_the_input(p, x):
    """The layer's only path makes a factor, of what the stream began with."""
    first = x = x @ p["in"]
    for i in range(3):
        x = first * (x @ p[f"l{i}"]["w"] + p[f"l{i}"]["b"]) + x
    return x @ p["head"]


@case(on_vectors, PAIR | {"decay": f(D)}, 1, branches=TWO, options={"keep": "decay"})
def root_of_a_leaf(p, x):
    """A factor of a recurrence, and no norm, as its leaf is kept."""
    h = jnp.sqrt(1 - jnp.exp(-p["decay"])) * (x @ p["w1"])
    return x + jnp.tanh(h) @ p["w2"]


@case(
    Case, {"in": f(8, D), **blocks(PAIR, 1), "mean": f(D, 4), "log": f(D, 4), "head": f(4, 10)},
    (f(2, 8), f(2, 4)), each(TWO, 1), {"stem": "in", "head": "head", "keep": "mean log"},
    doubt="expected .* keep= to match 'mean', 'log'", options={"keep": "mean|log"},
)  # fmt: skip
def drawn_latent(p, x, noise):
    """A mean, and a deviation times noise: two layers of one value, of another shape."""
    x = x @ p["in"]
    x = x + jnp.tanh(x @ p["l0"]["w1"]) @ p["l0"]["w2"]
    return jnp.tanh(x @ p["mean"] + jnp.exp(x @ p["log"]) * noise) @ p["head"]


@case(
    Case, {"in": f(8, D), "re": f(D, D), "im": f(D, D), "head": f(D, 10)}, (f(2, 8),),
    roles={"stem": "in re im", "head": "head"},
)  # fmt: skip
def complex_weights(p, x):
    """A leaf is multiplied by the imaginary unit, which is no scale of it."""
    x = jnp.fft.fft(x @ p["in"])
    return jax.nn.relu((x @ (p["re"] + 1j * p["im"])).real) @ p["head"]


@case(
    on_images,
    {"k3": f(3, 3, 16, 16), "k5": f(5, 5, 16, 16), "router": f(16, 2)} | {"out": f(1, 1, 16, 16)},
    branches="#k3,#k5 #out", roles={"keep": "l0/router"},
)  # fmt: skip
def weighed_paths(p, x):
    """Shares weigh two layers one by one, so that each share passes the product of the other."""
    shares = jax.nn.softmax(x.mean((1, 2)) @ p["router"])[:, None, None]
    y = shares[..., :1] * conv(x, p["k3"]) + shares[..., 1:] * conv(x, p["k5"])
    return x + conv(jax.nn.relu(y), p["out"])


@case(
    on_tokens, {"router": f(D, 2), "e0": FEED, "e1": FEED}, 2,
    branches="#e0/up #e0/down;#e1/up #e1/down", roles={"keep": "l0/router"},
)  # fmt: skip
def experts_apart(p, x):
    """Summands that a router weighs; it makes no one branch of them."""
    shares = jax.nn.softmax(x @ p["router"])
    return x + shares[..., :1] * feed(p["e0"], x) + shares[..., 1:] * feed(p["e1"], x)


@case(on_tokens, QKVO, 1, branches="#k #q #v #o")
def attention_in_another_order(p, x):
    """The value is the third layer in whatever order they are computed."""
    v, k, q = (split_heads(x @ p[name]) for name in "vkq")
    return x + attention(q, k, v).reshape(x.shape) @ p["o"]


@case(on_tokens, QKVO, 1, branches="#q,#k,#v #o")
def products_added_up(p, x):
    """What keys and values give is added up over the tokens, and is no gate of the queries."""
    q, k, v = (x @ p[name] for name in "qkv")
    return x + (q * (jnp.tanh(k) * v).sum(1, keepdims=True)) @ p["o"]


@case(
    on_tokens, {"table": f(12, 12), "v": f(D, D), "o": f(D, D)}, 1, branches="#v #o",
    doubt="'l0/table'.*expected keep=", options={"keep": "table"},
)  # fmt: skip
def table_behind_an_exponential(p, x):
    """Its zeros are not those of the layer."""
    weights = jnp.exp(p["table"])
    return x + jnp.einsum("ts,bsd->btd", weights, jnp.tanh(x @ p["v"])) @ p["o"]


@case(
    on_images, {"r": f(16, 4), "w": f(4, 3, 3, 16, 16), "out": f(1, 1, 16, 16)}, branches="#out",
    doubt="made by 'l0/r', 'l0/w'; expected keep=", options={"keep": "/[rw]$"},
)  # fmt: skip
def kernels_made_of_data(p, x):
    kernels = jnp.einsum("be,ehwio->bhwio", jax.nn.sigmoid(x.mean((1, 2)) @ p["r"]), p["w"])
    mixed = jax.vmap(lambda x, w: conv(x[None], w)[0])(x, kernels)
    return x + conv(jax.nn.relu(mixed), p["out"])


@case(
    on_images, {"w": f(3, 3, 16, 16), "out": f(1, 1, 16, 16)}, branches="#out",
    doubt="'l0/w' .*expected keep=", options={"keep": "/w$"},
)  # fmt: skip
def kernels_scaled_by_data(p, x):
    kernels = p["w"] * x.mean((1, 2))[:, None, None, :, None]
    scaled = jax.vmap(lambda x, w: conv(x[None], w)[0])(x, kernels)
    return x + conv(jax.nn.relu(scaled), p["out"])


@case(on_tokens, {"w1": f(D, D), "w2": f(2, D, D)}, 1, doubt="'l0/w2' .*expected keep=")
def kernels_chosen_by_data(p, x):
    chosen = (x[:, 0, 0] > 0).astype(int)
    return x + jnp.einsum("btd,bde->bte", jnp.tanh(x @ p["w1"]), p["w2"][chosen])


@case(
    on_images, {"in": f(1, 1, 16, 4), "a": f(1, 1, 4, 8), "b": f(3, 3, 4, 8)},
    doubt="no single layer.*'l0/b'.*keep=",
)  # fmt: skip
def ends_in_two_layers(p, x):
    """No layer at the end makes the branch zero alone, though the first one does."""
    h = jax.nn.relu(conv(x, p["in"]))
    return x + jnp.concatenate([conv(h, p["a"]), conv(h, p["b"])], -1)


@case(on_tokens, FEED, 2, branches="#up #down")
def chosen_tokens(p, x):
    """A branch of some tokens is added where they were."""
    _, chosen = lax.top_k(jnp.square(x).sum(-1), 4)
    y = feed(p, jnp.take_along_axis(x, chosen[..., None], 1))
    return x.at[jnp.arange(2)[:, None], chosen].add(y)


@case(
    on_tokens, FEED | {"mix": f(2, 2)}, 1, branches="#up #down",
    doubt="'l0/mix'.*projections=", options={"projections": True}, roles={"shortcut": "l0/mix"},
)  # fmt: skip
def mixed_streams(p, x):
    """A layer of another order of axes keeps the shape of the stream, too."""
    h = jnp.stack([x, x], 2)
    mixed = jnp.einsum("btnd,nm->btmd", h, p["mix"])
    return (mixed + feed(p, h)).sum(2)


def begins_as_a_leaf(body, layers, branches, doubt):
    """A stream of a leaf's takes what a stream of the input gives."""
    params = {"in": f(8, D), "begin": f(1, 3, D), **blocks(layers, 2), "head": f(D, 10)}

    def network(p, x):
        x, z = x @ p["in"], jnp.broadcast_to(p["begin"], (2, 3, D))
        for layer in (p["l0"], p["l1"]):
            z = body(layer, z, x)
        return z.mean(1) @ p["head"]

    return Case(
        network, params, (f(2, 12, 8),), each(branches, 2), {"stem": "in", "head": "head"},
        doubt=doubt, options={"streams": "begin"},
    )  # fmt: skip


@case(
    begins_as_a_leaf, QKVO | FEED, "#q,#k,#v #o;#up #down",
    "'begin'.*'l0/q'.*, or streams=",
)  # fmt: skip
def latents(p, z, x):
    z = z + attend(p, z, x, causal=False)
    return z + feed(p, z)


@case(
    begins_as_a_leaf, QKVO | {"scale": f(D)}, "#q,#k,#v #o",
    "'begin'.*expected streams= or keep=",
)  # fmt: skip
def tokens_of_a_class(p, z, x):
    """They are joined to the others, so that no product is of leaves alone."""
    joined = jnp.concatenate([z, x], 1)
    return z + p["scale"] * attend(p, joined, causal=False)[:, :3]


# Transformations, choices and shared layers.


@case(
    functools.partial(under_vmap, (0, None)),
    {"in": f(5, 3, 3, 3, 8), "w1": f(5, 3, 3, 8, 8), "w2": f(5, 3, 3, 8, 8)},
    (images(8),), ("w1 w2",), {"stem": "in"}, fans={"w1": (72, 72)}, axes={"w1": "OHWIO"},
)  # fmt: skip
def networks_under_vmap(p, x):
    """Of several networks of one batch the axis becomes one of outputs, by a reshape."""
    x = conv(x, p["in"])
    return x + conv(jax.nn.relu(conv(x, p["w1"])), p["w2"])


def over_time(step, layers, branches):
    """A residual network whose branches run over time, from a state of zeros."""

    def body(p, x):
        return x + lax.scan(lambda h, x: (step(p, h, x),) * 2, jnp.zeros((2, D)), x)[1]

    known = on_vectors(body, layers, 2, branches=branches)
    return dataclasses.replace(known, inputs=(f(5, 2, 8),))


@case(over_time, {"in": f(D, D), "again": f(D, D)}, "#again #in")
def recurrent_branch(p, h, x):
    """The state stays zero if what enters it is, though its own layer is computed before."""
    return jnp.tanh(h @ p["again"] + x @ p["in"])


@case(over_time, {"in": f(D, D), "gate": f(D, D)}, "#gate #in")
def gated_state(p, h, x):
    """The gate of a state is one of the layers that make it."""
    z = jax.nn.sigmoid(h @ p["gate"])
    return z * h + (1 - z) * jnp.tanh(x @ p["in"])


@case(
    on_vectors, PAIR | {"v1": f(D, D), "v2": f(D, D)}, branches="#w1 #w2;#v1 #v2",
    scales=(1.0, -0.5, 1.0),
)  # fmt: skip
def scaled_sum_of_branches(p, x):
    return x - 0.5 * (jnp.tanh(x @ p["w1"]) @ p["w2"] + jax.nn.relu(x @ p["v1"]) @ p["v2"])


@case(on_vectors, PAIR, branches=TWO, scales=(0.75, 0.25, 1.0))
def part_of_the_way(p, x):
    return x + 0.25 * (jnp.tanh(x @ p["w1"]) @ p["w2"] - x)


@case(
    on_vectors, {"w1": jax.ShapeDtypeStruct((D, D), jnp.int8), "s": f(1, D), "w2": f(D, D)},
    doubt="'l0/w1' .*a weight of int8; .*keep",
)  # fmt: skip
def quantized(p, x):
    return x + jnp.tanh(x @ (p["w1"] * p["s"])) @ p["w2"]


@case(Case, PAIR | {"head": f(D, 10)}, (f(2, D),), ("w1 w2",), {"head": "head"})
def sum_of_many(p, x):
    """A loss of more terms than Python calls nest."""
    y = (x + jnp.tanh(x @ p["w1"]) @ p["w2"]) @ p["head"]
    return sum(i * y for i in range(1100))


@case(
    Case, {name: jax.ShapeDtypeStruct(shape, jnp.complex64) for name, shape in
           {"in": (8, D), "w1": (D, D), "w2": (D, D)}.items()} | {"head": f(D, 10)},
    (f(2, 8),), ("w1 w2",), {"stem": "in", "head": "head"},
)  # fmt: skip
def complex_stream(p, x):
    x = x @ p["in"]
    h = x @ p["w1"]
    return jnp.abs(x + h * (jnp.abs(h) > 1) @ p["w2"]) @ p["head"]


@case(on_vectors, {"w": f(D, D)}, doubt="'l0/w' .*layer 1 of 2 and layer 2 of 2")
def tied_to_its_transpose(p, x):
    return x + jnp.tanh(x @ p["w"]) @ p["w"].T


@case(
    Case, {"a": f(D, D), "b": f(D, D), "c": f(D, D), "head": f(D, 10)}, (f(2, D),),
    doubt="'a' .*layer 1 of 2 and layer 1 of 3",
)  # fmt: skip
def shared_by_unlike_branches(p, x):
    x = x + jnp.tanh(x @ p["a"]) @ p["b"]
    return (x + jnp.tanh(jnp.tanh(x @ p["a"]) @ p["c"]) @ p["c"]) @ p["head"]


@case(
    Case, {**blocks(PAIR, 2), "head": f(D, 10)}, (f(2, D), jax.ShapeDtypeStruct((), jnp.int32)),
    ("l0/w1 l0/w2",), {"head": "head", "keep": "l1/w1"},
    doubt="'l1/w1' .*one branch of lax.cond or lax.switch", options={"keep": "l1"},
)  # fmt: skip
def blocks_chosen_by_switch(p, x, number):
    def block(p):
        return lambda x: x + jnp.tanh(x @ p["w1"]) @ p["w2"]

    return lax.switch(number, [block(p["l0"]), block(p["l1"])], x) @ p["head"]


@case(
    Case,
    {"in": f(48, D), "class": f(1, D), "at": f(17, D), "head": f(D, 10)}
    | {"l0": FEED | {"again": f(17, D)}},
    (f(2, 16, 48),), ("l0/up l0/down",),
    {"stem": "in", "head": "head", "keep": "class at l0/again"},
)  # fmt: skip
def positions_of_patches(p, x):
    """What is added by position is no bias vector of the layer before, nor of the last."""
    x = x @ p["in"]
    first = jnp.broadcast_to(p["class"], (2, 1, D))
    x = jnp.concatenate([first, x], 1) + p["at"]
    x = x + feed(p["l0"], x) + p["l0"]["again"]
    return x[:, 0] @ p["head"]


@case(on_vectors, PAIR | {"b": f(D)}, branches=TWO, roles={"channel_bias": "l0/b l1/b"})
def shifted_on_the_way_into_a_branch(p, x):
    """The stream itself does not have the bias vector, which is none of the stem's layer."""
    return x + jnp.tanh((x + p["b"]) @ p["w1"]) @ p["w2"]


@case(on_vectors, PAIR, doubt="no single layer.*'l0/w1', 'l0/w2'")
def ends_in_a_constant(p, x):
    """The function behind the last layer is one half at zero."""
    return x + jax.nn.hard_sigmoid(jnp.tanh(x @ p["w1"]) @ p["w2"])


@case(
    on_vectors, {"in": f(D, D), "a": f(D, D), "b": f(D, D)},
    doubt="no single layer.*keep=",
)  # fmt: skip
def ends_in_two_summands(p, x):
    h = jnp.tanh(x @ p["in"])
    return x + h @ p["a"] + h @ p["b"]


@made
def experts_by_place():
    """A router says where a token is put and from where it is taken."""

    def body(p, x):
        chances = jax.nn.softmax(x @ p["router"])
        at = chances.argmax(-1), jnp.arange(6)
        h = jnp.zeros((3, 6, D)).at[at].set(x)
        y = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", h, p["w1"])), p["w2"])
        return x + y[at] * chances.max(-1, keepdims=True)

    params = {"in": f(8, D), "router": f(D, 3), "w1": f(3, D, 64), "w2": f(3, 64, D)}
    return Case(
        lambda p, x: body(p, x @ p["in"]), params, (f(6, 8),), ("w1 w2",),
        {"stem": "in", "keep": "router"},
    )  # fmt: skip


@case(
    on_vectors, {"router": f(D, 2), "e0": FEED, "e1": FEED},
    branches="#e0/up #e0/down;#e1/up #e1/down", roles={"keep": "l0/router"},
)  # fmt: skip
def experts_by_condition(p, x):
    """A router says which expert's output each token gets; each expert is a branch."""
    chosen = (x @ p["router"]).argmax(-1, keepdims=True)
    return x + sum(jnp.where(chosen == i, feed(p[f"e{i}"], x), 0) for i in range(2))


@case(
    on_vectors, {"router": f(D, 2), "e0": FEED, "e1": FEED},
    doubt="'l0/e0/down' .*cannot be followed",
)  # fmt: skip
def experts_by_switch_under_vmap(p, x):
    """A condition of each example chooses the weights."""

    def one(x):
        experts = [lambda x, p=p[name]: feed(p, x) for name in ("e0", "e1")]
        return lax.switch((x @ p["router"]).argmax(), experts, x)

    return x + jax.vmap(one)(x)


@case(
    on_vectors, {"router": f(D, 3), "w1": f(3, D, D), "w2": f(3, D, D)},
    doubt="'l0/w1' .*cannot be followed",
)  # fmt: skip
def experts_of_ragged_products(p, x):
    chosen = (x @ p["router"]).argmax(-1)
    sizes = jnp.bincount(chosen, length=3).astype(jnp.int32)
    order = jnp.argsort(chosen)
    h = jax.nn.relu(lax.ragged_dot(x[order], p["w1"], sizes))
    return x + lax.ragged_dot(h, p["w2"], sizes)[jnp.argsort(order)]


CASES |= {
    "pooled_shortcut": lambda: bottleneck(skip=lambda p, x: conv(pooled(x) / 4, p["sc"])),
    "shortcut_of_largest_values": lambda: bottleneck(
        skip=lambda p, x: conv(pooled(x, -jnp.inf, lax.max), p["sc"])
    ),
    "unet_joined": lambda: Case(*unet(joined=True)),
    "unet_summed": lambda: Case(
        *unet(joined=False), doubt="'down'.*contains others.*nested=", options={"nested": "inner"}
    ),
    "mixer_of_unequal_widths": lambda: mixer(64, 24),
    "mixer_of_equal_widths": lambda: mixer(64, 64),
    "shared_layers_unrolled": lambda: shared_layers(scanned=False),
    "shared_layers_scanned": lambda: shared_layers(scanned=True),
    "low_rank_kept": lambda: dataclasses.replace(
        CASES["low_rank_on_data"](), options={"keep": "_[ab]$"}
    ),
    "encoder_decoder_of_two": lambda: encoder_decoder(2),
    "encoder_decoder_of_one": lambda: encoder_decoder(1),
    "two_outputs_of_a_block": lambda: two_outputs(D),
    "two_outputs_of_unequal_widths": lambda: two_outputs(24),
    "stacked_with_constants": lambda: stacked_with(reverse=False),
    "stacked_with_constants_from_the_end": lambda: stacked_with(reverse=True),
    "stacked_at_run_time": lambda: stack_made_at_run_time(lax.scan),
    "loop_over_examples": lambda: turns_side_by_side(lax.map),
    "query_of_two_leaves": query_of_leaves,
    "query_with_a_bias": lambda: query_of_leaves("b"),
}
