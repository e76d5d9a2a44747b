"""Norms left in a branch, and two zeros in a row: refused, whatever library named the leaves."""

import dataclasses
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nf_resnets import init, models, roles, schemes
from nf_resnets.init import Rules
from tests.models.trees import quick_jit, random_variables

C = 4
pytestmark = pytest.mark.filterwarnings("ignore::nf_resnets.schemes.SchemeWarning")


def conv(*lead):
    return jnp.ones((*lead, 3, 3, C, C))


def ones(*shape):
    return jnp.ones(shape or (C,))


def zeros(*shape):
    return jnp.zeros(shape or (C,))


# The names of a block's leaves: its layers, and a norm's scale and bias; the rules without norm=.
FLAX = {
    f"ResNetBlock_{k}": {"Conv_0": {"kernel": conv()}, "Conv_1": {"kernel": conv()}} for k in (0, 1)
}
FLAX_RULES = Rules(
    branch=r"ResNetBlock_(\d+)/Conv_(\d+)/kernel", head="Dense_0", keep="BatchNorm|norm"
)
HEADS = {"Dense_0": {"kernel": jnp.ones((C, 5)), "bias": jnp.zeros(5)}}


def flax_blocks(**leaves):
    return {name: {**block, **leaves} for name, block in FLAX.items()} | HEADS


def state_dict(**leaves):
    tree = {}
    for k in (0, 1):
        for j in (1, 2):
            tree[f"layer1.{k}.conv{j}.weight"] = jnp.ones((C, C, 3, 3))
        tree |= {f"layer1.{k}.{name.replace('__', '.')}": leaf for name, leaf in leaves.items()}
    return tree


def blocks(**leaves):
    """Blocks in a list, as in NNX and Equinox."""
    block = {"conv1": {"weight": conv()}, "conv2": {"weight": conv()}, **leaves}
    return {"blocks": [block, block], "head": jnp.ones((C, 5))}


def haiku(**modules):
    tree = {}
    for k in (0, 1):
        for j in (0, 1):
            tree[f"res_net/~/block_group_0/~/block_{k}/~/conv_{j}"] = {"w": conv()}
        for name, leaves in modules.items():
            tree[f"res_net/~/block_group_0/~/block_{k}/~/{name}"] = leaves
    return tree


def flat(**leaves):
    tree = {f"block{k}_conv{j}_kernel": conv() for k in (1, 2) for j in (1, 2)}
    return tree | {f"block{k}_{name}": leaf for k in (1, 2) for name, leaf in leaves.items()}


def stacked(**leaves):
    return {"layers": {"conv_1": conv(3), "conv_2": conv(3), **leaves}, "head": jnp.ones((C, 5))}


def gpt(**leaves):
    layer = {
        "attn": {"qkv": ones(C, C), "out": ones(C, C)},
        "mlp": {"up": ones(C, C), "down": ones(C, C)},
    }
    return {"h": {str(k): {**layer, **leaves} for k in range(3)}, "ln_f": {"scale": ones()}}


BLOCKS = Rules(branch=r"blocks/(\d+)/conv(\d)", head="head")
TORCH = Rules(branch=r"layer(\d+)\.(\d+)\.conv(\d+)", layout="OIHW")
HAIKU = Rules(branch=r"block_group_(\d+)/~/block_(\d+)/~/conv_(\d+)")
FLAT = Rules(branch=r"block(\d+)_conv(\d+)")
STACKED = Rules(branch=r"(layers)/conv_(\d)", head="head", stacked="^layers/")
GPT = Rules(branch=r"h/(\d+)/(attn|mlp)/(qkv|out|up|down)$", order=("qkv", "up", "out", "down"))
KEEP = Rules(branch=FLAX_RULES.branch, head="Dense_0")

LEFT = {
    "flax": (
        flax_blocks(BatchNorm_1={"scale": ones(), "bias": zeros()}),
        KEEP,
        "BatchNorm_1/scale",
    ),
    "flax, kept": (flax_blocks(BatchNorm_0={"scale": ones()}), FLAX_RULES, "BatchNorm_0/scale"),
    "flax, only its bias": (flax_blocks(norm_2={"bias": zeros()}), KEEP, "norm_2/bias"),
    "flax, on the skip path": (flax_blocks(norm_proj={"scale": ones()}), KEEP, "norm_proj/scale"),
    "flax LayerNorm": (flax_blocks(LayerNorm_0={"scale": ones()}), KEEP, "LayerNorm_0/scale"),
    "bare": (flax_blocks(bn_2=ones()), KEEP, "ResNetBlock_0/bn_2"),
    "haiku": (
        haiku(batchnorm_1={"scale": ones(1, 1, 1, C), "offset": zeros(1, 1, 1, C)}),
        dataclasses.replace(HAIKU, keep="batchnorm"),
        "batchnorm_1/scale",
    ),
    "haiku layer_norm": (
        haiku(layer_norm={"scale": ones(), "offset": zeros()}),
        HAIKU,
        "layer_norm/scale",
    ),
    "torch": (
        state_dict(bn1__weight=ones(), bn1__bias=zeros(), bn1__running_mean=zeros()),
        TORCH,
        r"layer1\.0\.bn1\.weight",
    ),
    "torch, in a sequence": (
        state_dict(downsample__1__weight=ones()),
        TORCH,
        "downsample.1.weight",
    ),
    "equinox": (blocks(norm1={"weight": ones(), "bias": zeros()}), BLOCKS, "blocks/0/norm1/weight"),
    "equinox, in a list": (blocks(layers=[{"weight": ones()}]), BLOCKS, "blocks/0/layers/0/weight"),
    "nnx": (blocks(bn={"scale": {"value": ones()}}), BLOCKS, "blocks/0/bn/scale/value"),
    "of no name": (blocks(n1=ones()), BLOCKS, "blocks/0/n1"),
    "of no name, zero": (blocks(n1=zeros()), BLOCKS, "blocks/0/n1"),
    "flat names": (flat(bn1_scale=ones()), FLAT, "block1_bn1_scale"),
    "stacked": (stacked(norm={"scale": ones(3, C)}), STACKED, "layers/norm/scale"),
    "before two branches": (gpt(ln_1={"scale": ones()}), GPT, "h/0/ln_1/scale"),
    "query and key": (
        gpt(attn={"qkv": ones(C, C), "out": ones(C, C), "query_norm": {"scale": ones()}}),
        GPT,
        "h/0/attn/query_norm/scale",
    ),
}


def _branches(tree, rules):
    return roles.assign(tree, rules).branches


@pytest.mark.parametrize("case", LEFT)
def test_a_norm_in_a_block_is_refused(case):
    tree, rules, leaf = LEFT[case]
    depth = len(_branches(tree, rules))
    for call in (
        lambda tree: init.fixup(tree, depth, rules=rules),
        lambda tree: init.fixup(tree, depth, rules=rules, key=jax.random.key(0)),
        jax.jit(lambda tree: init.fixup(tree, depth, rules=rules)),
    ):
        with pytest.raises(
            ValueError, match=rf"{leaf}.*Fixup is for branches without norm.*rules\.norm"
        ):
            call(tree)


@pytest.mark.parametrize("case", ["flax", "torch", "equinox", "stacked", "haiku layer_norm"])
def test_a_norm_that_the_rules_name_is_meant(case):
    tree, rules, _ = LEFT[case]
    rules = dataclasses.replace(rules, norm=r"[nN]orm|bn")
    depth = len(_branches(tree, rules))
    result = init.fixup(tree, depth, rules=rules)
    for (path, before), after in zip(
        jax.tree_util.tree_flatten_with_path(tree)[0], jax.tree.leaves(result), strict=True
    ):
        if re.search(r"[nN]orm|bn", str(path)):
            np.testing.assert_array_equal(after, before)


PASS = {
    "bias vectors of the layers": (flax_blocks(Conv_1={"kernel": conv(), "bias": zeros()}), KEEP),
    "haiku's": (haiku(conv_1={"w": conv(), "b": zeros()}), HAIKU),
    "equinox's": (
        blocks(
            conv1={"weight": jnp.ones((C, C, 3, 3))},
            conv2={"weight": jnp.ones((C, C, 3, 3)), "bias": zeros(C, 1, 1)},
        ),
        dataclasses.replace(BLOCKS, branch=r"blocks/(\d+)/conv(\d)/weight"),
    ),
    "torch's": (
        state_dict(conv2__bias=zeros()),
        dataclasses.replace(TORCH, branch=r"layer(\d+)\.(\d+)\.conv(\d+)\.weight"),
    ),
    "scalars": (
        flax_blocks(scale=ones(1), bias1a=zeros(1), gain=jnp.ones(()), multiplier=jnp.ones(())),
        KEEP,
    ),
    "scalars of a stack": (stacked(gain=ones(3), shift=zeros(3)), STACKED),
    "channel biases": (blocks(vector=zeros(), beta=zeros()), BLOCKS),
    "gains that are kept by name": (blocks(gain=ones()), dataclasses.replace(BLOCKS, keep="gain")),
    "norms before and behind the blocks": (
        flax_blocks() | {"bn_init": {"scale": ones()}, "norm": {"scale": zeros()}},
        KEEP,
    ),
    "a norm at the end": (gpt(), GPT),
    "what is kept by name": (blocks(n1=ones()), dataclasses.replace(BLOCKS, keep="/n1$")),
    "one block": (
        {"params": {"body": {"conv1": conv(), "conv2": conv()}, "norm": {"scale": ones()}}},
        Rules(branch=r"(body)/conv(\d)"),
    ),
    "a norm of a stage": (
        {
            f"stage_{s}": {
                "block_1": {"conv_1": conv(), "conv_2": conv()},
                "block_2": {"conv_1": conv(), "conv_2": conv()},
                "norm": {"scale": ones()},
            }
            for s in (1, 2)
        },
        Rules(branch=r"stage_(\d+)/block_(\d+)/conv_(\d)"),
    ),
}


@pytest.mark.parametrize("case", PASS)
def test_what_is_no_norm_of_a_block_is_not_taken_for_one(case):
    tree, rules = PASS[case]
    init.fixup(tree, len(_branches(tree, rules)), rules=rules)


def test_flax_numbers_the_parts_of_a_transformers_block_by_itself():
    def block():
        attention = {name: {"kernel": ones(C, C)} for name in ("query", "key", "value", "out")}
        mlp = {"Dense_0": {"kernel": ones(C, C)}, "Dense_1": {"kernel": ones(C, C)}}
        return {"MultiHeadDotProductAttention_0": attention, "MlpBlock_0": mlp}

    tree = {"Transformer": {f"encoderblock_{k}": block() for k in range(2)}}
    tree["Transformer"]["encoder_norm"] = {"scale": ones()}
    rules = Rules(
        branch=r"encoderblock_(\d+)/(\w+)/(?:Dense_)?(\d|query|key|value|out)/kernel",
        order=("query", "key", "value", "out"),
    )
    init.fixup(tree, 4, rules=rules)
    tree["Transformer"]["encoderblock_1"]["LayerNorm_0"] = {"scale": ones()}
    with pytest.raises(ValueError, match="encoderblock_1/LayerNorm_0/scale"):
        init.fixup(tree, 4, rules=rules)


SCHEMES = {
    "fixup": init.fixup,
    "skipinit": init.skipinit,
    "rezero": init.rezero,
    "rescalenet": init.rescalenet,
    "nf_resnet": init.nf_resnet,
}


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_published_without_norms_refuses_one(name):
    tree = flax_blocks(BatchNorm_0={"scale": ones()}, alpha=jnp.ones(()))
    rules = dataclasses.replace(FLAX_RULES, alpha="/alpha$")
    options = {}
    if name == "rescalenet":
        options["constants"] = schemes.get(name).constants(2)
    with pytest.raises(
        ValueError, match="'ResNetBlock_0/BatchNorm_0/scale'.*without normalisation"
    ):
        SCHEMES[name](tree, 2, rules=rules, **options)
    meant = dataclasses.replace(rules, keep=None, norm="BatchNorm")
    SCHEMES[name](tree, 2, rules=meant, **options)


def test_our_own_network_with_norms_is_not_for_fixup():
    model = models.CifarResNet(depth=8, scheme="batchnorm", stem_channels=C)
    params = random_variables(model, 0)["params"]
    with pytest.raises(
        ValueError, match="'stage_1/first/norm_1/scale'.*Fixup is for branches without"
    ):
        init.fixup(params, 3)
    init.standard(params, 3)
    init.zero_gamma(params, 3)


NAMED = Rules(branch=FLAX_RULES.branch, head="Dense_0", norm="BatchNorm")
TWO_ZEROS = {
    "a norm's scale behind the last layer": (
        lambda: init.fixup(flax_blocks(BatchNorm_1={"scale": zeros()}), 2, rules=NAMED),
        ["ResNetBlock_0/BatchNorm_1/scale", "ResNetBlock_0/Conv_1/kernel"],
    ),
    "only some of a stack": (
        lambda: init.fixup(
            stacked(norm={"scale": ones(3, C).at[1].set(0)}),
            3,
            rules=dataclasses.replace(STACKED, norm="/norm/"),
        ),
        ["layers/norm/scale", "layers/conv_2", r"layers\[1\]"],
    ),
    "a scalar that no rule names": (
        lambda: init.fixup(flax_blocks(alpha=jnp.zeros(())), 2, rules=KEEP),
        ["ResNetBlock_0/alpha", "ResNetBlock_0/Conv_1/kernel"],
    ),
    "SkipInit's scalar": (
        lambda: init.fixup(
            flax_blocks(alpha=jnp.zeros(())), 2, rules=dataclasses.replace(KEEP, alpha="alpha")
        ),
        ["ResNetBlock_0/alpha", "Conv_1"],
    ),
    "an inner layer": (
        lambda: init.fixup(flax_blocks(Conv_0={"kernel": 0 * conv()}), 2, rules=KEEP),
        ["ResNetBlock_0/Conv_0/kernel", "ResNetBlock_0/Conv_1/kernel"],
    ),
    "SkipInit behind a layer of zeros": (
        lambda: init.skipinit(
            flax_blocks(alpha=jnp.ones(()), Conv_1={"kernel": 0 * conv()}),
            2,
            rules=dataclasses.replace(KEEP, alpha="alpha"),
        ),
        ["ResNetBlock_0/alpha", "ResNetBlock_0/Conv_1/kernel"],
    ),
    "zero-gamma behind a layer of zeros": (
        lambda: init.zero_gamma(
            flax_blocks(BatchNorm_1={"scale": ones()}, Conv_1={"kernel": 0 * conv()}),
            2,
            scales=r"Block_(\d+)/BatchNorm_(\d+)/scale",
            rules=NAMED,
        ),
        ["ResNetBlock_0/BatchNorm_1/scale", "ResNetBlock_0/Conv_1/kernel"],
    ),
}


@pytest.mark.parametrize("case", TWO_ZEROS)
def test_two_zeros_in_a_branch_are_refused(case):
    call, words = TWO_ZEROS[case]
    with pytest.raises(ValueError, match="both zero") as found:
        call()
    for word in words:
        assert re.search(word, str(found.value)), (word, str(found.value))


DENSE = {"fc1": (4, 32), "fc2": (32, 10)}


@pytest.mark.parametrize(
    "layers",
    [DENSE, {"fc1": (4, 4), "fc2": (4, 10)}, {"conv": (1, 1, 4, 2), "dense": (128, 10)},
     {"box": {"fc": (4, 5)}, "class": DENSE}],
    ids=["hidden layer", "of one width", "flattened", "one of two heads"],
)  # fmt: skip
def test_a_head_of_two_layers_of_zeros_is_refused(layers):
    params = {**_flat([]), "head": jax.tree.map(jnp.ones, layers, is_leaf=_is_shape)}
    with pytest.raises(ValueError, match="'head/.*' .* and 'head/.*' .* of the head are both zero"):
        init.fixup(params, 4, rules=NUMBERED_WITH_HEAD)


@pytest.mark.parametrize(
    "layers",
    [{"policy": (4, 9), "value": (4, 1)}, {"boxes": (4, 4), "classes": (4, 20)},
     {"coarse": (8, 4), "deep": {"fc": (4, 10)}}, {"fc": (32, 10)}],
    ids=["two outputs", "one as wide as its input", "of two modules", "the last alone"],
)  # fmt: skip
def test_heads_beside_each_other_are_no_two_zeros_in_a_row(layers):
    params = {**_flat([]), "head": jax.tree.map(jnp.ones, layers, is_leaf=_is_shape)}
    rules = NUMBERED_WITH_HEAD
    assert not any(map(jnp.any, jax.tree.leaves(init.fixup(params, 4, rules=rules)["head"])))


def _is_shape(node):
    return isinstance(node, tuple)


def test_one_zero_is_no_fault():
    tree = flax_blocks(BatchNorm_0={"scale": zeros()}, norm_proj={"scale": zeros()})
    with pytest.raises(ValueError, match="both zero"):
        init.fixup(tree, 2, rules=dataclasses.replace(NAMED, norm="BatchNorm|norm"))
    tree = flax_blocks(BatchNorm_0={"scale": ones()}, norm_proj={"scale": zeros()})
    init.fixup(tree, 2, rules=dataclasses.replace(NAMED, norm="BatchNorm|norm"))
    # Attention whose scores start at 0 is a mean of its values, whose gradient passes.
    layers = {name: {"kernel": ones(C, C)} for name in ("key", "out", "query", "value")}
    layers["query"] = {"kernel": zeros(C, C)}
    order = ("query", "key", "value", "out")
    rules = Rules(branch=r"(attention)/(\w+)/kernel", order=order)
    init.fixup({"attention": layers}, 1, rules=rules)
    layers["value"] = {"kernel": zeros(C, C)}
    with pytest.raises(ValueError, match="attention/out/kernel.*attention/value/kernel.*both zero"):
        init.fixup({"attention": layers}, 1, rules=rules)
    # Two scalars beside two branches: one zero in each.
    init.skipinit(
        gpt(alpha_attn=ones(1), alpha_mlp=ones(1)),
        6,
        rules=dataclasses.replace(GPT, alpha="/alpha"),
    )


class ResNetBlock(nn.Module):
    """A block of the Flax ImageNet example, typed anew."""

    filters: int

    @nn.compact
    def __call__(self, x, train=True):
        def norm(**options):
            return nn.BatchNorm(use_running_average=not train, **options)

        y = nn.relu(norm()(nn.Conv(self.filters, (3, 3), use_bias=False)(x)))
        y = nn.Conv(self.filters, (3, 3), use_bias=False)(y)
        y = norm(scale_init=nn.initializers.zeros_init())(y)
        if x.shape != y.shape:
            x = norm(name="norm_proj")(
                nn.Conv(self.filters, (1, 1), use_bias=False, name="conv_proj")(x)
            )
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Conv(C, (3, 3), use_bias=False, name="conv_init")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, name="bn_init")(x))
        for filters in (C, 2 * C):
            x = ResNetBlock(filters)(x, train)
        return nn.Dense(5)(x.mean(axis=(1, 2)))


def test_the_flax_imagenet_resnet_is_refused_with_both_leaves_named():
    params = quick_jit(ResNet().init)(jax.random.key(0), jnp.zeros((2, 8, 8, 3)))["params"]
    rules = init.rules.flax_resnet()
    with pytest.raises(ValueError, match="'ResNetBlock_0/BatchNorm_0/scale'"):
        init.fixup(params, 2, rules=rules)
    with pytest.raises(
        ValueError, match="'ResNetBlock_0/BatchNorm_1/scale' and 'ResNetBlock_0/Conv_1/kernel'"
    ):
        init.fixup(params, 2, rules=init.rules.flax_resnet(norm=True))


@pytest.mark.parametrize("version", [1, 2])
def test_haikus_resnet_is_refused(version):
    hk = pytest.importorskip("haiku", reason="dm-haiku is not installed")

    def forward(x):
        net = hk.nets.ResNet18(5, resnet_v2=version == 2)
        return net(x, is_training=True)

    shapes = jax.eval_shape(
        hk.transform_with_state(forward).init, jax.random.key(0), jnp.zeros((1, 16, 16, 3))
    )[0]
    params = jax.tree.map(lambda leaf: np.ones(leaf.shape, "f4"), shapes)
    with pytest.raises(ValueError, match="batchnorm.*Fixup is for branches without normalisation"):
        init.fixup(params, 8, rules=init.rules.haiku_resnet())
    if version == 1:  # whose last scales start at 0
        zero = jax.tree_util.tree_map_with_path(
            lambda path, leaf: 0 * leaf if "batchnorm_1" in str(path) else leaf, params
        )
        with pytest.raises(ValueError, match="batchnorm_1/scale.*conv_1/w.* are both zero"):
            init.fixup(zero, 8, rules=init.rules.haiku_resnet(norm=True))


NUMBERED = Rules(branch=r"conv(\d+)_(\d)/kernel")
NUMBERED_WITH_HEAD = dataclasses.replace(NUMBERED, head="^head/")


def _flat(norms):
    layers = {f"conv{k}_{j}": {"kernel": jnp.ones((3, 3, 4, 4))} for k in range(4) for j in (1, 2)}
    return layers | {norm: {"scale": jnp.ones(4), "bias": jnp.zeros(4)} for norm in norms}


@pytest.mark.parametrize("of", [lambda scale: scale, lambda scale: {"scale": scale}])
def test_norms_in_a_list_outside_the_blocks_are_refused(of):
    params = {**_flat([]), "norms": [of(jnp.ones(4)) for _ in range(4)]}
    with pytest.raises(ValueError, match=r"one of 4 norms, for 4 residual branches, and Fixup"):
        init.fixup(params, 4, rules=NUMBERED)


@pytest.mark.parametrize("name", ["bn{}_{}", "norm_{}_{}", "BatchNorm_{}{}", "ln{}_{}", "b{}_gn{}"])
def test_norms_of_a_tree_without_modules_for_its_blocks_are_refused(name):
    params = _flat([name.format(k, j) for k in range(4) for j in (1, 2)])
    with pytest.raises(ValueError, match=r"one of 8 norms, for 4 residual branches, and Fixup"):
        init.fixup(params, 4, rules=NUMBERED)
    pattern = name.split("{")[0]
    for meant in ({"norm": rf"^{pattern}.*/"}, {"keep": rf"^{pattern}.*/"}):
        init.fixup(params, 4, rules=dataclasses.replace(NUMBERED, **meant))


def test_norms_before_and_behind_all_blocks_are_not_refused():
    init.fixup(_flat(["bn_init", "BatchNorm_0", "norm_final"]), 4, rules=NUMBERED)


@pytest.mark.parametrize("name", ["gate", "ls", "res_factor", "lambda_1"])
def test_a_scalar_of_zero_behind_a_layer_of_zeros_is_refused_under_its_usual_names(name):
    block = {f"conv_{j}": jnp.ones((3, 3, 4, 4)) for j in (1, 2)}
    tree = {f"block_{k}": block | {name: jnp.zeros(())} for k in range(2)}
    with pytest.raises(ValueError, match=rf"'block_0/{name}' of residual branch.*are both zero"):
        init.fixup(tree, 2, rules=init.Rules(branch=r"block_(\d)/conv_(\d)"))


@pytest.mark.parametrize(
    "statistics",
    ["block_{}/bn/mean", "stats/block_{}/bn/running_var", "block_{}/bn/num_batches_tracked"],
)
def test_running_statistics_are_meant_where_norms_are(statistics):
    tree = {}
    for k in range(4):
        tree |= {f"block_{k}/conv_{j}": jnp.ones((3, 3, 4, 4)) for j in (1, 2)}
        tree |= {f"block_{k}/bn/scale": jnp.ones(4), statistics.format(k): jnp.zeros(4)}
    rules = init.Rules(branch=r"block_(\d)/conv_(\d)", norm="/scale$")
    init.fixup(tree, 4, rules=rules)
    for k in range(4):
        del tree[f"block_{k}/bn/scale"]  # norms without parameters
    with pytest.raises(ValueError, match=r"without normalisation; expected the norms? to be taken"):
        init.fixup(tree, 4, rules=dataclasses.replace(rules, norm=None))


@pytest.mark.parametrize(
    "leaves",
    [
        {"WeightNorm_0/Conv_0/kernel": {"scale": ones()}},
        {"Conv_0/weight_g": ones(1, 1, 1, C)},
        {"Conv_0/g": ones(C, 1, 1, 1)},
        {"Conv_0/layer_instance/bias": ones()},
    ],
    ids=["Flax", "PyTorch", "Equinox", "NNX"],
)
def test_normalised_weights_are_refused_where_weights_are_scaled(leaves):
    """Their length is a parameter of its own: a factor has no effect, and a zero is NaN."""
    tree = flax_blocks(**leaves, alpha=jnp.ones(()))
    rules = dataclasses.replace(FLAX_RULES, keep="WeightNorm|/(weight_)?g|layer_", alpha="alpha")
    for name in ("fixup", "rescalenet"):
        constants = schemes.get("rescalenet").constants(2)
        given = {"constants": constants} if name == "rescalenet" else {}
        with pytest.raises(ValueError, match="belongs to a normalised weight .* scales weights"):
            getattr(init, name)(tree, 2, rules=rules, **given)
        assert "normalised weight" in str(init.describe(tree, 2, rules=rules, scheme=name).refused)
    init.skipinit(tree, 2, rules=rules)
    # NF-ResNet's gain of standardised weights, in a branch that Fixup is to scale.
    for named in (None, "gain"):
        with pytest.raises(ValueError, match="'ResNetBlock_0/gain' .* normalised weight"):
            rules = dataclasses.replace(FLAX_RULES, keep=None, norm=named)
            init.fixup(flax_blocks(gain=ones()), 2, rules=rules)


def test_a_head_in_a_branch_is_refused():
    """An expression without ^ finds the first layer of a squeeze-and-excitation, too."""
    tree = flax_blocks(SE_0={"Dense_0": {"kernel": jnp.ones((C, 2))}, "Dense_1": jnp.ones((2, C))})
    rules = dataclasses.replace(FLAX_RULES, keep="Dense_1")
    with pytest.raises(ValueError, match="'ResNetBlock_0/SE_0/Dense_0.* lies in .*'ResNetBlock_0'"):
        init.fixup(tree, 2, rules=rules)
    init.fixup(tree, 2, rules=dataclasses.replace(rules, head="^Dense_0", keep="SE_0"))


def test_a_slope_of_zero_is_no_second_zero():
    """The slope of a PReLU that starts as a ReLU: the last layer has a gradient."""
    tree = flax_blocks(PReLU_0={"negative_slope": zeros()})
    init.fixup(tree, 2, rules=dataclasses.replace(FLAX_RULES, keep="PReLU"))


@pytest.mark.parametrize("role", ["head", "stem", "shortcut", "branch"])
@pytest.mark.parametrize("name", ["norm/scale", "scale", "gain", "prelu/negative_slope"])
def test_a_factor_is_no_bias_vector_of_a_layer(role, name):
    """As one it would become 0: behind a head of zeros both would stay 0."""
    rules = {"branch": r"block_(\d)/conv_(\d)"} | ({role: f"^{role}/"} if role != "branch" else {})
    tree = {f"block_{k}/conv_{j}/kernel": conv() for k in (1, 2) for j in (1, 2)}
    tree |= {} if role == "branch" else {f"{role}/fc/kernel": jnp.ones((C, C))}
    layer = "block_1/conv_2" if role == "branch" else role
    init.fixup(tree | {f"{layer}/fc/bias": zeros()}, 2, rules=Rules(**rules))
    with pytest.raises(ValueError, match=f"'{layer}/{name}' .* by rules.{role}.* a factor by its"):
        init.fixup(tree | {f"{layer}/{name}": ones()}, 2, rules=Rules(**rules))
