"""A network whose norms were taken out computes what one written by hand without them computes."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from nf_resnets import models, norm_free, roles
from tests.norm_free.drawn import X, assert_same, drawn
from tests.roles.libraries import LIBRARIES
from tests.roles.networks import HEADS, attention, conv, f, rms, split_heads

pytestmark = pytest.mark.usefixtures("strangers_broadcast")

WIDTH, COUNT = 8, 2


# Residual branches relu(norm(x up)) down, in five libraries.


def by_hand(layers, parts, x):
    stem, blocks, head = layers
    x = x @ stem
    for k, (up, down) in enumerate(blocks, 1):
        part = parts[f"branch_{k}"]
        h = (x + part["bias_layer_1"]) @ up + part["bias_activation_1"]
        x = x + part["multiplier"] * ((jax.nn.relu(h) + part["bias_layer_2"]) @ down)
    return (x + parts["head"]["bias_layer_1"]) @ head


class Linen(nn.Module):
    norm: object
    before: bool = False

    @nn.compact
    def __call__(self, x):
        dense = partial(nn.Dense, use_bias=False)
        x = dense(WIDTH)(x)
        for _ in range(COUNT):
            h = self.norm()(x) if self.before else x
            h = dense(2 * WIDTH)(h)
            x = x + dense(WIDTH)(nn.relu(h if self.before else self.norm()(h)))
        return dense(3)(x)


def linen(norm, *, leaves=True, before=False):
    module = Linen(norm, before)
    variables = module.init(jax.random.key(0), X)
    state = {name: drawn(value) for name, value in variables.items() if name != "params"}
    state = jax.tree.map(jnp.abs, state)  # of variances
    params = {"params": variables["params"], **(state if leaves else {})}

    def network(params, x):
        out = module.apply({**state, **params}, x, mutable=list(state) or False)
        return out[0] if state else out

    def layers(params):
        kernels = [params["params"][f"Dense_{i}"]["kernel"] for i in range(2 * COUNT + 2)]
        return kernels[0], [kernels[i : i + 2] for i in (1, 3)], kernels[-1]

    return network, params, layers


class ScaleFirst(nn.Module):
    """The scale stands before the division."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        centred = x - x.mean(-1, keepdims=True)
        return scale * centred / jnp.sqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5)


class OfLength(nn.Module):
    """A constant stands between the scale and the division by the length, which is held fixed."""

    @nn.compact
    def __call__(self, x):
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:])
        length = jax.lax.stop_gradient(jnp.linalg.norm(x, axis=-1, keepdims=True))
        return x / jnp.maximum(length, 1e-12) * x.shape[-1] ** 0.5 * scale


def of_nnx():
    class Network(nnx.Module):
        def __init__(self, rngs):
            dense = partial(nnx.Linear, use_bias=False, rngs=rngs)
            self.stem, self.head = dense(6, WIDTH), dense(WIDTH, 3)
            self.up = nnx.List([dense(WIDTH, 2 * WIDTH) for _ in range(COUNT)])
            self.down = nnx.List([dense(2 * WIDTH, WIDTH) for _ in range(COUNT)])
            self.norms = nnx.List([nnx.BatchNorm(2 * WIDTH, rngs=rngs) for _ in range(COUNT)])

        def __call__(self, x):
            x = self.stem(x)
            for up, norm, down in zip(self.up, self.norms, self.down, strict=True):
                x = x + down(nnx.relu(norm(up(x))))
            return self.head(x)

    definition, params, state = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)

    def network(params, x):
        return nnx.merge(definition, params, jax.tree.map(jnp.copy, state))(x)

    def layers(params):
        up, down = (
            [params[name][i]["kernel"][...] for i in range(COUNT)] for name in ("up", "down")
        )
        blocks = [*zip(up, down, strict=True)]
        return params["stem"]["kernel"][...], blocks, params["head"]["kernel"][...]

    return network, params, layers


def of_haiku():
    haiku = pytest.importorskip("haiku")

    def forward(x):
        dense = partial(haiku.Linear, with_bias=False)
        x = dense(WIDTH)(x)
        for _ in range(COUNT):
            h = haiku.BatchNorm(True, True, 0.9)(dense(2 * WIDTH)(x), is_training=True)
            x = x + dense(WIDTH)(jax.nn.relu(h))
        return dense(3)(x)

    made = haiku.without_apply_rng(haiku.transform_with_state(forward))
    params, state = made.init(jax.random.key(0), X)

    def layers(params):
        kernels = [params[f"linear_{i}" if i else "linear"]["w"] for i in range(2 * COUNT + 2)]
        return kernels[0], [kernels[i : i + 2] for i in (1, 3)], kernels[-1]

    return lambda params, x: made.apply(params, state, x)[0], params, layers


def of_equinox():
    eqx = pytest.importorskip("equinox")
    keys = iter(jax.random.split(jax.random.key(0), 2 * COUNT + 2))

    def dense(i, o):
        return eqx.nn.Linear(i, o, use_bias=False, key=next(keys))

    tree = {
        "stem": dense(6, WIDTH),
        "blocks": [
            (dense(WIDTH, 2 * WIDTH), eqx.nn.GroupNorm(2, 2 * WIDTH), dense(2 * WIDTH, WIDTH))
            for _ in range(COUNT)
        ],
        "head": dense(WIDTH, 3),
    }

    def one(tree, x):
        x = tree["stem"](x)
        for up, norm, down in tree["blocks"]:
            x = x + down(jax.nn.relu(norm(up(x))))
        return tree["head"](x)

    def layers(tree):
        blocks = [(up.weight.T, down.weight.T) for up, _, down in tree["blocks"]]
        return tree["stem"].weight.T, blocks, tree["head"].weight.T

    return lambda tree, x: jax.vmap(partial(one, tree))(x), tree, layers


NETWORKS = {
    "layer": partial(linen, nn.LayerNorm),
    "layer_before": partial(linen, nn.LayerNorm, before=True),
    "rms": partial(linen, nn.RMSNorm),
    "scale_first": partial(linen, ScaleFirst),
    "of_length": partial(linen, OfLength),
    "group": partial(linen, partial(nn.GroupNorm, 4)),
    "slow_variance": partial(linen, partial(nn.LayerNorm, use_fast_variance=False)),
    "batch": partial(linen, partial(nn.BatchNorm, use_running_average=False)),
    "running": partial(linen, partial(nn.BatchNorm, use_running_average=True)),
    "running_closed_over": partial(
        linen, partial(nn.BatchNorm, use_running_average=True), leaves=False
    ),
    "nnx": of_nnx, "haiku": of_haiku, "equinox": of_equinox,
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_it_is_the_network_without_norms(name):
    network, params, layers = NETWORKS[name]()
    net = norm_free(network, params, X, depth=COUNT)
    assert not net.apply(net.params, X).any()  # Fixup's start
    new = drawn(net.params)
    expected = by_hand(layers(new["network"]), new["parts"], X)
    assert_same(net.apply(new, X), expected)
    assert len(net.norms) == COUNT
    assert not any(leaf.path.endswith("scale") for leaf in net.roles.leaves)
    count = sum(leaf.role is roles.Role.SCALAR_BIAS for leaf in net.roles.leaves)
    assert count == 3 * COUNT + 1


@pytest.mark.parametrize("train", [pytest.param(False, marks=pytest.mark.slow), True])
def test_our_wide_resnet_becomes_its_fixup_twin(train):
    model, twin = (models.WideResNet(depth=16, width=1, scheme=s) for s in ("batchnorm", "fixup"))
    x = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype(np.float32)
    params = model.init(jax.random.key(0), x)

    def network(params, x):
        out = model.apply(params, x, train=train, mutable=["batch_stats"] if train else False)
        return out[0] if train else out

    net = norm_free(network, params, x, depth=6)
    assert len(net.norms) == 13
    new = drawn(net.params, scale=0.2)
    parts, fixup = new["parts"], new["network"]["params"]
    for k in (3, 5):  # the bias before a layer is the shortcut's, too, and not in our network
        parts[f"branch_{k}"]["bias_layer_1"] = jnp.zeros(())
    result = net.apply(new, x)
    outside = [parts["outside"][f"bias_activation_{i}"] for i in (1, 2, 3)]
    fixup |= {"bias_relu": outside[2], "bias_head": parts["head"]["bias_layer_1"]}
    for k in range(1, 7):
        branch = parts[f"branch_{k}"]
        block = fixup[f"stage_{(k + 1) // 2}"]["first" if k % 2 else "rest"]
        activations = [branch[name] for name in sorted(branch) if "activation" in name]
        # In a transition the shortcut, too, takes the activation, which lies above the fork.
        activations = [*outside[k // 2 - 1 : k // 2], *activations][-2:]
        block |= {"bias_1": activations[0], "bias_3": activations[1]}
        block |= {"bias_2": branch["bias_layer_1"], "bias_4": branch["bias_layer_2"]}
        block["multiplier"] = branch["multiplier"]
    shapes = jax.eval_shape(twin.init, jax.random.key(0), x)["params"]
    flat = flatten_dict(fixup)
    fixup = unflatten_dict({path: flat[path] for path in flatten_dict(shapes)})
    assert_same(result, twin.apply({"params": fixup}, x))


def test_a_linen_resnet_with_its_activation_behind_the_sum():
    case = LIBRARIES["linen_resnet_18"]()
    x = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    params = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), case.params)
    net = norm_free(case.network, params, x, depth=8)
    new = drawn(net.params, scale=0.1)
    parts, tree, outside = new["parts"], new["network"], iter(range(1, 10))

    def relu(x):
        return jax.nn.relu(x + parts["outside"][f"bias_activation_{next(outside)}"])

    h = relu(conv(x, tree["stem"]["kernel"], 2))
    h = nn.max_pool(h, (3, 3), (2, 2), "SAME")
    for k in range(8):
        block, part, stride = tree[f"Block_{k}"], parts[f"branch_{k + 1}"], 1 + (k in (2, 4, 6))
        biased = h + part["bias_layer_1"]
        y = conv(biased, block["Conv_0"]["kernel"], stride) + part["bias_activation_1"]
        y = conv(jax.nn.relu(y) + part["bias_layer_2"], block["Conv_1"]["kernel"])
        skip = conv(biased, block["sc"]["kernel"], stride) if "sc" in block else h
        h = relu(skip + part["multiplier"] * y)
    head = tree["Dense_0"]
    expected = (h.mean((1, 2)) + parts["head"]["bias_layer_1"]) @ head["kernel"] + head["bias"]
    assert_same(net.apply(new, x), expected)


def test_a_linen_vision_transformer():
    case = LIBRARIES["linen_vision_transformer"]()
    (x,) = drawn(case.inputs, scale=1.0)
    net = norm_free(case.network, drawn(case.params), x, depth=4)
    new = drawn(net.params)

    def put_in(call, args, kwargs, context):
        module, (block, *_) = context.module, (*context.module.path, "")
        if isinstance(module, nn.LayerNorm):
            return args[0]
        number = 2 * int(block[1]) if block.startswith("l") else 0
        attend, feed = (new["parts"].get(f"branch_{number + i}", {}) for i in (1, 2))
        if module.name == "head":
            return call(args[0] + new["parts"]["head"]["bias_layer_1"])
        if module.name == "attn":
            return attend["multiplier"] * call(args[0] + attend["bias_layer_1"])
        if module.name == "out":
            return call(args[0] + attend["bias_layer_2"])
        if module.name == "Dense_1":
            return call(args[0] + feed["bias_layer_1"]) + feed["bias_activation_1"]
        if module.name == "Dense_0":
            return feed["multiplier"] * call(args[0] + feed["bias_layer_2"])
        return call(*args, **kwargs)

    full = jax.tree.map(lambda s: jnp.ones(s.shape), case.params)
    is_none = {"is_leaf": lambda value: value is None}
    full = jax.tree.map(
        lambda new, one: one if new is None else new, new["network"], full, **is_none
    )
    with nn.intercept_methods(put_in):
        expected = case.network(full, x)
    assert_same(net.apply(new, x), expected)


def test_a_scanned_language_model_with_remat():
    width, count, tokens = 16, 3, np.arange(12).reshape(2, 6)
    shapes = {"q": (16, 16), "k": (16, 16), "v": (16, 16), "o": (16, 16), "up": (16, 32)}
    shapes |= {"down": (32, 16), "n1": (16,), "n2": (16,)}
    layers = {name: f(count, *shape) for name, shape in shapes.items()}
    params = drawn({"table": f(12, width), "h": layers, "n": f(width), "out": f(width, 12)})

    def attend(p, x):
        heads = (split_heads(x @ p[name], HEADS) for name in "qkv")
        return attention(*heads).reshape(x.shape)

    def network(params, tokens):
        def body(x, p):
            x = x + attend(p, rms(x, p["n1"])) @ p["o"]
            return x + jax.nn.gelu(rms(x, p["n2"]) @ p["up"]) @ p["down"], None

        x, _ = lax.scan(jax.checkpoint(body), params["table"][tokens], params["h"])
        return rms(x, params["n"]) @ params["out"]

    net = norm_free(network, params, tokens, depth=2 * count)
    assert net.params["parts"]["branch_1"]["multiplier"].shape == (count,)
    new = drawn(net.params)
    tree, parts = new["network"], new["parts"]
    x = tree["table"][tokens]
    for i in range(count):
        p, one, two = (
            {name: value[i] for name, value in some.items() if value is not None}
            for some in (tree["h"], parts["branch_1"], parts["branch_2"])
        )
        h = attend(p, x + one["bias_layer_1"]) + one["bias_layer_2"]
        x = x + one["multiplier"] * (h @ p["o"])
        h = jax.nn.gelu((x + two["bias_layer_1"]) @ p["up"] + two["bias_activation_1"])
        x = x + two["multiplier"] * ((h + two["bias_layer_2"]) @ p["down"])
    expected = (x + parts["head"]["bias_layer_1"]) @ tree["out"]
    assert_same(net.apply(new, tokens), expected)
