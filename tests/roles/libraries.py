"""Networks of other libraries' modules, each with what is right about it, by hand."""

import itertools
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

from tests.roles.networks import VOCABULARY, Case, D, f, images, tokens


def linen(module, *inputs, **truth):
    """A case of a Flax network; its state is ones."""
    variables = jax.eval_shape(module.init, jax.random.key(0), *inputs)
    state = {name: variables[name] for name in variables if name != "params"}

    def network(params, *inputs):
        given = {"params": params, **jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), state)}
        out = module.apply(given, *inputs, mutable=list(state) or False)
        return out[0] if state else out

    return Case(network, variables["params"], inputs, **truth)


class Block(nn.Module):
    filters: int
    stride: int
    bottleneck: bool

    @nn.compact
    def __call__(self, x):
        conv = partial(nn.Conv, use_bias=False)
        norm = partial(nn.BatchNorm, use_running_average=False)
        last = self.filters * (4 if self.bottleneck else 1)
        sizes = ((1, 1, self.filters), (3, self.stride, self.filters), (1, 1, last))
        y = x
        for size, stride, width in (
            sizes if self.bottleneck else ((3, self.stride, last), (3, 1, last))
        ):
            y = nn.relu(y) if y is not x else y
            y = norm()(conv(width, (size, size), (stride, stride))(y))
        if x.shape != y.shape:
            x = norm(name="n")(conv(last, (1, 1), (self.stride,) * 2, name="sc")(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    stages: tuple
    bottleneck: bool

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (7, 7), (2, 2), use_bias=False, name="stem")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for i, count in enumerate(self.stages):
            for j in range(count):
                x = Block(16 * 2**i, 1 + (i > 0 and j == 0), self.bottleneck)(x)
        return nn.Dense(10)(x.mean((1, 2)))


def resnet(stages, *, bottleneck):
    starts = set(itertools.accumulate((0, *stages[:-1])))
    layers = [f"Conv_{j}/kernel" for j in range(3 if bottleneck else 2)]
    branches = [" ".join(f"Block_{b}/{layer}" for layer in layers) for b in range(sum(stages))]
    shortcuts = [f"Block_{b}/sc/kernel" for b in sorted(starts) if bottleneck or b]
    return linen(
        ResNet(stages, bottleneck), images(64), branches=tuple(branches), normalized="data",
        roles={
            "stem": "stem/kernel", "head": "Dense_0/kernel", "shortcut": " ".join(shortcuts),
            "norm": "Block_0/BatchNorm_0/scale Block_0/BatchNorm_1/bias",
        },
        fans={"stem/kernel": (147, 784)},
    )  # fmt: skip


class Layer(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        x = x + nn.MultiHeadDotProductAttention(4, name="attn")(nn.LayerNorm(name="ln")(x))
        y = nn.LayerNorm(name="ln2")(x)
        return x + nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(64)(y))), None


ATTENTION = "{0}attn/query/kernel,{0}attn/key/kernel,{0}attn/value/kernel {0}attn/out/kernel".format
FEEDS = "{0}Dense_1/kernel {0}Dense_0/kernel".format  # Flax numbers the outer call first


def linen_vision_transformer():
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(D, (8, 8), (8, 8), name="patch")(x).reshape(2, -1, D)
            token = self.param("token", nn.initializers.zeros, (1, 1, D))
            x = jnp.concatenate([jnp.tile(token, (2, 1, 1)), x], 1)
            x = x + self.param("positions", nn.initializers.normal(), (1, 17, D))
            for i in range(2):
                x, _ = Layer(name=f"l{i}")(x, None)
            return nn.Dense(10, name="head")(nn.LayerNorm()(x)[:, 0])

    branches = tuple(layers(f"l{i}/") for i in range(2) for layers in (ATTENTION, FEEDS))
    known = {"stem": "patch/kernel", "head": "head/kernel", "keep": "token positions"}
    return linen(
        Network(), images(32), branches=branches, normalized="data",
        roles=known | {"norm": "l0/ln/scale", "bias": "l0/attn/query/bias l1/Dense_0/bias"},
        axes={"l0/attn/query/kernel": "IOO", "l0/attn/out/kernel": "IIO"},
    )  # fmt: skip


def scanned(layer):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, t):
            x = nn.Embed(VOCABULARY, D, name="wte")(t) + nn.Embed(12, D, name="wpe")(jnp.arange(12))
            scan = nn.scan(
                layer, variable_axes={"params": 0}, split_rngs={"params": True}, length=5
            )
            x, _ = scan(name="h")(x, None)
            return nn.Dense(VOCABULARY, use_bias=False, name="head")(nn.LayerNorm()(x))

    return linen(
        Network(), tokens(), branches=(ATTENTION("h/"), FEEDS("h/")) * 5, normalized="data",
        roles={"embedding": "wte/embedding", "head": "head/kernel", "keep": "wpe/embedding"},
        axes={"h/attn/query/kernel": "NIOO"}, fans={"h/Dense_0/kernel": (64, 32)},
    )  # fmt: skip


def nnx_resnet():
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, i, o, rngs):
            conv = partial(nnx.Conv, kernel_size=(3, 3), use_bias=False, rngs=rngs)
            self.conv2, self.conv1 = conv(o, o), conv(i, o)
            self.norm = nnx.BatchNorm(o, rngs=rngs)
            self.down = nnx.Conv(i, o, (1, 1), use_bias=False, rngs=rngs) if i != o else None

        def __call__(self, x):
            y = self.conv2(nnx.relu(self.norm(self.conv1(x))))
            return nnx.relu((x if self.down is None else self.down(x)) + y)

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
            self.blocks = nnx.List([Block(8, 8, rngs), Block(8, 16, rngs), Block(16, 16, rngs)])
            self.head = nnx.Linear(16, 10, rngs=rngs)

        def __call__(self, x):
            x = self.stem(x)
            for block in self.blocks:
                x = block(x)
            return self.head(x.mean((1, 2)))

    definition, params, state = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)

    def network(params, x):
        return nnx.merge(definition, params, jax.tree.map(jnp.copy, state))(x)

    branches = [f"blocks/{b}/conv1/kernel/value blocks/{b}/conv2/kernel/value" for b in range(3)]
    known = {"shortcut": "blocks/1/down/kernel/value", "head": "head/kernel/value"}
    return Case(network, params, (images(),), tuple(branches), known, normalized="data")


def haiku_resnet(version):
    haiku = pytest.importorskip("haiku")

    def forward(x):
        return haiku.nets.ResNet50(10, resnet_v2=version == 2)(x, is_training=True)

    made = haiku.without_apply_rng(haiku.transform_with_state(forward))
    params, state = jax.eval_shape(made.init, jax.random.key(0), images(64))
    start, branches, shortcuts = "res_net50/~/", [], []
    for group, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            path = f"{start}block_group_{group}/~/block_{block}/~/"
            branches.append(" ".join(f"{path}conv_{j}/w" for j in range(3)))
            shortcuts += [f"{path}shortcut_conv/w"] * (block == 0)

    def network(params, x):
        ones = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), state)
        return made.apply(params, ones, x)[0]

    known = {"stem": start + "initial_conv/w", "head": start + "logits/w"}
    known["shortcut"] = " ".join(shortcuts)
    return Case(network, params, (images(64),), tuple(branches), known, normalized="data")


def equinox_resnet():
    eqx = pytest.importorskip("equinox")

    class Block(eqx.Module):
        b: eqx.nn.Conv2d
        a: eqx.nn.Conv2d
        p: object

        def __init__(self, i, o, key):
            self.a, self.b = (eqx.nn.Conv2d(n, o, 3, padding=1, key=key) for n in (i, o))
            self.p = eqx.nn.Conv2d(i, o, 1, key=key) if i != o else None

        def __call__(self, x):
            return (x if self.p is None else self.p(x)) + self.b(jax.nn.relu(self.a(x)))

    key = jax.random.key(0)
    tree = {
        "head": eqx.nn.Linear(16, 10, key=key),
        "blocks": [Block(8, 8, key), Block(8, 16, key), Block(16, 16, key)],
        "stem": eqx.nn.Conv2d(3, 8, 3, padding=1, key=key),
    }
    params, rest = eqx.partition(tree, eqx.is_array)

    def one(tree, x):
        x = tree["stem"](x)
        for block in tree["blocks"]:
            x = block(x)
        return tree["head"](x.mean((1, 2)))

    def network(params, x):
        return jax.vmap(partial(one, eqx.combine(params, rest)))(x)

    branches = tuple(f"blocks/{b}/a/weight blocks/{b}/b/weight" for b in range(3))
    known = {"stem": "stem/weight", "head": "head/weight", "shortcut": "blocks/1/p/weight"}
    known["bias"] = "blocks/0/b/bias"
    return Case(
        network, params, (f(2, 3, 16, 16),), branches, known, {"blocks/1/a/weight": (72, 144)},
        {"stem/weight": "OIHW", "head/weight": "OI"},
    )  # fmt: skip


LIBRARIES = {
    "linen_resnet_50": lambda: resnet((3, 4, 6, 3), bottleneck=True),
    "linen_resnet_18": lambda: resnet((2, 2, 2, 2), bottleneck=False),
    "linen_vision_transformer": linen_vision_transformer,
    "linen_scanned_transformer": lambda: scanned(Layer),
    "linen_scanned_transformer_with_remat": lambda: scanned(nn.remat(Layer)),
    "nnx_resnet": nnx_resnet,
    "haiku_resnet_v1": lambda: haiku_resnet(1),
    "haiku_resnet_v2": lambda: haiku_resnet(2),
    "equinox_resnet": equinox_resnet,
}
