"""Ready rules on the networks they are for: roles of all leaves, order of branches, use."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nf_resnets import init, roles
from nf_resnets.init import rules
from nf_resnets.roles import Role
from tests.models.trees import quick_jit
from tests.trees.network import filled

IMAGES = jnp.ones((1, 32, 32, 3))


class ResNetBlock(nn.Module):
    """A block under the names of the Flax ImageNet example."""

    filters: int
    sizes: tuple = (3, 3)
    strides: int = 1
    norm: type | None = None

    @nn.compact
    def __call__(self, x):
        y = x
        for number, size in enumerate(self.sizes, start=1):
            last = number == len(self.sizes)
            features = self.filters * (4 if last and last > 2 else 1)
            strides = (self.strides if number == 1 else 1,) * 2
            y = nn.Conv(features, (size, size), strides, use_bias=False)(y)
            y = y if self.norm is None else self.norm(use_running_average=True)(y)
            y = y if last else nn.relu(y)
        if x.shape != y.shape:
            x = nn.Conv(y.shape[-1], (1, 1), (self.strides,) * 2, use_bias=False, name="conv_proj")(
                x
            )
            if self.norm is not None:
                x = self.norm(use_running_average=True, name="norm_proj")(x)
        return nn.relu(x + y)


class BottleneckResNetBlock(ResNetBlock):
    sizes: tuple = (1, 3, 1)


class ResNet(nn.Module):
    stages: tuple
    block: type = ResNetBlock
    norm: type | None = None

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(4, (7, 7), (2, 2), use_bias=False, name="conv_init")(x)
        if self.norm is not None:
            x = self.norm(use_running_average=True, name="bn_init")(x)
        for stage, blocks in enumerate(self.stages):
            for number in range(blocks):
                x = self.block(4 * 2**stage, strides=1 + (stage > 0 == number), norm=self.norm)(x)
        return nn.Dense(5)(nn.relu(x).mean(axis=(1, 2)))


def of_flax(**options):
    shapes = jax.eval_shape(ResNet(**options).init, jax.random.key(0), IMAGES)
    return filled(shapes["params"])


def described(tree, ready):
    """Each leaf's role by its path, without the kept ones; and the branches' names in order."""
    role_map = roles.assign(tree, ready)
    found = {leaf.path: leaf for leaf in role_map.leaves if leaf.role is not Role.KEEP}
    return found, [branch.name for branch in role_map.branches]


@pytest.mark.parametrize(("block", "m"), [(ResNetBlock, 2), (BottleneckResNetBlock, 3)])
def test_flax_resnet(block, m):
    tree = of_flax(stages=(10, 2), block=block, norm=nn.BatchNorm)
    found, names = described(tree, rules.flax_resnet())
    assert names == [f"{block.__name__}_{number}" for number in range(12)]
    for path, leaf in found.items():
        expected = {"conv_init": "stem", "Dense_0": "head"}.get(path.split("/")[0], "branch")
        assert leaf.role == ("shortcut" if "conv_proj" in path else expected), path
        assert expected != "branch" or leaf.role == "shortcut" or leaf.m == m, path
    weights = {path for path, leaf in described_leaves(tree) if leaf.ndim > 1}
    assert weights == {path for path, leaf in found.items() if leaf.weight}


def described_leaves(tree):
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [(roles.path_name(path), leaf) for path, leaf in flat]


def test_norms_are_named_on_request():
    """By their scales: in the Flax example nothing else has one."""
    tree = of_flax(stages=(2, 1), norm=nn.BatchNorm)
    scales = {path for path, _ in described_leaves(tree) if path.endswith("/scale")}
    named, _ = described(tree, rules.flax_resnet(norm=True))
    norms = {path for path, leaf in named.items() if leaf.role is Role.NORM}
    assert norms == scales | {path.replace("/scale", "/bias") for path in scales}
    assert not norms & set(described(tree, rules.flax_resnet())[0])


def test_a_flax_resnet_without_norms_learns_under_fixup():
    """In a branch that is zero for good neither the last layer nor the others ever move."""
    model = ResNet(stages=(2, 1))
    images = np.random.default_rng(1).standard_normal((8, 16, 16, 3)).astype("f4")
    params = filled(jax.eval_shape(model.init, jax.random.key(0), images)["params"])
    draw = quick_jit(lambda key: init.fixup(params, 3, key=key, rules=rules.flax_resnet()))
    start = draw(jax.random.key(2))

    @quick_jit
    def step(params):
        def loss(params):
            logits = model.apply({"params": params}, images)
            return -jax.nn.log_softmax(logits)[jnp.arange(8), jnp.arange(8) % 5].mean()

        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))

    after = start
    for _ in range(4):
        after = step(after)
    for (path, old), (_, new) in zip(described_leaves(start), described_leaves(after), strict=True):
        assert not np.array_equal(old, new), path


class NnxBlock(nnx.Module):
    def __init__(self, c_in, c_out, rngs):
        self.conv1 = nnx.Conv(c_in, c_out, (3, 3), use_bias=False, rngs=rngs)
        self.bn1 = nnx.BatchNorm(c_out, rngs=rngs)
        self.conv2 = nnx.Conv(c_out, c_out, (3, 3), use_bias=False, rngs=rngs)
        self.bn2 = nnx.BatchNorm(c_out, rngs=rngs)
        if c_in != c_out:
            self.downsample = nnx.Sequential(
                nnx.Conv(c_in, c_out, (1, 1), use_bias=False, rngs=rngs),
                nnx.BatchNorm(c_out, rngs=rngs),
            )


class InGroups(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.layer1 = nnx.List([NnxBlock(4, 4, rngs) for _ in range(11)])
        self.layer2 = nnx.List([NnxBlock(4 if number == 0 else 8, 8, rngs) for number in range(2)])
        self.fc = nnx.Linear(8, 5, rngs=rngs)


class InSequences(InGroups):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.layer1, self.layer2 = (nnx.Sequential(*part) for part in (self.layer1, self.layer2))


class InOneList(nnx.Module):
    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 4, (3, 3), rngs=rngs)
        self.blocks = nnx.List([NnxBlock(4, 4, rngs) for _ in range(11)])
        self.blocks += [NnxBlock(4, 8, rngs), NnxBlock(8, 8, rngs)]
        self.head = nnx.Linear(8, 5, rngs=rngs)


@pytest.mark.parametrize("network", [InGroups, InSequences, InOneList])
def test_nnx_resnet(network):
    state = nnx.eval_shape(lambda: nnx.state(network(nnx.Rngs(0)), nnx.Param))
    found, names = described(state, rules.nnx_resnet())
    assert len(names) == 13
    numbers = [int(name.split("/")[-1]) for name in names]
    assert numbers in ([*range(11), 0, 1], [*range(13)])
    of_role = {role: {p for p, leaf in found.items() if leaf.role == role} for role in Role}
    assert len(of_role["branch"]) == 26
    assert {path.split("/")[0] for path in of_role["stem"]} in ({"conv1"}, {"stem"})
    assert {path.split("/")[0] for path in of_role["head"]} in ({"fc"}, {"head"})
    assert any("downsample/layers/0/kernel" in path for path in of_role["shortcut"])
    norms, _ = described(state, rules.nnx_resnet(norm=True))
    assert sum(leaf.role is Role.NORM for leaf in norms.values()) == 13 * 4 + 2


@pytest.mark.every(3)
@pytest.mark.parametrize("version_2", [False, True])
@pytest.mark.parametrize(("name", "blocks", "m"), [("ResNet18", 8, 2), ("ResNet50", 16, 3)])
def test_haiku_resnet(name, blocks, m, version_2):
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")
    network = getattr(hk.nets, name)
    model = hk.transform_with_state(lambda x: network(10, resnet_v2=version_2)(x, is_training=True))
    tree, _ = jax.eval_shape(model.init, jax.random.key(0), IMAGES)
    found, names = described(tree, rules.haiku_resnet())
    assert names == sorted(names)  # no group has ten blocks
    assert [len(names), *{leaf.m for leaf in found.values() if leaf.m}] == [blocks, m]
    for path, leaf in found.items():
        words = {"shortcut_conv": "shortcut", "initial_conv": "stem", "logits": "head"}
        role = next((role for word, role in words.items() if word in path), "branch")
        assert leaf.role == role, path
    named, _ = described(tree, rules.haiku_resnet(norm=True))
    norms = {path for path, leaf in named.items() if leaf.role is Role.NORM}
    assert norms == {path for path, _ in described_leaves(tree) if "batchnorm" in path}
    assert set(dict(described_leaves(tree))) == norms | set(found)


def state_dict(blocks, deep=False):
    """The names and shapes of a bottleneck ResNet in torchvision; ``deep``: of timm's ResNet-D."""

    def conv(name, c_out, c_in, size):
        tree[f"{name}.weight"] = (c_out, c_in, size, size)

    def norm(name, channels):
        tree[f"{name}.weight"] = tree[f"{name}.bias"] = (channels,)

    tree = {}
    if deep:
        for number, (c_in, c_out) in zip((0, 3, 6), ((3, 2), (2, 2), (2, 4)), strict=True):
            conv(f"conv1.{number}", c_out, c_in, 3)
        norm("conv1.1", 2)
        norm("conv1.4", 2)
    else:
        conv("conv1", 4, 3, 7)
    norm("bn1", 4)
    c_in = 4
    for stage, number in enumerate(blocks, start=1):
        width = 4 * 2 ** (stage - 1)
        for block in range(number):
            name = f"layer{stage}.{block}"
            shapes = ((c_in, width, 1), (width, width, 3), (width, 4 * width, 1))
            for j, (before, after, size) in enumerate(shapes, start=1):
                conv(f"{name}.conv{j}", after, before, size)
                norm(f"{name}.bn{j}", after)
            if block == 0:
                conv(f"{name}.downsample.{int(deep)}", 4 * width, c_in, 1)
                norm(f"{name}.downsample.{1 + deep}", 4 * width)
            c_in = 4 * width
    tree |= {"fc.weight": (5, c_in), "fc.bias": (5,)}
    return {name: jnp.ones(shape) for name, shape in tree.items()}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_torch_resnet(deep, nested):
    flat = state_dict((3, 11), deep)
    tree = flat
    if nested:
        tree = {}
        for name, value in flat.items():
            *keys, last = name.split(".")
            inner = tree
            for key in keys:
                inner = inner.setdefault(key, {})
            inner[last] = value
    found, names = described(tree, rules.torch_resnet(avg_down=deep))
    expected = [f"layer1.{n}" for n in range(3)] + [f"layer2.{n}" for n in range(11)]
    assert [".".join(name.replace("/", ".").split(".")[:2]) for name in names] == expected
    found = {path.replace("/", "."): leaf for path, leaf in found.items()}
    layers = {path for path, value in flat.items() if value.ndim > 1} | {"fc.bias"}
    assert set(found) == layers
    for path, leaf in found.items():
        stem = path.startswith("conv1")
        role = "stem" if stem else "head" if path.startswith("fc") else "branch"
        assert leaf.role == ("shortcut" if "downsample" in path else role), path
    assert roles.fans(found["layer2.0.conv1.weight"]) == (16, 8)
    wrong = "downsample.0" if deep else "downsample.1"
    if deep:
        with pytest.raises(ValueError, match="no rule says what the weight .*downsample"):
            roles.assign(tree, rules.torch_resnet())
    assert not any(wrong in path for path in found)
    norms, _ = described(tree, rules.torch_resnet(norm=True, avg_down=deep))
    norms = {path.replace("/", ".") for path, leaf in norms.items() if leaf.role is Role.NORM}
    assert norms == set(flat) - layers


def test_an_addition_of_the_user_s_own():
    tree = of_flax(stages=(2,))
    for number in range(2):
        tree[f"ResNetBlock_{number}"]["gain"] = jnp.full((), 3.0)
    ready = dataclasses.replace(rules.flax_resnet(), multiplier="/gain$")
    after = init.fixup(tree, 2, rules=ready)
    assert [float(after[f"ResNetBlock_{number}"]["gain"]) for number in range(2)] == [1, 1]


def test_a_wrong_library_s_rules_are_refused():
    tree = of_flax(stages=(2,))
    for ready in (rules.haiku_resnet, rules.torch_resnet, rules.flax_vit, rules.flax_gpt):
        with pytest.raises(ValueError, match=r"no rule says what the weight '\w+/"):
            roles.assign(tree, ready())


def test_scanned():
    """A stage of blocks under ``nn.scan`` has the roles of separate blocks, in the same order."""
    one = {"Conv_0": {"kernel": jnp.ones((12, 3, 3, 4, 4))}}
    one["Conv_1"] = {"kernel": jnp.ones((12, 3, 3, 4, 4))}
    tree = {"conv_init": {"kernel": jnp.ones((3, 3, 3, 4))}, "ResNetBlock_0": one}
    ready = rules.scanned(rules.flax_resnet(), r"ResNetBlock_0/")
    after = init.fixup(filled(tree), 12, rules=ready)
    assert not np.any(after["ResNetBlock_0"]["Conv_1"]["kernel"])
    found, names = described(tree, ready)
    assert names == [f"ResNetBlock_0[{number}]" for number in range(12)]
    assert found["ResNetBlock_0/Conv_0/kernel"].branches == tuple(range(1, 13))


class MlpBlock(nn.Module):
    @nn.compact
    def __call__(self, x):
        # In one line the outer layer would be constructed first, and be Dense_0.
        h = nn.gelu(nn.Dense(2 * x.shape[-1])(x))
        return nn.Dense(x.shape[-1])(h)


class Encoder1DBlock(nn.Module):
    """A block under the names of ``vit_jax`` and of LM1B, whose attention has no biases."""

    use_bias: bool = True

    @nn.compact
    def __call__(self, x, _=None):
        h = nn.LayerNorm()(x)
        attention = nn.MultiHeadDotProductAttention(num_heads=2, use_bias=self.use_bias)
        x = x + attention(h, h)
        return x + MlpBlock()(nn.LayerNorm()(x)), None


class Encoder(nn.Module):
    layers: int
    scan: bool = False

    @nn.compact
    def __call__(self, x):
        pos = self.param("pos_embedding", nn.initializers.normal(0.02), (1, *x.shape[1:]))
        x = x + pos
        if self.scan:
            block = nn.scan(
                Encoder1DBlock,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.layers,
            )
            x, _ = block(name="encoderblock")(x, None)
        else:
            for number in range(self.layers):
                x, _ = Encoder1DBlock(name=f"encoderblock_{number}")(x)
        return nn.LayerNorm(name="encoder_norm")(x)


class VisionTransformer(nn.Module):
    layers: int = 11
    scan: bool = False

    @nn.compact
    def __call__(self, images):
        x = nn.Conv(8, (16, 16), strides=(16, 16), name="embedding")(images).reshape(1, -1, 8)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, 8))
        x = Encoder(self.layers, self.scan, name="Transformer")(jnp.concatenate([cls, x], axis=1))
        return nn.Dense(5, name="head")(x[:, 0])


class Decoder(nn.Module):
    tied: bool

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(17, 8)
        x = embed(tokens)
        for number in range(2):
            x, _ = Encoder1DBlock(use_bias=False, name=f"encoderdecoderblock_{number}")(x)
        x = nn.LayerNorm(name="encoderdecoder_norm")(x)
        return embed.attend(x) if self.tied else nn.Dense(17, name="logitdense")(x)


class LanguageModel(nn.Module):
    tied: bool

    @nn.compact
    def __call__(self, tokens):
        return Decoder(self.tied, name="decoder")(tokens)


class NnxMlp(nnx.Module):
    def __init__(self, rngs):
        self.linear1 = nnx.Linear(8, 16, rngs=rngs)
        self.linear2 = nnx.Linear(16, 8, rngs=rngs)


class NnxLayer(nnx.Module):
    def __init__(self, rngs):
        self.attn = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.mlp = NnxMlp(rngs)
        self.ln1 = nnx.LayerNorm(8, rngs=rngs)


class NnxGpt(nnx.Module):
    def __init__(self, rngs):
        self.wte = nnx.Embed(17, 8, rngs=rngs)
        self.wpe = nnx.Embed(6, 8, rngs=rngs)
        self.blocks = nnx.List([NnxLayer(rngs) for _ in range(2)])
        self.lm_head = nnx.Linear(8, 17, use_bias=False, rngs=rngs)


TOKENS = jnp.ones((1, 6), jnp.int32)


def of_linen(model, example):
    return filled(jax.eval_shape(model.init, jax.random.key(0), example)["params"])


TRANSFORMERS = {
    "ViT": lambda: (of_linen(VisionTransformer(), IMAGES), rules.flax_vit(), 11),
    "scanned ViT": lambda: (
        of_linen(VisionTransformer(3, scan=True), IMAGES),
        rules.scanned(rules.flax_vit(), r"encoderblock/"),
        3,
    ),
    "LM1B": lambda: (of_linen(LanguageModel(tied=False), TOKENS), rules.flax_gpt(), 2),
    "tied LM1B": lambda: (of_linen(LanguageModel(tied=True), TOKENS), rules.flax_gpt(), 2),
    "NNX GPT": lambda: (
        filled(nnx.eval_shape(lambda: nnx.state(NnxGpt(nnx.Rngs(0)), nnx.Param))),
        rules.flax_gpt(),
        2,
    ),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name):
    """Attention before feed-forward, query, key, value, out in order, and nothing left unnamed."""
    tree, ready, layers = TRANSFORMERS[name]()
    found, names = described(tree, ready)
    assert len(names) == 2 * layers
    is_mlp = ["mlp" in branch.lower() for branch in names]
    assert is_mlp == [False, True] * layers
    for path, leaf in found.items():
        if leaf.role is Role.BRANCH:
            order = ("query", "key", "value", "out") if leaf.m == 4 else None
            place = (
                order.index(path.split("/")[-2 - path.endswith("/value")])
                if order
                else (int("Dense_1" in path or "linear2" in path))
            )
            assert leaf.layer == place + 1, path
    for path, leaf in described_leaves(tree):
        position = re.search(r"cls|pos_embedding|wpe|LayerNorm", path)
        assert leaf.ndim < 2 or position or path in found, path
    roles_of = {str(leaf.role) for leaf in found.values()}
    assert roles_of == {"branch", "stem" if "ViT" in name else "embedding"} | (
        set() if "tied" in name else {"head"}
    )


@pytest.mark.every(4)
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_under_fixup_with_their_norms_meant(name):
    """The last layer of every branch is 0, the others have the factor of their own ``m``."""
    tree, ready, layers = TRANSFORMERS[name]()
    ready = dataclasses.replace(ready, norm=rules.flax_vit(norm=True).norm + r"|/ln1/")
    after = dict(described_leaves(init.fixup(tree, 2 * layers, rules=ready)))
    found, _ = described(tree, ready)
    for path, before in described_leaves(tree):
        leaf = found.get(path)
        if leaf is not None and leaf.role is Role.BRANCH and leaf.weight:
            factor = 0 if leaf.layer == leaf.m else (2 * layers) ** (-1 / (2 * leaf.m - 2))
            # One float32 product.
            np.testing.assert_allclose(after[path], np.float32(factor) * before, rtol=2e-7)


@pytest.mark.parametrize("norm", ["ln_1", "ln1", "gn1", "GN_0", "layer_norm", "bn", "group_norm2"])
def test_norms_under_their_short_names_are_those_that_are_meant(norm):
    vector = jnp.ones(4)
    block = {f"conv{j}": {"kernel": jnp.ones((3, 3, 4, 4))} for j in (1, 2)}
    tree = {"layer1": {0: block | {norm: {"scale": vector, "bias": vector}}}}
    leaves = roles.assign(tree, rules.nnx_resnet(norm=True)).leaves
    assert [leaf.role for leaf in leaves if norm in leaf.path] == [Role.NORM] * 2
    init.he(tree, jax.random.key(0), rules=rules.nnx_resnet(norm=True))
    tree["layer1"][0] |= {"lnet": {"bias": vector}, "vuln": {"bias": vector}}  # no norms
    kept = [
        leaf for leaf in roles.assign(tree, rules.nnx_resnet(norm=True)).leaves if "n" in leaf.path
    ]
    assert sum(leaf.role is Role.KEEP for leaf in kept) == 2
